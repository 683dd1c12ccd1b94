// SPDX-License-Identifier: Apache-2.0
// A toy space with a formula, which is right: what walks in imagination are tested on.
#pragma once

#include "tests/planner/refine/toy_search.h"

#include <cstddef>
#include <functional>
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
  int begin_walk() override {
    if (walked_) imagined_.clear();
    walked_ = false;
    imagined_.push_back(std::make_unique<ToySearch>(*this));
    return static_cast<int>(imagined_.size()) - 1;
  }
  void walk(const std::function<void(SearchPoint& imagined, int walk)>& walk) override {
    walked_ = true;
    for (std::size_t i = 0; i < imagined_.size(); ++i) walk(*imagined_[i], static_cast<int>(i));
  }
  bool go_to_end_of(int walk) override {
    go_to(imagined_[static_cast<std::size_t>(walk)]->solution());
    ++walks_;
    return knows_ends;
  }
  int walks() const { return walks_; }

  bool knows_ends = false;  ///< claims that all ends were evaluated before

 private:
  std::vector<std::unique_ptr<ToySearch>> imagined_;
  bool walked_ = false;
  int walks_ = 0;
};

}  // namespace agpcs
