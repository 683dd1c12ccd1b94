// SPDX-License-Identifier: Apache-2.0
// What coordinating gradients costs a step, simulated from 2 to 27,600 ranks: tables in Markdown on
// stdout, charts (SVG) into a folder. docs/design/coordination.md says what is assumed, and what
// the figures of Romero et al. (NSDI 2022) that the tables name are.
//
//     coordination_bench [--model FILE] [--charts FOLDER]
//
// The model is samples/models/resnet50.onnx by default.
#include "ir/base/check.h"
#include "planner/evaluate/bucket_schedule.h"
#include "tests/bench/coordination/coordination.h"
#include "tests/bench/coordination/coordination_costs.h"
#include "tests/bench/coordination/coordination_model.h"
#include "tests/bench/support/chart.h"
#include "tests/bench/support/mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::int64_t kSamples = 64;  // a GPU and step
/// Ranks are 1 ms late on average, and each gradient 0.3 ms.
constexpr ReadinessSkew kSkew = {1e-3, 0.3e-3};
constexpr int kGroups = 5;
constexpr int kAll[] = {2, 4, 8, 16, 48, 96, 192, 384, 768, 1536, 3072, 6000, 12'288, 27'600};
constexpr int kPaper[] = {6, 96, 192, 384, 768, 1536, 3072, 6000, 27'600};

/// In runs of equally many, as `hvd.DistributedOptimizer(num_groups=...)` splits them.
std::vector<std::vector<int>> even_groups(std::size_t gradients, int count) {
  std::vector<std::vector<int>> groups(static_cast<std::size_t>(count));
  for (std::size_t g = 0; g < gradients; ++g) {
    groups[g * groups.size() / gradients].push_back(static_cast<int>(g));
  }
  return groups;
}

/// How a step is coordinated, and over what.
struct Way {
  std::string name;
  CoordinationPolicy policy = CoordinationPolicy::kPlanned;
  ControlShape gather = ControlShape::kStar, combine = ControlShape::kTree;
  int groups = 0;  // even ones; of kGrouped
  bool cache_groups = true;
  bool waits = false;  // for all-reduces: MPI
  double cycle = 1e-3;
  std::int64_t fusion = std::int64_t{128} << 20;
};

const Way kCoordinatorWay = {"coordinator", CoordinationPolicy::kCoordinator};
const Way kCachedWay = {"cached", CoordinationPolicy::kCached};
const Way kGroupedWay = {"grouped", CoordinationPolicy::kGrouped, ControlShape::kStar,
                         ControlShape::kTree, kGroups};
const Way kPlannedWay = {"planned", CoordinationPolicy::kPlanned};

class Bench {
 public:
  Bench(ModelGradients gradients, std::string charts)
      : gradients_(std::move(gradients)), charts_(std::move(charts)) {}

  void run();

 private:
  SummitReduce& reduce_of(int ranks) { return reduces_.try_emplace(ranks, ranks).first->second; }
  /// Where the last all-reduce ends first if no rank is late.
  std::vector<std::vector<int>> planned_groups(int ranks);
  CoordinatedStep step(const Way& way, int ranks, const ControlCosts& costs);
  ControlCosts scaled_to_paper();
  void print_scale(const char* title, const ControlCosts& costs, const std::string& chart);
  void print_control(const ControlCosts& costs);
  void print_sizes(const ControlCosts& costs);
  void print_caching(const ControlCosts& costs);
  void print_grouping(const ControlCosts& costs);
  void print_breakdown(const ControlCosts& costs);
  void write(const std::string& name, const std::string& chart) const;

  ModelGradients gradients_;
  std::string charts_;
  std::map<int, SummitReduce> reduces_;
};

std::vector<std::vector<int>> Bench::planned_groups(int ranks) {
  std::vector<ReadyGradient> ready;
  for (std::size_t g = 0; g < gradients_.ready.size(); ++g) {
    ready.push_back({gradients_.ready[g], gradients_.bytes[g], 0});
  }
  // A line through two sizes: the schedule needs no more, and asks often.
  SummitReduce& reduce = reduce_of(ranks);
  const double small = reduce(1 << 20), large = reduce(64 << 20);
  const double per_byte = (large - small) / (63 << 20);
  const CostLine line = {std::max(0.0, small - per_byte * (1 << 20)), per_byte};
  std::vector<std::vector<int>> groups;
  int next = 0;
  for (const int count : schedule_buckets(ready, std::span(&line, 1))) {
    groups.emplace_back();
    for (int i = 0; i < count; ++i) groups.back().push_back(next++);
  }
  return groups;
}

CoordinatedStep Bench::step(const Way& way, int ranks, const ControlCosts& costs) {
  CoordinationOptions options;
  options.policy = way.policy;
  options.costs = costs;
  options.gather = way.gather;
  options.combine = way.combine;
  options.cycle_seconds = way.cycle;
  options.fusion_bytes = way.fusion;
  options.cache_groups = way.cache_groups;
  options.waits_for_reduces = way.waits;
  if (way.policy == CoordinationPolicy::kGrouped) {
    options.groups = even_groups(gradients_.bytes.size(), way.groups);
  }
  if (way.policy == CoordinationPolicy::kPlanned) options.groups = planned_groups(ranks);
  options.reduce_seconds = [&](std::int64_t bytes) { return reduce_of(ranks)(bytes); };
  const Readiness readiness = draw_readiness(gradients_.ready, ranks, kSkew, Rng(1));
  Result<CoordinatedStep> step = simulate_coordination(readiness, gradients_.bytes, options);
  AGPCS_CHECK(step.ok(), "{}", step.status().message());
  return *std::move(step);
}

/// The costs divided by one number such that a step of 6,000 ranks takes twice as long with the
/// coordinator as with the cache, which is what the paper's abstract says of its own measurement.
ControlCosts Bench::scaled_to_paper() {
  const auto divided = [](double by) {
    ControlCosts costs = kMeasuredCosts;
    costs.processors = 0;
    costs.latency /= by;
    costs.message /= by;
    costs.byte /= by;
    costs.request /= by;
    costs.unit /= by;
    return costs;
  };
  double low = 0.01, high = 1000;
  for (int i = 0; i < 16; ++i) {
    const double middle = std::sqrt(low * high);
    const ControlCosts costs = divided(middle);
    const double ratio =
        step(kCoordinatorWay, 6000, costs).seconds / step(kCachedWay, 6000, costs).seconds;
    (ratio > 2 ? low : high) = middle;
  }
  return divided(std::sqrt(low * high));
}

std::string micro(double seconds) { return fmt::format("{:.3g} us", seconds * 1e6); }

std::string describe(const ControlCosts& costs) {
  return fmt::format(
      "latency {}, a message {} at each end, a byte {:.3g} ns, a request {}, a unit {}",
      micro(costs.latency), micro(costs.message), costs.byte * 1e9, micro(costs.request),
      micro(costs.unit));
}

double exposed(const CoordinatedStep& step) { return step.seconds - step.last_ready; }

void Bench::print_scale(const char* title, const ControlCosts& costs, const std::string& chart) {
  const Way ways[] = {
      kCoordinatorWay,
      {"coordinator, tree", CoordinationPolicy::kCoordinator, ControlShape::kTree},
      kCachedWay,
      {"cached, ring", CoordinationPolicy::kCached, ControlShape::kStar, ControlShape::kRing},
      kGroupedWay,
      kPlannedWay};
  fmt::print("\n### {}\n\nMessages: {}. Milliseconds from the last gradient to the end.\n\n", title,
             describe(costs));
  Chart lines{fmt::format("{}: after the last gradient", title), "ranks", "ms", {}, {}};
  std::string head = "| ranks | gradients ready ms |", rule = "| --- | --- |";
  for (const Way& way : ways) {
    head += fmt::format(" {} |", way.name);
    rule += " --- |";
    lines.series.push_back({way.name, {}});
  }
  fmt::print("{}\n{}\n", head, rule);
  for (const int ranks : kAll) {
    std::string row;
    double ready = 0;
    for (std::size_t w = 0; w < std::size(ways); ++w) {
      const CoordinatedStep of = step(ways[w], ranks, costs);
      ready = of.last_ready;
      row += fmt::format(" {:.2f} |", exposed(of) * 1e3);
      lines.series[w].values.push_back(std::max(1e-2, exposed(of) * 1e3));
    }
    fmt::print("| {} | {:.1f} |{}\n", ranks, ready * 1e3, row);
    std::fflush(stdout);
    lines.labels.push_back(fmt::format("{}", ranks));
  }
  write(chart, line_chart(lines));
}

void Bench::print_control(const ControlCosts& costs) {
  fmt::print(
      "\n### Control messages of a step\n\nWith the costs as measured. A cycle: mean time from its "
      "first begin to its last end.\n\n"
      "| ranks | policy | cycles | a cycle ms | messages | MB | gradient waits ms |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int ranks : {2, 8, 96, 768, 6000, 27'600}) {
    for (const Way& way : {kCoordinatorWay, kCachedWay, kGroupedWay, kPlannedWay}) {
      const CoordinatedStep of = step(way, ranks, costs);
      fmt::print("| {} | {} | {} | {:.3f} | {} | {:.3f} | {:.2f} |\n", ranks, way.name, of.cycles,
                 of.control_seconds / std::max(1, of.cycles) * 1e3, of.control.messages,
                 static_cast<double>(of.control.bytes) * 1e-6, of.agreement_seconds * 1e3);
    }
  }
}

/// Figure 2: the original design, which is the coordinator with fusion.
void Bench::print_sizes(const ControlCosts& costs) {
  struct Column {
    Way way;
    std::vector<int> counts;
  };
  Way old = kCoordinatorWay;
  old.name = "fusion, cycles of 5 ms, 64 MiB";
  old.cycle = 5e-3;
  old.fusion = std::int64_t{64} << 20;
  Way now = kCoordinatorWay;
  now.name = "fusion, cycles of 1 ms, 128 MiB";
  Way groups = kGroupedWay;
  groups.name = fmt::format("{} groups", kGroups);
  Column columns[] = {{old, {}}, {now, {}}, {groups, {}}, {kPlannedWay, {}}};
  constexpr int kBins = 9;  // below 4 KiB, 16 KiB, ... 256 MiB
  Chart chart{"All-reduces of a step by size, 96 ranks", "bytes, up to", "messages", {}, {}};
  fmt::print(
      "\n### Message sizes at 96 ranks (the paper's Figure 2)\n\nAll-reduces of a step.\n\n"
      "| bytes |");
  for (Column& column : columns) {
    column.counts.assign(kBins, 0);
    for (const ReducedMessage& m : step(column.way, 96, costs).messages) {
      int bin = 0;
      while (bin + 1 < kBins && m.bytes >= std::int64_t{4096} << (2 * bin)) ++bin;
      ++column.counts[static_cast<std::size_t>(bin)];
    }
    fmt::print(" {} |", column.way.name);
    chart.series.push_back({column.way.name, {}});
  }
  fmt::print("\n| --- | --- | --- | --- | --- |\n");
  for (int bin = 0; bin < kBins; ++bin) {
    const std::int64_t kib = std::int64_t{4} << (2 * bin);
    const std::string most =
        kib < 1024 ? fmt::format("{} KiB", kib) : fmt::format("{} MiB", kib / 1024);
    fmt::print("| below {} |", most);
    chart.labels.push_back(most);
    for (std::size_t c = 0; c < std::size(columns); ++c) {
      const int count = columns[c].counts[static_cast<std::size_t>(bin)];
      fmt::print(" {} |", count);
      chart.series[c].values.push_back(count);
    }
    fmt::print("\n");
  }
  write("coordination_sizes.svg", bar_chart(chart, false));
}

/// Figures 6 and 7.
void Bench::print_caching(const ControlCosts& costs) {
  Way mpi_off = kCoordinatorWay, mpi_on = kCachedWay;
  mpi_off.waits = mpi_on.waits = true;
  struct Column {
    const char* name;
    Way way;
  };
  const Column columns[] = {{"cache off, NCCL", kCoordinatorWay},
                            {"cache on, NCCL", kCachedWay},
                            {"cache and groups, NCCL", kGroupedWay},
                            {"cache off, MPI", mpi_off},
                            {"cache on, MPI", mpi_on},
                            {"planned", kPlannedWay}};
  fmt::print(
      "\n### Strategies and caching (the shapes of Figures 6 and 7)\n\nImages per second and GPU, "
      "as a part of those of a GPU alone ({:.0f}/s). NCCL: the coordinating thread goes on while "
      "all-reduces run; MPI: it waits for them.\n\n| ranks |",
      kSamples / gradients_.compute);
  Chart chart{"Throughput per GPU, a GPU alone is 1", "ranks", "", {}, {}};
  for (const Column& column : columns) {
    fmt::print(" {} |", column.name);
    chart.series.push_back({column.name, {}});
  }
  fmt::print("\n| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int ranks : kPaper) {
    fmt::print("| {} |", ranks);
    chart.labels.push_back(fmt::format("{}", ranks));
    for (std::size_t c = 0; c < std::size(columns); ++c) {
      const double part = gradients_.compute / step(columns[c].way, ranks, costs).seconds;
      fmt::print(" {:.3f} |", part);
      chart.series[c].values.push_back(part);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
  write("coordination_caching.svg", bar_chart(chart, false));
}

/// Figure 8.
void Bench::print_grouping(const ControlCosts& costs) {
  const int none = static_cast<int>(gradients_.bytes.size());
  fmt::print(
      "\n### Groups at 768 ranks (the shape of Figure 8)\n\nThroughput as above.\n\n"
      "| groups | cache on, NCCL | cache off, NCCL | cache on, MPI | cache off, MPI |\n"
      "| --- | --- | --- | --- | --- |\n");
  Chart chart{"Throughput per GPU at 768 ranks by number of groups", "groups", "", {}, {}};
  chart.series = {{"cache on, NCCL", {}},
                  {"cache off, NCCL", {}},
                  {"cache on, MPI", {}},
                  {"cache off, MPI", {}}};
  for (const int groups : {1, 2, 5, 10, 20, 40, 80, none}) {
    const std::string label = groups == none ? "none" : fmt::format("{}", groups);
    fmt::print("| {} |", label);
    chart.labels.push_back(label);
    for (std::size_t s = 0; s < 4; ++s) {
      Way way = kGroupedWay;
      way.groups = groups;
      way.cache_groups = s % 2 == 0;
      way.waits = s >= 2;
      const double part = gradients_.compute / step(way, 768, costs).seconds;
      fmt::print(" {:.3f} |", part);
      chart.series[s].values.push_back(part);
    }
    fmt::print("\n");
  }
  write("coordination_groups.svg", bar_chart(chart, false));
}

/// Figure 9.
void Bench::print_breakdown(const ControlCosts& costs) {
  Way grouped_off = kGroupedWay;
  grouped_off.cache_groups = false;
  const std::pair<const char*, Way> rows[] = {{"cache off", kCoordinatorWay},
                                              {"cache on", kCachedWay},
                                              {"5 groups, cache off", grouped_off},
                                              {"5 groups, cache on", kGroupedWay},
                                              {"planned", kPlannedWay}};
  fmt::print(
      "\n### A step at 768 ranks (the shape of Figure 9)\n\nMilliseconds. Exposed: after the last "
      "gradient.\n\n| | step | last gradient | exposed coordination | exposed all-reduces | all "
      "control | all all-reduces | all-reduces | gradient waits |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  Chart chart{"After the last gradient at 768 ranks", "", "ms", {}, {}};
  chart.series = {{"coordination", {}}, {"all-reduces", {}}};
  for (const auto& [name, way] : rows) {
    const CoordinatedStep of = step(way, 768, costs);
    fmt::print("| {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {} | {:.2f} |\n", name,
               of.seconds * 1e3, of.last_ready * 1e3, of.exposed_coordination * 1e3,
               of.exposed_reduce * 1e3, of.control_seconds * 1e3, of.reduce_seconds * 1e3,
               of.messages.size(), of.agreement_seconds * 1e3);
    chart.labels.emplace_back(name);
    chart.series[0].values.push_back(of.exposed_coordination * 1e3);
    chart.series[1].values.push_back(of.exposed_reduce * 1e3);
  }
  write("coordination_breakdown.svg", bar_chart(chart, true));
}

void Bench::write(const std::string& name, const std::string& chart) const {
  if (charts_.empty()) return;
  const std::string path = std::filesystem::path(charts_) / name;
  std::ofstream file = bench::open_for_results(path);
  file << chart;
  bench::close_results(file, path);
}

void Bench::run() {
  std::int64_t bytes = 0;
  for (const std::int64_t b : gradients_.bytes) bytes += b;
  fmt::print(
      "{} gradients of {:.1f} MB; forward and backward {:.1f} ms on a V100, batch {}. All-reduces "
      "between more than 512 hosts are continued; at 512 that differs from the cost model by "
      "{:.1g} of it.\n",
      gradients_.bytes.size(), static_cast<double>(bytes) * 1e-6, gradients_.compute * 1e3,
      kSamples, std::max(continuation_error(1 << 20), continuation_error(64 << 20)));
  ControlCosts here = kMeasuredCosts;
  here.processors = 0;  // each rank its own
  const ControlCosts paper = scaled_to_paper();
  print_scale("Messages as measured here", here, "coordination_here.svg");
  print_scale("Messages scaled to the paper", paper, "coordination_paper.svg");
  print_control(here);
  print_sizes(paper);
  print_caching(paper);
  print_grouping(paper);
  print_breakdown(paper);
}

int main_of(const std::vector<std::string>& words) {
  std::string model = "samples/models/resnet50.onnx", charts;
  for (std::size_t i = 1; i < words.size(); i += 2) {
    const bool known = words[i] == "--model" || words[i] == "--charts";
    if (!known || i + 1 == words.size()) {
      fmt::print(stderr, "coordination_bench [--model FILE] [--charts FOLDER]: not '{}'\n",
                 words[i]);
      return 2;
    }
    (words[i] == "--model" ? model : charts) = words[i + 1];
  }
  if (!charts.empty()) bench::need_folder(charts);
  bench::need_data(model, "an ONNX model: --model FILE");
  Bench(gradients_of_model(model, kSamples), charts).run();
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  return agpcs::main_of(std::vector<std::string>(argv, argv + argc));
}
