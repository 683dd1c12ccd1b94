// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/explain_path.h"

#include "cost_model/step/model.h"
#include "ir/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

namespace agpcs {
namespace {

/// Steps of the path that take a smaller part of the whole get no line.
constexpr double kNothing = 1e-6;
/// The longest sequence of lines that is recognized as repeated.
constexpr std::size_t kLongestPeriod = 16;

/// A step of the path, or the same step of several micro-batches.
struct Line {
  int rank = 0;
  InstructionId id;
  int first = -1, last = -1;  ///< micro-batches: first, first + stride, ... last
  int stride = 1;
  double seconds = 0;
  std::size_t indent = 0;
  std::string header;  ///< a separate line before this one
};

bool alike(const Line& a, const Line& b) {
  return a.rank == b.rank && a.id.opcode == b.id.opcode && a.id.object == b.id.object &&
         (a.first < 0) == (b.first < 0);
}

/// Returns how often lines [at, at + period) repeat from `at` on, each time the same number of
/// micro-batches later.
std::size_t repeats(const std::vector<Line>& lines, std::size_t at, std::size_t period) {
  if (at + period >= lines.size()) return 1;
  const int stride = lines[at + period].first - lines[at].first;
  std::size_t count = 1;
  for (; at + (count + 1) * period <= lines.size(); ++count) {
    for (std::size_t i = 0; i < period; ++i) {
      const Line& before = lines[at + (count - 1) * period + i];
      const Line& line = lines[at + count * period + i];
      if (!alike(before, line) || line.first < 0 || stride < 1) return count;
      if (line.first != before.first + stride) return count;
    }
  }
  return count;
}

class Folder {
 public:
  explicit Folder(const Explanation& e) : e_(e) {}

  std::vector<Line> run() {
    const std::vector<Line> lines = elementary();
    std::vector<Line> folded;
    for (std::size_t i = 0; i < lines.size();) i += fold(lines, i, folded);
    return folded;
  }

 private:
  std::vector<Line> elementary() const {
    std::vector<Line> lines;
    for (const PathStep& step : e_.path) {
      const double seconds = step.until - step.since;
      if (seconds < kNothing * e_.estimate.step_seconds) continue;
      const int m = step.instruction.micro_batch;
      lines.push_back({step.rank, step.instruction, m, m, 1, seconds, 0, ""});
    }
    return lines;
  }

  /// Adds the lines from `at` on, with the most repetitions folded. Returns how many lines it took.
  static std::size_t fold(const std::vector<Line>& lines, std::size_t at,
                          std::vector<Line>& folded) {
    std::size_t best = 1, times = 1;
    for (std::size_t period = 1; period <= kLongestPeriod; ++period) {
      const std::size_t count = repeats(lines, at, period);
      // Several lines become a header and that many lines.
      if (count > 1 && count * period - period > (times - 1) * best) best = period, times = count;
    }
    for (std::size_t i = 0; i < best; ++i) {
      Line line = lines[at + i];
      for (std::size_t n = 1; n < times; ++n) {
        line.seconds += lines[at + n * best + i].seconds;
        line.last = lines[at + n * best + i].last;
        line.stride = (line.last - line.first) / static_cast<int>(n);
      }
      if (best > 1) line.indent = 2;
      if (best > 1 && i == 0) line.header = fmt::format("{} times in turn", times);
      folded.push_back(std::move(line));
    }
    return best * times;
  }

  const Explanation& e_;
};

class PathWriter {
 public:
  PathWriter(const Explanation& e, std::size_t top) : e_(e), lines_(Folder(e).run()) {
    std::vector<double> seconds;
    for (const Line& line : lines_) seconds.push_back(line.seconds);
    std::sort(seconds.rbegin(), seconds.rend());
    if (seconds.size() > top && top > 0) least_ = seconds[top - 1];
  }

  std::string write() {
    std::string text = fmt::format("\ncritical path, from the step's start to its end{:>24}\n",
                                   "seconds   of step");
    for (const Line& line : lines_) {
      if (line.seconds < least_) {
        skipped_.push_back(&line);
      } else {
        text += skipped_text() + line_text(line);
      }
    }
    return text + skipped_text();
  }

 private:
  std::string line_text(const Line& line) const {
    const std::string header = line.header.empty() ? "" : "  " + line.header + "\n";
    return header + row(std::string(line.indent, ' ') + what(line), where(line), line.seconds);
  }

  std::string skipped_text() {
    double seconds = 0;
    for (const Line* line : skipped_) seconds += line->seconds;
    const auto count = static_cast<std::int64_t>(skipped_.size());
    std::string text;
    if (count == 1) text = line_text(*skipped_.front());
    if (count > 1) text = row("...", plural(count, "line"), seconds);
    skipped_.clear();
    return text;
  }

  std::string row(const std::string& what, const std::string& where, double seconds) const {
    return fmt::format("  {:<32} {:<26} {:>8}   {:>5.1f}%\n", what, where, figure(seconds, "s"),
                       100 * seconds / e_.estimate.step_seconds);
  }

  std::string what(const Line& line) const {
    InstructionId id = line.id;
    id.micro_batch = -1;
    std::string text = title_of(e_.plan, e_.plan.stage_of_rank(line.rank), id);
    if (line.first < 0) return text;
    text += fmt::format(" mb {}", line.first);
    if (line.last == line.first) return text;
    if (line.stride == 1) return text + fmt::format("-{}", line.last);
    return text + fmt::format(",{}..{}", line.first + line.stride, line.last);
  }

  const std::string& device(int rank) const {
    return e_.estimate.devices[static_cast<std::size_t>(rank)].device;
  }

  /// Returns "volta/0", "volta/0 -> ampere/0", "8 devices".
  std::string where(const Line& line) const {
    const Opcode opcode = line.id.opcode;
    switch (stream_of(opcode)) {
      case StreamKind::kCompute: {
        const int team = e_.model.ranks[static_cast<std::size_t>(line.rank)].team;
        if (team < 0) return device(line.rank);
        const auto members =
            static_cast<std::int64_t>(e_.model.teams[static_cast<std::size_t>(team)].size());
        return opcode == Opcode::kUpdate
                   ? device(line.rank)
                   : fmt::format("{} and {} more", device(line.rank), members - 1);
      }
      case StreamKind::kCollective: {
        const auto stage = static_cast<std::size_t>(e_.plan.stage_of_rank(line.rank));
        const std::size_t ranks = is_of_all_ranks(opcode) ? e_.estimate.devices.size()
                                                          : e_.plan.stages[stage].ranks.size();
        return ranks == 1 ? device(line.rank) : fmt::format("{} devices", ranks);
      }
      default:
        break;
    }
    std::set<int> peers;
    const bool gradients = opcode == Opcode::kSendGradient || opcode == Opcode::kRecvGradient;
    for (const Transfer& t :
         transfers(e_.plan, line.id.object, line.rank, line.id.micro_batch, gradients)) {
      peers.insert(t.peer);
    }
    const std::string others =
        peers.size() == 1 ? device(*peers.begin()) : fmt::format("{} devices", peers.size());
    return stream_of(opcode) == StreamKind::kSend
               ? fmt::format("{} -> {}", device(line.rank), others)
               : fmt::format("{} -> {}", others, device(line.rank));
  }

  const Explanation& e_;
  std::vector<Line> lines_;
  double least_ = 0;  // seconds; shorter lines are joined
  std::vector<const Line*> skipped_;
};

}  // namespace

std::string path_text(const Explanation& e, std::size_t top) { return PathWriter(e, top).write(); }

}  // namespace agpcs
