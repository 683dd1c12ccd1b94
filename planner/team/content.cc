// SPDX-License-Identifier: Apache-2.0
#include "planner/team/content.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/graph/op_signature.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace agpcs {

int StageContents::number_of(OpId op) {
  int& number = number_[at(op)];
  if (number == kNone) {
    const auto next = static_cast<int>(signatures_.size());
    number = signatures_.emplace(op_signature(graph_, op), next).first->second;
  }
  return number;
}

StageContent StageContents::of(const std::vector<OpId>& ops) {
  StageContent content;
  std::unordered_map<TensorId, int> numbers;
  const auto add = [&](TensorId id) {
    int number = kNone;
    if (id != kNone) {
      const auto next = static_cast<int>(content.tensors.size());
      const auto [known, added] = numbers.emplace(id, next);
      if (added) content.tensors.push_back(id);
      number = known->second;
    }
    content.key.push_back(number);
  };
  for (const OpId op : ops) {
    content.signatures.push_back(number_of(op));
    content.key.push_back(content.signatures.back());
    for (const TensorId id : graph_.op(op).inputs) add(id);
    for (const TensorId id : graph_.op(op).outputs) add(id);
  }
  for (const TensorId id : leaving_tensors(graph_, ops)) {
    content.key.push_back(numbers.at(id));
  }
  for (const TensorId id : content.tensors) {
    const Tensor& tensor = graph_.tensor(id);
    content.key.push_back(static_cast<int>(tensor.kind) * 2 + (has_gradient(tensor) ? 1 : 0));
  }
  return content;
}

TeamBody body_of_like(const Graph& graph, const TeamBody& body, const StageContent& from,
                      const std::vector<OpId>& ops, const StageContent& to) {
  AGPCS_CHECK(from.key == to.key, "bodies of stages that are not alike: {} and {} operators",
              body.ops.size(), ops.size());
  std::unordered_map<TensorId, TensorId> other;
  for (std::size_t i = 0; i < from.tensors.size(); ++i) other[from.tensors[i]] = to.tensors[i];
  TeamBody made = body;
  for (TeamForm& form : made.forms) form.tensor = other.at(form.tensor);
  std::vector<std::size_t> order(made.forms.size());  // forms come by tensor
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t f) { return made.forms[f].tensor; });
  std::vector<int> number(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) number[order[i]] = static_cast<int>(i);
  const auto renumber = [&](int& form) {
    if (form != kNone) form = number[at(form)];
  };
  std::vector<TeamForm> forms;
  for (const std::size_t f : order) {
    forms.push_back(std::move(made.forms[f]));
    renumber(forms.back().from);
  }
  made.forms = std::move(forms);
  for (std::size_t i = 0; i < made.ops.size(); ++i) {
    made.ops[i].op = ops[i];
    std::ranges::for_each(made.ops[i].inputs, renumber);
    std::ranges::for_each(made.ops[i].outputs, renumber);
  }
  made.forward.clear();
  made.backward.clear();
  made.step_end.clear();
  order_steps(graph, made);
  return made;
}

}  // namespace agpcs
