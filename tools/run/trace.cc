// SPDX-License-Identifier: Apache-2.0
#include "tools/run/trace.h"

#include "cost_model/step/cost_table.h"
#include "ir/base/median.h"
#include "runtime/job/drift/expectation.h"
#include "runtime/support/message_tags.h"
#include "runtime/support/withdraw.h"
#include "tools/common/calibrated_cluster.h"
#include "tools/common/new_file.h"

#include <agpcs/digest.h>
#include <agpcs/drift.h>
#include <agpcs/step_times.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// One rank's part of the trace. Times are in seconds from the end of the step's report.
class RankSteps {
 public:
  explicit RankSteps(const Trainer& trainer)
      : times_(trainer.replayer().times()), ids_(trainer.replayer().instructions()) {
    const std::int64_t next = trainer.next_step();
    const std::int64_t first =
        std::max<std::int64_t>(0, next - static_cast<std::int64_t>(times_.capacity()));
    for (std::int64_t step = first; step < next; ++step) {
      if (report_end(step) > 0) kept_.push_back(step);
    }
  }

  const std::vector<std::int64_t>& kept() const { return kept_; }
  double seconds(std::int64_t step) const {
    std::int64_t begin = report_end(step), end = begin;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      const InstructionTime& time = times_.row(step)[i];
      if (time.end == 0) continue;
      begin = std::min(begin, time.begin);
      end = std::max(end, time.end);
    }
    return static_cast<double>(end - begin) * 1e-9;
  }
  double median_seconds() const {
    std::vector<double> all;
    for (const std::int64_t step : kept_) all.push_back(seconds(step));
    return all.empty() ? 0 : median(std::move(all));
  }
  /// Returns the kept step whose length is nearest to the median; the earlier of two equally near
  /// ones.
  std::int64_t typical_step() const {
    const double typical = median_seconds();
    std::int64_t best = kept_.empty() ? 0 : kept_.front();
    for (const std::int64_t step : kept_) {
      if (std::abs(seconds(step) - typical) < std::abs(seconds(best) - typical)) best = step;
    }
    return best;
  }
  /// Returns the medians of the quantities, then begin and end of each instruction of `step`.
  std::vector<double> figures(std::int64_t step, const Plan& plan) const {
    std::vector<double> figures = medians(plan);
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      const InstructionTime& time = times_.row(step)[i];
      const bool ran = time.end != 0 && !kept_.empty();
      figures.push_back(ran ? static_cast<double>(time.begin - report_end(step)) * 1e-9 : 0);
      figures.push_back(ran ? static_cast<double>(time.end - report_end(step)) * 1e-9 : 0);
    }
    return figures;
  }

 private:
  std::int64_t report_end(std::int64_t step) const {
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (ids_[i].opcode == Opcode::kReport) return times_.row(step)[i].end;
    }
    return 0;
  }
  std::vector<double> medians(const Plan& plan) const {
    std::vector<double> result;
    for (int q = 0; q < kQuantityCount; ++q) {
      std::vector<double> seconds;
      for (const std::int64_t step : kept_) {
        double sum = 0;
        for (std::size_t i = 0; i < ids_.size(); ++i) {
          const InstructionTime& time = times_.row(step)[i];
          if (quantity_of(plan, ids_[i]) != q) continue;
          sum += static_cast<double>(time.end - time.begin) * 1e-9;
        }
        seconds.push_back(sum);
      }
      result.push_back(seconds.empty() ? 0 : median(std::move(seconds)));
    }
    return result;
  }

  const StepTimes& times_;
  const std::vector<InstructionId>& ids_;
  std::vector<std::int64_t> kept_;
};

Status move(Transport& transport, Stream stream, double* data, std::size_t count, int peer,
            std::chrono::milliseconds limit) {
  const Buffer buffer{data, count * sizeof(double), DType::kFp64, false};
  AGPCS_TRY(const Ticket ticket, stream == Stream::kSend ? transport.send(buffer, peer, kTraceTag)
                                                         : transport.recv(buffer, peer, kTraceTag));
  const Status moved = transport.wait(stream, ticket, limit);
  return moved.ok() ? moved : withdraw(transport, moved, limit);
}

const std::vector<Instruction>& program_of(const Plan& plan, int rank) {
  const int program = plan.program_of(plan.stage_of_rank(rank));
  return plan.programs[static_cast<std::size_t>(program)].instructions;
}

void add_rank(MeasuredStep& step, const Plan& plan, int rank, const std::vector<double>& figures) {
  auto& seconds = step.seconds.emplace_back();
  std::copy(figures.begin(), figures.begin() + kQuantityCount, seconds.begin());
  const std::vector<Instruction>& program = program_of(plan, rank);
  for (std::size_t i = 0; i < program.size(); ++i) {
    const double begin = figures[kQuantityCount + 2 * i];
    const double end = figures[kQuantityCount + 2 * i + 1];
    if (begin != end) step.timeline.push_back({rank, program[i].id, begin, end});
  }
}

