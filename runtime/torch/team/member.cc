// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/team/member.h"

#include "ir/base/check.h"
#include "runtime/torch/team/link.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace agpcs {
namespace {

using torch::autograd::AutogradContext;

Tensors run(const OpCall& call) { return find_kernel(call.op.domain, call.op.type)(call); }

/// Runs a kernel whose input `input` differs from what the host knows of it.
Tensors run_with(const OpCall& call, std::size_t input, at::Tensor x) {
  OpCall own = call;
  own.in[input] = std::move(x);
  Tensors host;
  if (call.host != nullptr) {
    host = *call.host;
    host[input] = at::Tensor();
    own.host = &host;
  }
  return run(own);
}

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
Tensors run_look_up(const OpCall& call, const OpSplit& split, UnitRange range) {
  const OwnIndices mine = own_indices(call.input(1), split, range);
  at::Tensor own = mine.own;
  const at::Tensor found =
      run_with(call, 1, mine.local.masked_fill(mine.own.logical_not(), 0)).front();
  if (call.op.type == "Gather") {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(found.dim()), 1);
    const std::int64_t axis = call.axis(0, call.input(0).dim());
    std::copy(own.sizes().begin(), own.sizes().end(), shape.begin() + axis);
    own = own.reshape(shape);
  }
  return {found.masked_fill(own.logical_not(), 0)};
}

Tensors run_one_hot(const OpCall& call, const OpSplit& split, UnitRange range) {
  const OwnIndices mine = own_indices(call.input(0), split, range);
  // no class of its own
  return run_with(call, 0, mine.local.masked_fill(mine.own.logical_not(), range.size()));
}

// Labels of others count as ignored ones.
Tensors run_negative_log(const OpCall& call, UnitRange range) {
  const at::Tensor& labels = call.input(1);
  const at::Tensor counts = labels.ne(call.op.int_attribute("ignore_index", kIgnoredLabel));
  const at::Tensor local = labels.to(at::kLong) - range.begin;
  const at::Tensor own = counts.logical_and(local >= 0).logical_and(local < range.size());
  Op op = call.op;
  op.attributes["ignore_index"] = kIgnoredLabel;
  const OpCall ours{op, call.in, call.host, call.random, call.labels_per_sample, call.evaluates};
  return run_with(ours, 1, local.masked_fill(own.logical_not(), kIgnoredLabel));
}

// Adds up what the members have. Each has the whole gradient of the sum, which is that of what it
// has added.
class SumOfMembers : public torch::autograd::Function<SumOfMembers> {
 public:
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& own, TeamLink* link) {
    return link->sum(own);
  }
  static Tensors backward(AutogradContext* /*context*/, const Tensors& gradients) {
    return {gradients[0], {}};
  }
};

// What all members have, for each to use in its own way: their gradients of it are summands.
class OwnUse : public torch::autograd::Function<OwnUse> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, TeamLink* link) {
    context->saved_data["link"] = reinterpret_cast<std::int64_t>(link);
    return x.view_as(x);
  }
  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    auto* link = reinterpret_cast<TeamLink*>(context->saved_data["link"].toInt());
    return {link->sum(gradients[0]), {}};
  }
};

/// The losses of rows whose scores lie in parts, and what follows from them.
struct RowsOfScores {
  at::Tensor log_sum;   // of the exponentials
  at::Tensor of_label;  // the score of the label; 0 where that is ignored
  at::Tensor all;       // the sum of the scores; undefined where labels are not smoothed
};

RowsOfScores reduce_rows(const OpCall& call, const OpSplit& split, UnitRange units,
                         const at::Tensor& ignored, bool smooths, TeamLink& link) {
  const at::Tensor& scores = call.input(0);
  const at::Tensor greatest = link.maximum(at::amax(scores.detach(), {1}, true));
  const OwnIndices mine = own_indices(call.input(1).unsqueeze(1), split, units);
  const at::Tensor others = mine.own.logical_and(ignored.logical_not()).logical_not();
  Tensors own = {at::exp(scores - greatest).sum(1, true),
                 at::gather(scores, 1, mine.local.masked_fill(others, 0)).masked_fill(others, 0)};
  if (smooths) own.push_back(scores.sum(1, true));
  const at::Tensor sums = SumOfMembers::apply(at::stack(own), &link);
  return {greatest + at::log(sums[0]), sums[1], smooths ? sums[2] : at::Tensor()};
}

/// Computes the loss of a vocabulary in parts, as the kernel does for a whole one.
Tensors run_cross_entropy(const OpCall& call, const OpSplit& split, UnitRange units,
                          TeamLink& link) {
  const at::Tensor &scores = call.input(0), &labels = call.input(1);
  const double smoothing = call.op.float_attribute("label_smoothing", 0);
  const at::Tensor ignored =
      labels.eq(call.op.int_attribute("ignore_index", kIgnoredLabel)).unsqueeze(1);
  const at::Tensor counted = ignored.logical_not().to(scores.scalar_type());
  const RowsOfScores rows = reduce_rows(call, split, units, ignored, smoothing != 0, link);
  at::Tensor weight = counted;
  if (call.has(2)) {
    const at::Tensor class_of = labels.to(at::kLong).unsqueeze(1).masked_fill(ignored, 0);
    weight = weight * at::take(call.in[2].detach(), class_of);
  }
  at::Tensor losses = (rows.log_sum - rows.of_label) * weight;
  if (smoothing != 0) {
    const at::Tensor of_all =
        (rows.log_sum - rows.all / static_cast<double>(split.units)) * counted;
    losses = (1 - smoothing) * losses + smoothing * of_all;
    weight = counted;
  }
  const std::string reduction = call.op.string_attribute("reduction", "mean");
  at::Tensor loss = reduction == "none" ? losses.squeeze(1) : losses.sum();
  if (call.labels_per_sample != nullptr) {
    loss = loss / (*call.labels_per_sample * static_cast<double>(call.random.samples));
  } else if (reduction == "mean") {
    loss = loss / weight.sum();
  }
  Tensors out = {loss};
  if (call.op.outputs.size() > 1 && call.op.outputs[1] != kNone) {
    out.push_back(scores - OwnUse::apply(rows.log_sum, &link));
  }
  return out;
}

}  // namespace

at::Tensor renumbered(const at::Tensor& x, const OpSplit& split, int input, std::int64_t units) {
  const bool has_number =
      std::any_of(split.numbers.begin(), split.numbers.end(), [&](const MemberNumber& number) {
        return number.attribute.empty() && number.input == input;
      });
  if (!has_number) return x;
  const at::Tensor flat = x.to(at::kCPU, at::kLong).reshape({-1}).contiguous();
  const std::vector<std::int64_t> ints(flat.data_ptr<std::int64_t>(),
                                       flat.data_ptr<std::int64_t>() + flat.numel());
  return at::tensor(member_ints(ints, split, input, units), at::kLong)
      .to(x.device(), x.scalar_type())
      .reshape(x.sizes());
}

Tensors run_member(const OpSplit& split, UnitRange units, const OpCall& call, TeamLink* link) {
  if (!split.inside.empty()) {
    AGPCS_CHECK(link != nullptr, "'{}' reduces inside", call.op.name);
    return run_cross_entropy(call, split, units, *link);
  }
  if (split.indices == kNone) return run(call);
  if (call.op.type == "OneHot") return run_one_hot(call, split, units);
  if (call.op.type == "NegativeLogLikelihoodLoss") return run_negative_log(call, units);
  return run_look_up(call, split, units);
}

}  // namespace agpcs
