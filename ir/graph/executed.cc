// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/executed.h"

#include "ir/graph/op_table.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace agpcs {
namespace {

// Operators of the table without a kernel. No operator outside the table has one.
constexpr std::string_view kNotExecuted[] = {"GlobalLpPool", "LpPool",        "Multinomial",
                                             "RandomNormal", "RandomUniform", "TensorScatter"};

}  // namespace

bool is_executed(std::string_view domain, std::string_view type) {
  return find_op_info(domain, type) != nullptr &&
         std::find(std::begin(kNotExecuted), std::end(kNotExecuted), type) ==
             std::end(kNotExecuted);
}

std::vector<NotExecuted> not_executed(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Op& op : graph.ops) {
    if (!is_executed(op.domain, op.type)) {
      ++counts[op.domain.empty() ? op.type : op.domain + "." + op.type];
    }
  }
  std::vector<NotExecuted> found;
  for (const auto& [type, nodes] : counts) found.push_back({type, nodes});
  return found;
}

}  // namespace agpcs
