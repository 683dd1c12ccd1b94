// SPDX-License-Identifier: Apache-2.0
// OperatorPool: combines times of operators by signature.
#pragma once

#include "ir/cluster/profile.h"
#include "ir/graph/graph.h"
#include "tools/profile/step.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace agpcs {

class OperatorPool {
 public:
  /// Adds all operators of `graph` for `samples` samples.
  void add(const Graph& graph, std::int64_t samples, const TimedSteps& times);
  /// Returns, by signature and samples, the mean of the times and the mean of the spreads.
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
