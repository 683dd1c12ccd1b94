// SPDX-License-Identifier: Apache-2.0
// A toy space with a formula, which is right: what walks in imagination are tested on.
#pragma once

#include "tests/planner/refine/toy_search.h"

#include <memory>
#include <utility>
#include <vector>

namespace agpcs {

inline Jobs many_jobs() {
  Jobs jobs;
  for (int i = 0; i < 40; ++i) jobs.lengths.push_back(13 + (i * 29) % 37);
  jobs.machines = 5;
  jobs.most = 10;
  return jobs;
}

/// Of many_jobs(), within the constraint: one machine after the other.
inline ToySearch::Solution in_rows(int jobs, int each) {
  ToySearch::Solution solution;
  for (int i = 0; i < jobs; ++i) solution.push_back(i / each);
  return solution;
}

inline std::vector<ToySearch::Solution> two_starts() {
  ToySearch::Solution other = in_rows(40, 8);
  std::swap(other[0], other[39]);
  return {in_rows(40, 8), other};
}

class ImaginingToy final : public ToySearch {
 public:
  using ToySearch::ToySearch;
  SearchPoint* imagine() override {
    imagined_ = std::make_unique<ToySearch>(*this);
    return imagined_.get();
  }
  void go_to_imagined() override {
    go_to(imagined_->solution());
    ++walks_;
  }
  int walks() const { return walks_; }

 private:
  std::unique_ptr<ToySearch> imagined_;
  int walks_ = 0;
};

}  // namespace agpcs
