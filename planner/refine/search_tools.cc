// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/search_tools.h"

#include "ir/base/at.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace agpcs {

SearchTools::SearchTools(const Problem& problem, int threads)
    : impl_(std::make_unique<Impl>(problem, threads)) {}
SearchTools::SearchTools(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SearchTools::~SearchTools() = default;

std::vector<std::unique_ptr<SearchTools>> SearchTools::divide(int most) {
  std::vector<std::unique_ptr<SearchWorker>> workers = std::move(impl_->workers);
  std::vector<std::unique_ptr<SearchTools>> parts(std::min(at(most), workers.size()));
  for (std::unique_ptr<SearchTools>& part : parts) {
    part.reset(new SearchTools(std::make_unique<Impl>(impl_->problem, impl_->scores)));
  }
  for (std::size_t i = 0; i < workers.size(); ++i) {
    parts[i % parts.size()]->impl().workers.push_back(std::move(workers[i]));
  }
  return parts;
}

void SearchTools::unite(std::vector<std::unique_ptr<SearchTools>> parts) {
  std::size_t threads = 0;
  for (const std::unique_ptr<SearchTools>& part : parts) threads += part->impl().workers.size();
  for (std::size_t i = 0; i < threads; ++i) {
    impl_->workers.push_back(std::move(parts[i % parts.size()]->impl().workers[i / parts.size()]));
  }
}

std::vector<Evaluator*> SearchTools::evaluators() {
  std::vector<Evaluator*> evaluators;
  for (const std::unique_ptr<SearchWorker>& worker : impl_->workers) {
    evaluators.push_back(&worker->evaluator);
  }
  return evaluators;
}

}  // namespace agpcs