void start_at_zero(std::vector<TimelineEvent>& timeline) {
  double first = timeline.empty() ? 0 : timeline.front().start;
  for (const TimelineEvent& event : timeline) first = std::min(first, event.start);
  for (TimelineEvent& event : timeline) {
    event.start -= first;
    event.end -= first;
  }
  std::stable_sort(
      timeline.begin(), timeline.end(),
      [](const TimelineEvent& a, const TimelineEvent& b) { return a.start < b.start; });
}

Result<Estimate> planned_step(const Plan& plan, const Graph& graph, const Cluster& cluster) {
  AGPCS_TRY(const CostTable costs, CostTable::make(graph, cluster, plan.training));
  return simulate(plan, graph, cluster, costs, {.timeline = true});
}

}  // namespace

Result<MeasuredStep> gather_step(const Trainer& trainer, Transport& transport,
                                 std::chrono::milliseconds limit) {
  const Plan& plan = trainer.plan();
  const int rank = transport.rank();
  const RankSteps own(trainer);
  double chosen = static_cast<double>(own.typical_step());
  MeasuredStep step;
  if (rank != 0) {
    AGPCS_RETURN_IF_ERROR(move(transport, Stream::kRecv, &chosen, 1, 0, limit));
    std::vector<double> figures = own.figures(static_cast<std::int64_t>(chosen), plan);
    AGPCS_RETURN_IF_ERROR(move(transport, Stream::kSend, figures.data(), figures.size(), 0, limit));
    return step;
  }
  step.step = static_cast<std::int64_t>(chosen);
  step.steps = static_cast<std::int64_t>(own.kept().size());
  step.step_seconds = own.median_seconds();
  for (int r = 0; r < transport.size(); ++r) {
    std::vector<double> figures;
    if (r == 0) {
      figures = own.figures(step.step, plan);
    } else {
      figures.resize(kQuantityCount + 2 * program_of(plan, r).size());
      AGPCS_RETURN_IF_ERROR(move(transport, Stream::kSend, &chosen, 1, r, limit));
      AGPCS_RETURN_IF_ERROR(
          move(transport, Stream::kRecv, figures.data(), figures.size(), r, limit));
    }
    add_rank(step, plan, r, figures);
  }
  start_at_zero(step.timeline);
  return step;
}

Result<std::optional<Cluster>> prepare_trace(const Plan& plan, const RunOptions& options) {
  if (options.trace.empty()) return std::optional<Cluster>();
  AGPCS_RETURN_IF_ERROR(check_can_be_written(options.trace));
  const std::string& path = options.trace_cluster.empty() ? options.replan : options.trace_cluster;
  if (path.empty()) return std::optional<Cluster>();
  AGPCS_TRY(CalibratedCluster calibrated,
            read_calibrated_cluster(path, [&] { return plan.training.precision; }));
  const std::string digest = digest_of(print_cluster(calibrated.file.cluster));
  if (digest != plan.cluster_digest) {
    return invalid_input(
        fmt::format("{}: error: the plan was made for a cluster with digest {}, this one has {}\n"
                    "  hint: the planned step is simulated on the cluster file of the plan",
                    path, plan.cluster_digest, digest));
  }
  return std::optional(std::move(calibrated.file.cluster));
}

Status write_trace(const Trainer& trainer, const Graph& graph, const Cluster* cluster,
                   const RunOptions& options, Transport& transport, Console console) {
  AGPCS_TRY(const MeasuredStep step,
            gather_step(trainer, transport, milliseconds_of(options.timeout)));
  if (transport.rank() != 0) return {};
  Estimate planned;
  bool simulated = false;
  if (cluster != nullptr) {
    auto estimate = planned_step(trainer.plan(), graph, *cluster);
    simulated = estimate.ok();
    if (simulated) {
      planned = std::move(*estimate);
    } else {
      console.err << fmt::format("warning: {}: no planned step beside the measured one: {}\n",
                                 options.trace, estimate.status().message());
    }
  }
  AGPCS_RETURN_IF_ERROR(
      write_file(options.trace,
                 measured_trace(trainer.plan(), step, simulated ? &planned : nullptr), console));
  console.err << fmt::format(
      "{}: step {}{}; open it in https://ui.perfetto.dev, or: agpcs-plan drift {} {}\n",
      options.trace, step.step, simulated ? ", measured and planned" : "", options.plan,
      options.trace);
  return {};
}

}  // namespace agpcs
