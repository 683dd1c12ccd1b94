// SPDX-License-Identifier: Apache-2.0
// Draws the timeline of a step. Each rank has a lane for computing and a thinner one for
// communication. Time is cut into columns; a column shows what took most of its time. So the
// drawing has at most ranks x columns pieces, for any number of instructions.
#include "ir/base/units.h"
#include "tools/common/svg.h"
#include "tools/plan/report/report_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace agpcs {
namespace {

constexpr double kComputeHeight = 11, kMoveHeight = 6;
constexpr std::size_t kLaneColumns = 800;
constexpr int kMostRanks = 32;

/// The sorts of activity that the chart distinguishes, in the legend's order.
enum Sort : std::size_t { kForward, kBackward, kUpdate, kTransfer, kReduce, kSorts };
constexpr std::array<std::string_view, kSorts> kClasses = {"forward", "backward", "update",
                                                           "transfer", "reduce"};

Sort sort_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::kForward:
      return kForward;
    case Opcode::kBackward:
    case Opcode::kBackwardInput:
    case Opcode::kBackwardWeight:
      return kBackward;
    case Opcode::kUpdate:
      return kUpdate;
    case Opcode::kAllReduce:
    case Opcode::kReduceScatter:
    case Opcode::kAllGather:
    case Opcode::kGatherForward:
    case Opcode::kGatherBackward:
    case Opcode::kNorm:
    case Opcode::kReport:
      return kReduce;
    default:
      return kTransfer;
  }
}

/// The columns of a lane, each with the part of it that every sort takes.
class Lane {
 public:
  Lane() : columns_(kLaneColumns) {}

  void add(Sort sort, double first, double last) {
    if (last <= first) return;
    const std::size_t from = column_of(first), to = column_of(last);
    for (std::size_t c = from; c <= to; ++c) {
      const double begin = std::max(first, static_cast<double>(c));
      const double end = std::min(last, static_cast<double>(c + 1));
      if (end > begin) columns_[c][sort] += end - begin;
    }
  }

  /// Returns path commands for each sort. The part of a column that is not filled is carried over
  /// to the next ones, so that many short pieces together cover the right length.
  std::array<std::string, kSorts> paths(double x, double scale, double y, double height) const {
    std::array<std::string, kSorts> paths;
    double owed = 0;
    std::size_t begin = 0, sort = kSorts;  // of the open run; kSorts: no run is open
    for (std::size_t c = 0; c <= kLaneColumns; ++c) {
      std::size_t now = kSorts;
      if (c < kLaneColumns) {
        const auto most = std::max_element(columns_[c].begin(), columns_[c].end());
        double covered = 0;
        for (const double part : columns_[c]) covered += part;
        owed = covered == 0 ? 0 : owed + std::min(covered, 1.0);
        if (owed >= 0.5) {
          now = static_cast<std::size_t>(most - columns_[c].begin());
          owed -= 1;
        }
      }
      if (now == sort) continue;
      if (sort != kSorts) {
        const double width = static_cast<double>(c - begin) * scale;
        paths[sort] +=
            fmt::format("M{} {}h{}v{}h{}z", coordinate(x + static_cast<double>(begin) * scale),
                        coordinate(y), coordinate(width), coordinate(height), coordinate(-width));
      }
      begin = c;
      sort = now;
    }
    return paths;
  }

 private:
  static std::size_t column_of(double position) {
    return std::min(kLaneColumns - 1, static_cast<std::size_t>(std::max(0.0, position)));
  }

  std::vector<std::array<double, kSorts>> columns_;
};

void draw_axis(Svg& svg, double seconds, double scale, double bottom) {
  for (const double tick : round_ticks(0, seconds, 8)) {
    const double x = kLabelWidth + tick / seconds * static_cast<double>(kLaneColumns) * scale;
    svg.line(x, kAxisHeight - 6, x, bottom, "grid");
    svg.text(x, kAxisHeight - 10, tick == 0 ? "0" : figure(tick, "s"), "tick");
  }
}

}  // namespace

std::string timeline_chart(const SimulatedStep& step, double seconds) {
  const int ranks = static_cast<int>(step.estimate.devices.size());
  const int rows = std::min(ranks, kMostRanks);
  std::vector<int> row_of(static_cast<std::size_t>(ranks), -1);
  for (int row = 0; row < rows; ++row) {
    row_of[static_cast<std::size_t>(static_cast<std::int64_t>(row) * ranks / rows)] = row;
  }
  std::vector<Lane> lanes(2 * static_cast<std::size_t>(rows));
  const double columns = static_cast<double>(kLaneColumns) / seconds;
  for (const TimelineEvent& event : step.estimate.timeline) {
    const int row = row_of[static_cast<std::size_t>(event.rank)];
    if (row < 0) continue;
    const bool moves = stream_of(event.instruction.opcode) != StreamKind::kCompute;
    lanes[2 * static_cast<std::size_t>(row) + (moves ? 1 : 0)].add(
        sort_of(event.instruction.opcode), event.start * columns, event.end * columns);
  }
  const double scale = (kChartWidth - kLabelWidth - 40) / static_cast<double>(kLaneColumns);
  const double bottom = kAxisHeight + kRowHeight * rows;
  Svg svg(kChartWidth, "when each device computes and communicates");
  draw_axis(svg, seconds, scale, bottom);
  std::array<std::string, kSorts> paths;
  for (int rank = 0; rank < ranks; ++rank) {
    const int row = row_of[static_cast<std::size_t>(rank)];
    if (row < 0) continue;
    const double y = kAxisHeight + kRowHeight * row;
    svg.text(0, y + 11, step.estimate.devices[static_cast<std::size_t>(rank)].device);
    for (std::size_t lane = 0; lane < 2; ++lane) {
      const auto drawn = lanes[2 * static_cast<std::size_t>(row) + lane].paths(
          kLabelWidth, scale, lane == 0 ? y : y + kComputeHeight + 1,
          lane == 0 ? kComputeHeight : kMoveHeight);
      for (std::size_t sort = 0; sort < kSorts; ++sort) paths[sort] += drawn[sort];
    }
  }
  for (std::size_t sort = 0; sort < kSorts; ++sort) {
    if (!paths[sort].empty()) svg.path(paths[sort], kClasses[sort]);
  }
  return svg.element(bottom + 2);
}

}  // namespace agpcs
