// SPDX-License-Identifier: Apache-2.0
#include "tests/system/executor/split_member.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace agpcs::testing {

Tensors run_kernel(const Op& op, const Tensors& in, const RandomSource& random) {
  const OpCall call{op, in, nullptr, random};
  Tensors out = find_kernel(op.domain, op.type)(call);
  out.resize(op.outputs.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (op.outputs[i] == kNone) out[i] = at::Tensor();
  }
  return out;
}

namespace {

// The indices of one member: counted from its first unit, and whether each is its own.
struct OwnIndices {
  at::Tensor local, own;
};

OwnIndices own_indices(const at::Tensor& indices, const OpSplit& split, UnitRange range) {
  at::Tensor i = indices.to(at::kLong);
  i = at::where(i < 0, i + split.units, i) - range.begin;
  return {i, at::logical_and(i >= 0, i < range.size())};
}

// Runs a look-up: rows of others are 0.
Tensors run_look_up(const Op& op, Tensors in, const OpSplit& split, UnitRange range) {
  const OwnIndices mine = own_indices(in[1], split, range);
  in[1] = mine.local.masked_fill(mine.own.logical_not(), 0);
  at::Tensor own = mine.own;
  const at::Tensor found = run_kernel(op, in)[0];
  if (op.type == "Gather") {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(found.dim()), 1);
    const std::int64_t axis = op.int_attribute("axis", 0);
    std::copy(own.sizes().begin(), own.sizes().end(),
              shape.begin() + (axis < 0 ? axis + in[0].dim() : axis));
    own = own.reshape(shape);
  }
  return {found.masked_fill(own.logical_not(), 0)};
}

Tensors run_one_hot(const Op& op, Tensors in, const OpSplit& split, UnitRange range) {
  const OwnIndices mine = own_indices(in[0], split, range);
  in[0] = mine.local.masked_fill(mine.own.logical_not(), range.size());  // no class of its own
  return run_kernel(op, in);
}

// Labels of others count as ignored ones.
Tensors run_negative_log(Op op, Tensors in, UnitRange range) {
  const std::int64_t ignored = op.int_attribute("ignore_index", kIgnoredLabel);
  const at::Tensor counts = in[1].ne(ignored);
  const at::Tensor local = in[1].to(at::kLong) - range.begin;
  const at::Tensor own = counts.logical_and(local >= 0).logical_and(local < range.size());
  in[1] = local.masked_fill(own.logical_not(), kIgnoredLabel);
  op.attributes["ignore_index"] = kIgnoredLabel;
  return run_kernel(op, in);
}

Tensors run_member(const OpSplit& split, const SplitMember& member) {
  if (split.indices == kNone) return run_kernel(member.op, member.in);
  const std::string& type = member.op.type;
  if (type == "OneHot") return run_one_hot(member.op, member.in, split, member.units);
  if (type == "NegativeLogLikelihoodLoss")
    return run_negative_log(member.op, member.in, member.units);
  return run_look_up(member.op, member.in, split, member.units);
}

// Computes what one operator over the members computes together: the loss of a vocabulary in parts.
// Reduces the maximum of each row, then two sums.
void run_cross_entropy(const OpSplit& split, std::vector<SplitMember>& members) {
  at::Tensor greatest, exponentials, of_label;
  const at::Tensor& labels = members[0].in[1];
  const Op& op = members[0].op;
  const at::Tensor ignored =
      labels.eq(op.int_attribute("ignore_index", kIgnoredLabel)).unsqueeze(1);
  for (const SplitMember& member : members) {
    const at::Tensor own = at::amax(member.in[0].detach(), {1}, true);
    greatest = greatest.defined() ? at::maximum(greatest, own) : own;
  }
  for (const SplitMember& member : members) {
    const at::Tensor& scores = member.in[0];
    const OwnIndices mine = own_indices(labels.unsqueeze(1), split, member.units);
    const at::Tensor own = mine.own.logical_and(ignored.logical_not());
    const at::Tensor sum = at::exp(scores - greatest).sum(1, true);
    const at::Tensor label = at::gather(scores, 1, mine.local.masked_fill(own.logical_not(), 0))
                                 .masked_fill(own.logical_not(), 0);
    exponentials = exponentials.defined() ? exponentials + sum : sum;
    of_label = of_label.defined() ? of_label + label : label;
  }
  const at::Tensor log_sum = greatest + at::log(exponentials);
  at::Tensor weight = ignored.logical_not().to(at::kDouble);
  if (members[0].in.size() > 2) {
    const at::Tensor class_of = labels.to(at::kLong).unsqueeze(1).masked_fill(ignored, 0);
    weight = weight * at::take(members[0].in[2].detach(), class_of);
  }
  const at::Tensor losses = ((log_sum - of_label) * weight).squeeze(1);
  const std::string reduction = op.string_attribute("reduction", "mean");
  at::Tensor loss = reduction == "none" ? losses : losses.sum();
  if (reduction == "mean") loss = loss / weight.sum();
  for (SplitMember& member : members) {
    member.out = {loss};
    if (member.op.outputs.size() > 1) member.out.push_back(member.in[0] - log_sum);
  }
}

}  // namespace

at::Tensor renumbered(const at::Tensor& x, const OpSplit& split, int input, std::int64_t units) {
  const bool has_number =
      std::any_of(split.numbers.begin(), split.numbers.end(), [&](const MemberNumber& number) {
        return number.attribute.empty() && number.input == input;
      });
  if (!has_number) return x;
  const at::Tensor flat = x.to(at::kLong).reshape({-1}).contiguous();
  const std::vector<std::int64_t> ints(flat.data_ptr<std::int64_t>(),
                                       flat.data_ptr<std::int64_t>() + flat.numel());
  return at::tensor(member_ints(ints, split, input, units), at::kLong)
      .to(x.scalar_type())
      .reshape(x.sizes());
}

void run_split_members(const OpSplit& split, std::vector<SplitMember>& members) {
  if (!split.inside.empty()) return run_cross_entropy(split, members);
  for (SplitMember& member : members) member.out = run_member(split, member);
}

}  // namespace agpcs::testing
