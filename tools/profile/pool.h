// SPDX-License-Identifier: Apache-2.0
// OperatorPool: times of operators, put together by signature.
#pragma once

#include "ir/graph.h"
#include "ir/profile.h"
#include "tools/profile_step.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace agpcs {

class OperatorPool {
 public:
  /// Adds all operators of `graph` for `samples` samples.
  void add(const Graph& graph, std::int64_t samples, const TimedSteps& times);
  /// By signature and samples: the mean of the times, and of the spreads.
  std::vector<MeasuredOperator> operators() const;

 private:
  struct Sum {
    OpCost work;
    Measured forward, backward;
    int count = 0;
  };
  struct Entry {
    OpClass op_class = OpClass::kElementwise;
    std::map<std::int64_t, Sum> points;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace agpcs
