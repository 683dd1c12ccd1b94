// SPDX-License-Identifier: Apache-2.0
#include "tests/system/executor/split_run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace agpcs::testing {
namespace {

using Kind = Placement::Kind;

at::Tensor random_like(const at::Tensor& x, std::uint64_t seed) {
  return at::randn(x.sizes(), at::detail::createCPUGenerator(seed), at::kDouble);
}

// The tensors of one member, or of the whole.
struct Member {
  UnitRange units;
  Op op;
  Tensors in, out;
};

Shape shape_of(const at::Tensor& x) {
  Shape shape;
  for (const std::int64_t extent : x.sizes()) shape.push_back({extent, 0});
  return shape;
}

Tensor tensor_of(std::string name, const at::Tensor& x, TensorKind kind) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.type = dtype_of(x.scalar_type());
  tensor.shape = shape_of(x);
  tensor.kind = kind;
  return tensor;
}

// Returns whether a model would have `x` as a constant: axes, extents, a single number.
bool is_constant(const at::Tensor& x) {
  const bool ints = x.scalar_type() == at::kLong || x.scalar_type() == at::kInt;
  return x.dim() <= 1 && (ints || x.numel() == 1);
}

Tensors run_kernel(const Op& op, const Tensors& in) {
  const OpCall call{op, in, nullptr, {}};
  Tensors out = find_kernel(op.domain, op.type)(call);
  out.resize(op.outputs.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (op.outputs[i] == kNone) out[i] = at::Tensor();
  }
  return out;
}

void require_gradients(Tensors& in) {
  for (at::Tensor& x : in) {
    if (x.defined()) x = x.detach().clone().set_requires_grad(x.is_floating_point());
  }
}

bool has_gradient(const at::Tensor& out) { return out.defined() && out.requires_grad(); }

at::Tensor seed_of(const at::Tensor& whole, std::size_t output) {
  return random_like(whole, 100 + output);
}

// Runs the backward pass of `out` from `seeds`, and returns the gradients of `in`.
Tensors gradients_of(const Tensors& in, const Tensors& out, const Tensors& seeds) {
  at::Tensor sum;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!has_gradient(out[i]) || !seeds[i].defined()) continue;
    const at::Tensor product = (out[i] * seeds[i]).sum();
    sum = sum.defined() ? sum + product : product;
  }
  if (sum.defined()) sum.backward();
  Tensors gradients;
  for (const at::Tensor& x : in) {
    gradients.push_back(x.defined() && x.requires_grad() ? x.grad() : at::Tensor());
  }
  return gradients;
}

Tensors detached(Tensors tensors) {
  for (at::Tensor& x : tensors) {
    if (x.defined()) x = x.detach();
  }
  return tensors;
}

at::Tensor part_of(const at::Tensor& x, const Placement& part, std::int64_t units,
                   UnitRange range) {
  Tensors pieces;
  for (const UnitRange& piece : elements_of(part, units, range)) {
    pieces.push_back(x.narrow(part.axis, piece.begin, piece.size()));
  }
  return at::cat(pieces, part.axis);
}

// Returns `x` as the sum of `members` tensors, of which this is number `member`.
at::Tensor summand_of(const at::Tensor& x, std::size_t member, std::size_t members) {
  if (member + 1 < members) return random_like(x, 7 + member);
  at::Tensor rest = x;
  for (std::size_t i = 0; i + 1 < members; ++i) rest = rest - random_like(x, 7 + i);
  return rest;
}

at::Tensor placed(const at::Tensor& x, const Placement& placement, const OpSplit& split,
                  UnitRange range, std::size_t member, std::size_t members) {
  if (placement.kind == Kind::kPart) return part_of(x, placement, split.units, range);
  return placement.kind == Kind::kSum ? summand_of(x, member, members) : x;
}

void expect_same(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() ||
      !at::allclose(a.to(at::kDouble), b.to(at::kDouble), 1e-9, 1e-12, true)) {
    throw std::runtime_error("members that should have copies differ");
  }
}

at::Tensor joined(const Tensors& parts, const Placement& part, const at::Tensor& like,
                  const OpSplit& split, const std::vector<Member>& members) {
  at::Tensor whole = at::zeros(like.sizes(), parts[0].options().requires_grad(false));
  for (std::size_t m = 0; m < members.size(); ++m) {
    std::int64_t from = 0;
    for (const UnitRange& piece : elements_of(part, split.units, members[m].units)) {
      whole.narrow(part.axis, piece.begin, piece.size())
          .copy_(parts[m].narrow(part.axis, from, piece.size()));
      from += piece.size();
    }
    if (from != parts[m].size(part.axis)) throw std::runtime_error("a part has another extent");
  }
  return whole;
}

