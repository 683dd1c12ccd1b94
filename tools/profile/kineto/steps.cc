// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/kineto/steps.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace agpcs {
namespace {

using Kind = TracedCall::Kind;

class StepReader {
 public:
  StepReader(const KinetoTrace& trace, std::size_t step, std::span<const std::size_t> passes)
      : trace_(trace), step_(step), passes_(passes) {}

  TracedStep read() {
    const TracedCall& call = trace_.calls[step_];
    step_out_.wall = call.end - call.start;
    visit_children(step_, -1);
    add_backward();
    give_views_away();
    return std::move(step_out_);
  }

 private:
  template <typename Function>
  void each_child(std::size_t parent, Function function) {
    for (std::size_t i = parent + 1; i < trace_.calls[parent].after; i = trace_.calls[i].after) {
      function(i);
    }
  }

  void visit_children(std::size_t parent, int module) {
    each_child(parent, [&](std::size_t i) { visit(i, module); });
  }

  void visit(std::size_t i, int module) {
    const TracedCall& call = trace_.calls[i];
    switch (call.kind) {
      case Kind::kModule:
        return visit_children(i, call.name);
      case Kind::kUpdate:
      case Kind::kBegin:
        return visit_optimizer(i);
      case Kind::kBackward:
      case Kind::kStep:
        return;
      case Kind::kLaunch:
        step_out_.unknown[std::string(trace_.name_of(call))] += trace_.seconds(i);
        return;
      case Kind::kOperator:
        visit_operator(i, module);
    }
  }

  void visit_optimizer(std::size_t i) {
    const TracedCall& call = trace_.calls[i];
    (call.kind == Kind::kUpdate ? step_out_.update : step_out_.begin) += trace_.seconds(i);
    if (call.kind != Kind::kUpdate) return;
    step_out_.optimizer = trace_.name_of(call);
    for (std::size_t j = i + 1; j < call.after; ++j) {
      const std::string_view name = trace_.name_of(trace_.calls[j]);
      step_out_.momentum |= name == "aten::mul_" || name == "aten::_foreach_mul_";
    }
  }

  /// Adds an operation for the call or for the calls in it.
  void visit_operator(std::size_t i, int module) {
    const TracedCall& call = trace_.calls[i];
    const AtenOperator* row = find_aten(trace_.name_of(call));
    if (row != nullptr && row->output != AtenOperator::Output::kView) {
      return add(i, call.after, row, module, trace_.seconds(i));
    }
    const std::size_t before = works_;
    double own = trace_.seconds(i);
    each_child(i, [&](std::size_t child) {
      if (trace_.calls[child].kind == Kind::kLaunch) return;  // its kernels are the operator's own
      own -= trace_.seconds(child);
      visit(child, module);
    });
    own = std::max(own, 0.0);
    if (works_ > before) {
      TracedOp& last = last_work();
      last.forward += own;
      const auto index = static_cast<std::size_t>(&last - step_out_.ops.data());
      if (call.sequence >= 0) by_sequence_.try_emplace(call.sequence, index);
    } else if (row != nullptr) {
      add(i, i + 1, row, module, own);
    } else if (own > 0) {
      step_out_.unknown[std::string(trace_.name_of(call))] += own;
    }
  }

  void add(std::size_t from, std::size_t to, const AtenOperator* row, int module, double seconds) {
    const auto index = step_out_.ops.size();
    for (std::size_t i = from; i < to; ++i) {
      const TracedCall& call = trace_.calls[i];
      if (call.sequence >= 0 && call.kind == Kind::kOperator) by_sequence_[call.sequence] = index;
    }
    step_out_.ops.push_back({row, trace_.calls[from].inputs, module, seconds, 0});
    works_ += row->output != AtenOperator::Output::kView ? 1 : 0;
  }

  TracedOp& last_work() {
    auto at = step_out_.ops.rbegin();
    while (at->row->output == AtenOperator::Output::kView) ++at;
    return *at;
  }

  void add_backward() {
    std::unordered_map<std::int64_t, std::size_t> last;  // operator by thread
    for (const std::size_t i : passes_) {
      const TracedCall& call = trace_.calls[i];
      const auto at = by_sequence_.find(call.sequence);
      if (call.sequence >= 0 && at != by_sequence_.end()) {
        last[call.thread] = at->second;
      } else if (!trace_.name_of(call).ends_with("AccumulateGrad") || !last.contains(call.thread)) {
        step_out_.unknown[std::string(trace_.name_of(call))] += trace_.seconds(i);
        continue;
      }
      step_out_.ops[last[call.thread]].backward += trace_.seconds(i);
    }
  }

  void give_views_away() {
    std::vector<TracedOp> works;
    double forward = 0, backward = 0;  // of views before the first operator
    for (const TracedOp& op : step_out_.ops) {
      const bool view = op.row->output == AtenOperator::Output::kView;
      if (view && works.empty()) {
        forward += op.forward;
        backward += op.backward;
      } else if (view) {
        works.back().forward += op.forward;
        works.back().backward += op.backward;
      } else {
        works.push_back(op);
      }
    }
    if (!works.empty()) {
      works.front().forward += forward;
      works.front().backward += backward;
    }
    step_out_.ops = std::move(works);
  }

  const KinetoTrace& trace_;
  const std::size_t step_;
  const std::span<const std::size_t> passes_;  // its backward passes on all threads, by their start
  TracedStep step_out_;
  std::size_t works_ = 0;  // operators that are no views
  std::unordered_map<std::int64_t, std::size_t> by_sequence_;
};

/// Returns the outermost backward passes on all threads, by their start.
std::vector<std::size_t> backward_passes(const KinetoTrace& trace) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < trace.calls.size(); ++i) {
    if (trace.calls[i].kind != Kind::kBackward) continue;
    found.push_back(i);
    i = trace.calls[i].after - 1;
  }
  std::stable_sort(found.begin(), found.end(), [&](std::size_t a, std::size_t b) {
    const TracedCall &x = trace.calls[a], &y = trace.calls[b];
    return std::tuple(x.start, x.thread) < std::tuple(y.start, y.thread);
  });
  return found;
}

}  // namespace

double TracedStep::busy() const {
  double sum = begin + update;
  for (const TracedOp& op : ops) sum += op.forward + op.backward;
  for (const auto& [name, seconds] : unknown) sum += seconds;
  return sum;
}

std::vector<TracedStep> steps_of(const KinetoTrace& trace) {
  const std::vector<std::size_t> passes = backward_passes(trace);
  const auto first_from = [&](double time) {
    return std::lower_bound(passes.begin(), passes.end(), time, [&](std::size_t pass, double t) {
      return trace.calls[pass].start < t;
    });
  };
  std::vector<TracedStep> steps;
  for (std::size_t i = 0; i < trace.calls.size(); ++i) {
    const TracedCall& call = trace.calls[i];
    if (call.kind != Kind::kStep) continue;
    const std::span<const std::size_t> inside(first_from(call.start), first_from(call.end));
    steps.push_back(StepReader(trace, i, inside).read());
  }
  return steps;
}

}  // namespace agpcs
