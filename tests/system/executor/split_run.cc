// SPDX-License-Identifier: Apache-2.0
#include "tests/system/executor/split_run.h"

#include "runtime/torch/team/link.h"
#include "runtime/torch/team/member.h"
#include "tests/system/executor/split_member.h"
#include "tests/system/executor/team/member_threads.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <utility>

namespace agpcs::testing {
namespace {

using Kind = Placement::Kind;

at::Tensor random_like(const at::Tensor& x, std::uint64_t seed) {
  return at::randn(x.sizes(), at::detail::createCPUGenerator(seed), at::kDouble);
}

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
                  const OpSplit& split, const std::vector<SplitMember>& members) {
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
                    const OpSplit& split, const std::vector<SplitMember>& members) {
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

std::vector<SplitMember> members_of(const SplitInputs& inputs, const OpSplit& split, int count) {
  std::vector<SplitMember> members(static_cast<std::size_t>(count));
  const std::vector<UnitRange> ranges = uneven_ranges(split.units, count);
  for (std::size_t m = 0; m < members.size(); ++m) {
    SplitMember& member = members[m];
    member.units = ranges[m];
    member.op = member_op(inputs.op(), split, member.units.size());
    for (std::size_t i = 0; i < inputs.in.size(); ++i) {
      at::Tensor x = inputs.in[i];
      if (x.defined()) {
        x = placed(x, split.inputs[i], split, member.units, m, members.size());
        x = renumbered(x, split, static_cast<int>(i), member.units.size());
      }
      member.in.push_back(x);
    }
    require_gradients(member.in);
  }
  return members;
}

// Returns what a member has of the gradient of output `i`. That of a copy is a sum; members that
// reduce while they compute have all of it.
at::Tensor seed_for(const OpSplit& split, const std::vector<SplitMember>& members, std::size_t m,
                    std::size_t i, const at::Tensor& whole) {
  const Placement& output = split.outputs[i];
  const at::Tensor seed = seed_of(whole, i);
  if (output.kind == Kind::kPart) return part_of(seed, output, split.units, members[m].units);
  const bool summand = output.kind == Kind::kCopy && split.inside.empty();
  if (summand && m > 0) return at::zeros_like(seed);
  if (output.kind != Kind::kMean) return seed;
  return seed * (static_cast<double>(members[m].units.size()) / static_cast<double>(split.units));
}

Tensors combined_gradients(const OpSplit& split, const std::vector<SplitMember>& members,
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

// What members that reduce while they compute do on a thread each, and others one after the other.
void for_each_member(const OpSplit& split, std::size_t members,
                     const std::function<void(std::size_t member, TeamLink* link)>& work) {
  if (split.inside.empty()) {
    for (std::size_t m = 0; m < members; ++m) work(m, nullptr);
    return;
  }
  MemberThreads threads(members);
  threads.run([&](std::size_t m) {
    TeamLink link(threads.seat(m));
    work(m, &link);
  });
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
  std::vector<SplitMember> team = members_of(inputs, split, members);
  std::vector<Tensors> gradients(team.size());
  for_each_member(split, team.size(), [&](std::size_t m, TeamLink* link) {
    SplitMember& member = team[m];
    const OpCall call{member.op, member.in, nullptr, {}};
    member.out = own_outputs(member.op, run_member(split, member.units, call, link));
    if (!has_dual(split)) return;
    Tensors seeds;
    for (std::size_t i = 0; i < member.out.size(); ++i) {
      seeds.push_back(has_gradient(member.out[i]) ? seed_for(split, team, m, i, whole.outputs[i])
                                                  : at::Tensor());
    }
    gradients[m] = gradients_of(member.in, member.out, seeds);
  });
  Results results;
  for (std::size_t i = 0; i < whole.outputs.size(); ++i) {
    Tensors own;
    for (const SplitMember& member : team) own.push_back(member.out[i]);
    results.outputs.push_back(
        own[0].defined() ? combined(detached(own), split.outputs[i], whole.outputs[i], split, team)
                         : at::Tensor());
  }
  if (has_dual(split)) results.gradients = combined_gradients(split, team, gradients, inputs);
  return results;
}

}  // namespace agpcs::testing
