// SPDX-License-Identifier: Apache-2.0
// OperatorPool: combines times of operators by signature.
#pragma once

#include "ir/cluster/profile.h"
#include "ir/graph/graph.h"
#include "ir/graph/op_table.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace agpcs {

class OperatorPool {
 public:
  /// Adds an operator with this signature for `samples` samples.
  void add(const std::string& signature, OpClass op_class, std::int64_t samples, const OpCost& work,
           const Measured& forward, const Measured& backward);
  /// Adds all operators of `graph` with their times by OpId.
  void add(const Graph& graph, std::int64_t samples, Precision precision,
           const std::vector<Measured>& forward, const std::vector<Measured>& backward);
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
