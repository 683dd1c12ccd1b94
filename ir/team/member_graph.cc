// SPDX-License-Identifier: Apache-2.0
#include "ir/team/member_graph.h"

#include "ir/base/at.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

class MemberGraph {
 public:
  MemberGraph(const Graph& graph, const TeamBody& body, std::size_t member)
      : whole_(graph), body_(body), member_(member) {
    for (const TeamOp& op : body.ops) ops_.push_back(op.op);
  }

  Graph run() {
    out_.name = whole_.name;
    tensor_of_.assign(body_.forms.size(), kNone);
    const std::vector<int> first = first_uses(body_);
    for (std::size_t begin = 0, end = 0; begin < body_.forms.size(); begin = end) {
      while (end < body_.forms.size() && body_.forms[end].tensor == body_.forms[begin].tensor) {
        ++end;
      }
      add_tensors(begin, end);
    }
    const auto before = [&](const Made& made) { return first[at(made.form)]; };
    std::ranges::stable_sort(made_, {}, before);
    auto next = made_.begin();
    for (int i = 0; i <= static_cast<int>(body_.ops.size()); ++i) {
      for (; next != made_.end() && before(*next) == i; ++next) add_exchange(*next);
      if (i < static_cast<int>(body_.ops.size())) add_operator(body_.ops[at(i)]);
    }
    link_graph(out_);
    return std::move(out_);
  }

 private:
  /// A form that is made of another tensor of the member's graph.
  struct Made {
    int form = kNone;
    TensorId from = kNone;
    TeamExchange forward = TeamExchange::kNothing, backward = TeamExchange::kNothing;
  };

  const TeamForm& form(std::size_t id) const { return body_.forms[id]; }

  bool is_made_here(TensorId id) const {
    const OpId producer = whole_.tensor(id).producer;
    return producer != kNone && std::ranges::binary_search(ops_, producer);
  }

  TensorId add_tensor(const Tensor& tensor, const TeamPlacement& placement, bool plain) {
    Tensor own = tensor;
    own.consumers.clear();
    own.producer = kNone;
    if (!plain) own.name = fmt::format("{} as {}", tensor.name, team_placement_text(placement));
    if (placement.kind == Placement::Kind::kPart) {
      const Division& division = body_.divisions[at(placement.division)];
      std::int64_t extent = 0;
      for (const std::int64_t band : placement.bands)
        extent += division.range(member_, band).size();
      own.shape[at(placement.axis)].fixed = extent;
    }
    out_.tensors.push_back(std::move(own));
    return static_cast<TensorId>(out_.tensors.size()) - 1;
  }

  /// Adds the forms from `begin` to `end`, which are those of one tensor.
  void add_tensors(std::size_t begin, std::size_t end) {
    const TensorId id = form(begin).tensor;
    const Tensor& tensor = whole_.tensor(id);
    std::size_t plain = begin;
    for (std::size_t i = begin; i < end; ++i) {
      if (form(i).placement == TeamPlacement()) plain = i;
    }
    const bool comes =
        !is_made_here(id) && !has_gradient(tensor) &&
        (tensor.kind == TensorKind::kInput || tensor.kind == TensorKind::kActivation);
    // What comes whole, and is read in parts alone.
    const bool apart = comes && form(plain).placement != TeamPlacement();
    const TensorId base = apart ? add_tensor(tensor, {}, true) : kNone;
    for (std::size_t i = begin; i < end; ++i) {
      const TeamForm& one = form(i);
      const int from = static_cast<int>(i);
      const TeamExchange forward = forward_exchange(body_, from);
      if (tensor.kind == TensorKind::kParameter && one.from != kNone &&
          forward == TeamExchange::kNothing) {
        tensor_of_[i] = tensor_of_[at(one.from)];  // its gradient goes to the same bucket
        continue;
      }
      tensor_of_[i] = add_tensor(tensor, one.placement, i == plain && !apart);
      Tensor& own = out_.tensors.back();
      if (one.from != kNone) {
        own.kind = TensorKind::kActivation;
        made_.push_back(
            {from, tensor_of_[at(one.from)], forward, backward_exchange(whole_, body_, from)});
      } else if (comes && i != plain) {
        own.kind = TensorKind::kActivation;
        made_.push_back({from, tensor_of_[plain], exchange_between({}, one.placement)});
      } else if (apart) {
        own.kind = TensorKind::kActivation;
        made_.push_back({from, base, exchange_between({}, one.placement)});
      }
    }
  }

  void add_exchange(const Made& made) {
    Op op;
    const TensorId to = tensor_of_[at(made.form)];
    op.name = fmt::format("{} of {}", name_of(made.forward), out_.tensor(to).name);
    op.domain = kExchangeDomain;
    op.type = name_of(made.forward);
    op.attributes[kGradientExchange] = std::string(name_of(made.backward));
    op.inputs = {made.from};
    op.outputs = {to};
    out_.ops.push_back(std::move(op));
  }

  void add_operator(const TeamOp& op) {
    Op own = whole_.op(op.op);
    if (op.split != kNone && op.division != kNone) {
      const OpSplit split = splits_of(whole_, op.op)[at(op.split)];
      const Division& division = body_.divisions[at(op.division)];
      own = member_op(own, split, division.range(member_, split.units).size());
    }
    own.fused = kNone;
    const auto number = [&](const std::vector<int>& forms, std::vector<TensorId>& ids) {
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] != kNone) ids[i] = tensor_of_[at(forms[i])];
      }
    };
    number(op.inputs, own.inputs);
    number(op.outputs, own.outputs);
    out_.ops.push_back(std::move(own));
  }

  const Graph& whole_;
  const TeamBody& body_;
  std::size_t member_;
  std::vector<OpId> ops_;
  std::vector<TensorId> tensor_of_;  // by form
  std::vector<Made> made_;           // by form; then in the order of operators that need them
  Graph out_;
};

}  // namespace

bool is_exchange(const Op& op) { return op.domain == kExchangeDomain; }

Graph member_graph(const Graph& graph, const TeamBody& body, std::size_t member) {
  return MemberGraph(graph, body, member).run();
}

}  // namespace agpcs