// Returns the whole of what the members have.
at::Tensor combined(const Tensors& tensors, const Placement& placement, const at::Tensor& like,
                    const OpSplit& split, const std::vector<Member>& members) {
  if (placement.kind == Kind::kPart) return joined(tensors, placement, like, split, members);
  if (placement.kind == Kind::kCopy) {
    for (const at::Tensor& other : tensors) expect_same(tensors[0], other);
    return tensors[0];
  }
  at::Tensor result;
  for (std::size_t m = 0; m < tensors.size(); ++m) {
    at::Tensor x = tensors[m];
    if (placement.kind == Kind::kMean) {
      x = x * (static_cast<double>(members[m].units.size()) / static_cast<double>(split.units));
    }
    if (!result.defined()) {
      result = x;
    } else if (placement.kind == Kind::kMax) {
      result = at::maximum(result, x);
    } else {
      result = placement.kind == Kind::kMin ? at::minimum(result, x) : result + x;
    }
  }
  return result;
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

Tensors run_member(const OpSplit& split, const Member& member) {
  if (split.indices == kNone) return run_kernel(member.op, member.in);
  const std::string& type = member.op.type;
  if (type == "OneHot") return run_one_hot(member.op, member.in, split, member.units);
  if (type == "NegativeLogLikelihoodLoss")
    return run_negative_log(member.op, member.in, member.units);
  return run_look_up(member.op, member.in, split, member.units);
}

// Computes what one operator over the members computes together: the loss of a vocabulary in parts.
// Reduces the maximum of each row, then two sums.
void run_cross_entropy(const OpSplit& split, std::vector<Member>& members) {
  at::Tensor greatest, exponentials, of_label;
  const at::Tensor& labels = members[0].in[1];
  const Op& op = members[0].op;
  const at::Tensor ignored =
      labels.eq(op.int_attribute("ignore_index", kIgnoredLabel)).unsqueeze(1);
  for (const Member& member : members) {
    const at::Tensor own = at::amax(member.in[0].detach(), {1}, true);
    greatest = greatest.defined() ? at::maximum(greatest, own) : own;
  }
  for (const Member& member : members) {
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
  for (Member& member : members) {
    member.out = {loss};
    if (member.op.outputs.size() > 1) member.out.push_back(member.in[0] - log_sum);
  }
}

std::vector<Member> members_of(const SplitInputs& inputs, const OpSplit& split, int count) {
  std::vector<Member> members(static_cast<std::size_t>(count));
  const std::vector<UnitRange> ranges = uneven_ranges(split.units, count);
  for (std::size_t m = 0; m < members.size(); ++m) {
    Member& member = members[m];
    member.units = ranges[m];
    member.op = member_op(inputs.op(), split, member.units.size());
    for (std::size_t i = 0; i < inputs.in.size(); ++i) {
      at::Tensor x = inputs.in[i];
      if (x.defined()) {
        x = placed(x, split.inputs[i], split, member.units, m, members.size());
        const bool renumbered = std::any_of(
            split.numbers.begin(), split.numbers.end(), [&](const MemberNumber& number) {
              return number.attribute.empty() && number.input == static_cast<int>(i);
            });
        if (renumbered) {  // a depth may be of any type and is one number
          const at::Tensor flat = x.to(at::kLong).reshape({-1}).contiguous();
          const std::vector<std::int64_t> ints(flat.data_ptr<std::int64_t>(),
                                               flat.data_ptr<std::int64_t>() + flat.numel());
          x = at::tensor(member_ints(ints, split, static_cast<int>(i), member.units.size()),
                         at::kLong)
                  .to(x.scalar_type())
                  .reshape(x.sizes());
        }
      }
      member.in.push_back(x);
    }
    require_gradients(member.in);
  }
  return members;
}

// Returns what a member has of the gradient of output `i`.
at::Tensor seed_for(const OpSplit& split, const std::vector<Member>& members, std::size_t m,
                    std::size_t i, const at::Tensor& whole) {
  const Placement& output = split.outputs[i];
  const at::Tensor seed = seed_of(whole, i);
  if (output.kind == Kind::kPart) return part_of(seed, output, split.units, members[m].units);
  if (output.kind == Kind::kCopy) return m == 0 ? seed : at::zeros_like(seed);
  if (output.kind != Kind::kMean) return seed;
  return seed * (static_cast<double>(members[m].units.size()) / static_cast<double>(split.units));
}

Tensors combined_gradients(const OpSplit& split, const std::vector<Member>& members,
                           const std::vector<Tensors>& gradients, const SplitInputs& inputs) {
  Tensors whole;
  for (std::size_t i = 0; i < inputs.in.size(); ++i) {
    const auto undefined = [i](const Tensors& of) { return !of[i].defined(); };
    if (std::all_of(gradients.begin(), gradients.end(), undefined)) {
      whole.emplace_back();
      continue;
    }
    Tensors own;
    for (std::size_t m = 0; m < members.size(); ++m) {
      const at::Tensor& gradient = gradients[m][i];
      own.push_back(gradient.defined() ? gradient : at::zeros_like(members[m].in[i].detach()));
    }
    whole.push_back(
        combined(own, *gradient_placement(split.inputs[i]), inputs.in[i], split, members));
  }
  return whole;
}

// The backward pass of members that reduce while they compute is one, as their forward pass is.
Tensors gradients_together(const OpSplit& split, const std::vector<Member>& members,
                           const Results& whole, const SplitInputs& inputs) {
  at::Tensor sum = (members[0].out[0] * seed_of(whole.outputs[0], 0)).sum();
  for (std::size_t m = 0; m < members.size() && members[0].out.size() > 1; ++m) {
    sum = sum + (members[m].out[1] * seed_for(split, members, m, 1, whole.outputs[1])).sum();
  }
  sum.backward();
  std::vector<Tensors> gradients;
  for (const Member& member : members) {
    Tensors own(member.in.size());
    own[0] = member.in[0].grad();
    gradients.push_back(std::move(own));
  }
  return combined_gradients(split, members, gradients, inputs);
}

}  // namespace

SplitInputs split_inputs(Op op, const Tensors& in) {
  SplitInputs inputs;
  for (const at::Tensor& x : in) {
    inputs.in.push_back(x.defined() && x.is_floating_point() ? x.to(at::kDouble) : x);
  }
  const Tensors out = run_kernel(op, inputs.in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const at::Tensor& x = inputs.in[i];
    const bool known = x.defined() && is_constant(x);
    inputs.graph.tensors.push_back(
        x.defined() ? tensor_of(fmt::format("in{}", i), x,
                                known ? TensorKind::kConstant : TensorKind::kInput)
                    : Tensor());
    if (!known) continue;
    std::vector<std::byte>& bytes = inputs.graph.tensors.back().constant.bytes;
    bytes.resize(x.nbytes());
    if (!bytes.empty()) std::memcpy(bytes.data(), x.contiguous().data_ptr(), bytes.size());
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (op.outputs[i] == kNone) continue;
    op.outputs[i] = static_cast<TensorId>(inputs.graph.tensors.size());
    inputs.graph.tensors.push_back(
        tensor_of(fmt::format("out{}", i), out[i], TensorKind::kActivation));
  }
  inputs.graph.ops.push_back(std::move(op));
  return inputs;
}

Results run_whole(const SplitInputs& inputs) {
  Tensors in = inputs.in;
  require_gradients(in);
  const Tensors out = run_kernel(inputs.op(), in);
  Tensors seeds;
  for (std::size_t i = 0; i < out.size(); ++i) {
    seeds.push_back(has_gradient(out[i]) ? seed_of(out[i], i) : at::Tensor());
  }
  return {detached(out), gradients_of(in, out, seeds)};
}

std::vector<UnitRange> uneven_ranges(std::int64_t units, int members) {
  if (units == 0) return std::vector<UnitRange>(static_cast<std::size_t>(members));
  const std::vector<std::int64_t> shares =
      members == 2 ? std::vector<std::int64_t>{5, 3} : std::vector<std::int64_t>{5, 4, 3};
  std::int64_t all = 0, until = 0;
  for (const std::int64_t share : shares) all += share;
  std::vector<UnitRange> ranges;
  for (std::int64_t m = 0; m < members; ++m) {
    const std::int64_t begin = m == 0 ? 0 : ranges.back().end;
    until += shares[static_cast<std::size_t>(m)];
    const std::int64_t left = members - 1 - m;  // each of them needs a unit
    const std::int64_t end = std::clamp((units * until + all / 2) / all, begin + 1, units - left);
    ranges.push_back({begin, end});
  }
  return ranges;
}

bool has_dual(const OpSplit& split) {
  return std::all_of(split.outputs.begin(), split.outputs.end(), [](const Placement& output) {
    return gradient_placement(output).has_value();
  });
}

Results run_members(const SplitInputs& inputs, const OpSplit& split, int members,
                    const Results& whole) {
  std::vector<Member> team = members_of(inputs, split, members);
  Results results;
  if (split.inside.empty()) {
    for (Member& member : team) member.out = run_member(split, member);
  } else {
    run_cross_entropy(split, team);
  }
  for (std::size_t i = 0; i < whole.outputs.size(); ++i) {
    Tensors own;
    for (const Member& member : team) own.push_back(member.out[i]);
    results.outputs.push_back(
        own[0].defined() ? combined(detached(own), split.outputs[i], whole.outputs[i], split, team)
                         : at::Tensor());
  }
  if (!has_dual(split)) return results;
  if (!split.inside.empty()) {
    results.gradients = gradients_together(split, team, whole, inputs);
    return results;
  }
  std::vector<Tensors> gradients;
  for (std::size_t m = 0; m < team.size(); ++m) {
    Tensors seeds;
    for (std::size_t i = 0; i < team[m].out.size(); ++i) {
      seeds.push_back(has_gradient(team[m].out[i]) ? seed_for(split, team, m, i, whole.outputs[i])
                                                   : at::Tensor());
    }
    gradients.push_back(gradients_of(team[m].in, team[m].out, seeds));
  }
  results.gradients = combined_gradients(split, team, gradients, inputs);
  return results;
}

}  // namespace agpcs::testing
