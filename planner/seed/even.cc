// SPDX-License-Identifier: Apache-2.0
// Even: contiguous stages with equally many devices each, on the best kinds of devices, for models
// that fit no device: for others, `linear` and the search find as much without it. Kinds are
// sorted in two ways: those with the most memory first, and those that compute the model fastest
// first (ties by the other, then to the lower kind). The devices of every first few kinds of either
// order are a row. A row is cut into stages of 1, 2, ... consecutive devices, once as it is and
// once with stages that do not straddle hosts (what a host has left over comes last). Numbers of
// stages go up to what parameters and optimizer state need, twice; micro-batches down to one sample
// a device. Stages are cut for speed within the memory of their devices (EvenRow), and recompute
// where they would not fit otherwise. So a model that some of the kinds can hold has a plan,
// whatever other devices the cluster has. If none of all these fits, memory alone chooses
// (`roomiest_pipelines`).
//
// A lower bound says in which order shapes are cut; those whose bound is well above the best step
// are not. The few that are roughly fastest become candidates. Of pipelines that take seconds to
// simulate there is at most one, if it is faster.
#include "ir/base/at.h"
#include "ir/base/largest_that_holds.h"
#include "planner/evaluate/evaluator.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timers.h"
#include "planner/seed/candidates.h"
#include "planner/seed/even_row.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/roomiest.h"
#include "planner/seed/seeder.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace agpcs {
namespace {

constexpr double kNoStep = std::numeric_limits<double>::infinity();
constexpr int kUsualEvenStages = 8, kMostEvenStages = 512;
constexpr std::int64_t kMostEvenPasses = 131'072;  // stages x micro-batches
constexpr double kEvenSlack = 1.15;  // the rough step, which compares later, is more exact
constexpr int kMostCuts = 2000;
constexpr std::size_t kMostTried = 64, kMostFitting = 16, kFittingOfRow = 3, kEvenKept = 4;
/// The part of a device's memory that stages may fill by PieceSums, which count too much or too
/// little; less after a plan turned out to lack memory.
constexpr double kEvenPartsOfMemory[] = {1.3, 1.2, 1.12, 1.06, 1.03, 1, 0.95, 0.9, 0.8, 0.65, 0.5};
constexpr int kMostLooseStages = 16;       // the most of a pipeline that may fill more than all
constexpr double kWorthSimulating = 0.98;  // of the rough step of the fastest that is not long

/// Returns the devices of the first 1, 2, ... kinds of both orders, each set once, kind by kind.
std::vector<std::vector<DeviceId>> rows_of_kinds(const Problem& problem, const PieceSums& sums) {
  const Cluster& cluster = problem.cluster;
  std::vector<std::vector<DeviceId>> of_kind(cluster.kinds.size());
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    of_kind[at(cluster.devices[at(id)].kind)].push_back(id);
  }
  std::vector<int> kinds;
  for (int kind = 0; kind < static_cast<int>(of_kind.size()); ++kind) {
    if (!of_kind[at(kind)].empty()) kinds.push_back(kind);
  }
  const auto seconds = [&](int kind) { return sums.seconds(kind, 0, sums.pieces()).per_sample; };
  const auto memory = [&](int kind) { return cluster.kinds[at(kind)].memory_bytes; };
  std::vector<int> fastest = kinds, largest = kinds;
  std::stable_sort(fastest.begin(), fastest.end(), [&](int a, int b) {
    return std::pair(seconds(a), -memory(a)) < std::pair(seconds(b), -memory(b));
  });
  std::stable_sort(largest.begin(), largest.end(), [&](int a, int b) {
    return std::pair(-memory(a), seconds(a)) < std::pair(-memory(b), seconds(b));
  });
  std::vector<std::vector<DeviceId>> rows;
  for (const std::vector<int>& order : {largest, fastest}) {
    std::vector<DeviceId> row;
    for (const int kind : order) {
      row.insert(row.end(), of_kind[at(kind)].begin(), of_kind[at(kind)].end());
      if (row.size() > 1 && std::find(rows.begin(), rows.end(), row) == rows.end()) {
        rows.push_back(row);
      }
    }
  }
  return rows;
}

/// Returns the devices with those of each host that make no whole group of `replicas` at the end.
std::vector<DeviceId> inside_hosts(const Cluster& cluster, const std::vector<DeviceId>& devices,
                                   int replicas) {
  std::vector<DeviceId> row, rest;
  for (std::size_t first = 0; first < devices.size();) {
    std::size_t end = first;
    const int host = cluster.devices[at(devices[first])].host;
    while (end < devices.size() && cluster.devices[at(devices[end])].host == host) ++end;
    const std::size_t whole = (end - first) / at(replicas) * at(replicas);
    for (std::size_t i = first; i < end; ++i) {
      (i < first + whole ? row : rest).push_back(devices[i]);
    }
    first = end;
  }
  row.insert(row.end(), rest.begin(), rest.end());
  return row;
}

/// Returns 1, 2, ... and from 16 on fewer and fewer numbers, up to half of `devices`.
std::vector<int> replicas_to_try(std::size_t devices) {
  std::vector<int> numbers;
  for (int number = 1; 2 * at(number) <= devices; number += std::max(1, number / 8)) {
    numbers.push_back(number);
  }
  return numbers;
}

struct Shape {
  std::size_t row = 0;
  int stages = 0;
  std::int64_t micro_batches = 0;
  double least = 0;  ///< no less than this: seconds of a step
};

struct Found {
  double seconds = 0;  ///< (micro-batches + stages - 1) x the slowest stage or cut
  Shape shape;
  std::vector<int> bounds;
  bool offload = false;  ///< stages may have something in the memory of hosts
};

class EvenSeeds {
 public:
  EvenSeeds(const Problem& problem, const PieceSums& sums, int most_stages,
            std::function<bool()> unwanted)
      : problem_(problem),
        sums_(sums),
        most_stages_(most_stages),
        unwanted_(std::move(unwanted)),
        numbers_(micro_batch_numbers(problem)),
        lines_(problem.cluster),
        model_(problem),
        evaluator_(problem),
        timers_(problem) {}

  std::vector<Strategy> run() {
    for (const std::vector<DeviceId>& devices : rows_of_kinds(problem_, sums_)) {
      for (const int replicas : replicas_to_try(devices.size())) {
        if (unwanted_()) return {};
        add_row(devices, replicas);
        std::vector<DeviceId> inside = inside_hosts(problem_.cluster, devices, replicas);
        if (inside != devices) add_row(inside, replicas);
      }
      ++kinds_;
    }
    cut_shapes();
    try_found();
    if (unwanted_()) return {};
    if (few_.empty() && many_.empty()) {
      std::vector<int> blocks(at(problem_.blocks.size()) + 1);
      std::iota(blocks.begin(), blocks.end(), 0);
      return roomiest_pipelines(problem_, evaluator_, PieceSums(problem_, std::move(blocks)));
    }
    return kept();
  }

 private:
  struct Row {
    int kinds = 0;  // the number of its set of kinds
    int replicas = 1;
    std::unique_ptr<EvenRow> costs;
    std::vector<double> rate;            // by number of stages: samples/s of all their devices
    std::vector<std::int64_t> too_many;  // by number of stages: samples that are known not to fit
  };

  struct Fitting {
    int kinds = 0;  // as of its row
    Candidate candidate;
  };

  void add_row(const std::vector<DeviceId>& devices, int replicas) {
    const int stages =
        std::min({static_cast<int>(devices.size()) / replicas, most_stages_, sums_.pieces()});
    if (stages < 2) return;
    Row row;
    row.kinds = kinds_;
    row.replicas = replicas;
    row.costs = std::make_unique<EvenRow>(problem_, sums_, lines_, devices, replicas, stages);
    row.rate.push_back(0);
    for (int i = 0; i < stages * replicas; ++i) {
      const int kind = problem_.cluster.devices[at(devices[at(i)])].kind;
      const double slope = std::max(1e-15, sums_.seconds(kind, 0, sums_.pieces()).per_sample);
      if (i % replicas == 0) row.rate.push_back(row.rate.back());
      row.rate.back() += 1 / slope;
    }
    row.too_many.assign(row.rate.size(), std::numeric_limits<std::int64_t>::max());
    rows_.push_back(std::move(row));
    add_shapes(rows_.size() - 1, stages);
  }

  /// Returns the numbers of micro-batches worth trying: those of 1, 2, 4, ... samples a device, and
  /// those that divide well.
  std::vector<std::int64_t> counts_for(int replicas, int stages) const {
    const std::int64_t batch = problem_.training.batch;
    const std::int64_t most =
        std::min({kMostMicroBatches, batch / replicas, std::int64_t{kMostEvenPasses} / stages});
    std::set<std::int64_t> counts;
    for (const std::int64_t number : numbers_) {
      const bool fills = problem_.options.micro_batches > 0 || number <= 16 * stages;
      if (number <= most && fills) counts.insert(number);
    }
    if (problem_.options.micro_batches > 0) return {counts.begin(), counts.end()};
    for (std::int64_t each = 1; each * replicas <= batch; each *= 2) {
      const std::int64_t number = (batch + each * replicas - 1) / (each * replicas);
      // The size of micro-batches tells whether they are equal (`micro_batch_numbers`).
      const bool told = number * each * replicas == batch || batch % (each * replicas) != 0;
      if (told && number <= most && largest_micro_batch(batch, number) == each * replicas) {
        counts.insert(number);
      }
    }
    return {counts.begin(), counts.end()};
  }

  void add_shapes(std::size_t index, int most) {
    const Row& row = rows_[index];
    for (int stages = least_stages(row, most); stages <= most; ++stages) {
      for (const std::int64_t count : counts_for(row.replicas, stages)) {
        const auto samples = static_cast<double>(largest_micro_batch(problem_, count));
        const double passes = static_cast<double>(count + stages - 1);
        shapes_.push_back({index, stages, count, passes * samples / row.rate[at(stages)]});
      }
    }
  }

  /// Returns the fewest stages that have a cut with few samples a micro-batch; more than `most` if
  /// none has. More stages need less memory each.
  int least_stages(const Row& row, int most) const {
    const auto has_no_cut = [&](int stages) {
      const std::vector<std::int64_t> counts = counts_for(row.replicas, stages);
      return counts.empty() ||
             !row.costs->has_cut(stages, counts.back(), 1, may_use_hosts(problem_));
    };
    return largest_that_holds(1, most + 1, has_no_cut) + 1;
  }

  void cut_shapes() {
    std::stable_sort(shapes_.begin(), shapes_.end(),
                     [](const Shape& a, const Shape& b) { return a.least < b.least; });
    double best = kNoStep;
    int cuts = 0;
    for (const Shape& shape : shapes_) {
      if (shape.least > kEvenSlack * best || cuts == kMostCuts || unwanted_()) break;
      Row& row = rows_[shape.row];
      const std::int64_t samples = largest_micro_batch(problem_, shape.micro_batches);
      if (samples >= row.too_many[at(shape.stages)]) continue;
      ++cuts;
      bool any = false;
      for (const bool offload : {false, true}) {
        if (offload && !may_use_hosts(problem_)) break;
        EvenCut cut = row.costs->cut(shape.stages, shape.micro_batches, 1, offload);
        if (cut.bounds.empty()) continue;
        if (any && cut.bounds == found_.back().bounds) continue;  // hosts change nothing
        any = true;
        const double seconds = seconds_of(cut, shape.micro_batches);
        best = std::min(best, seconds);
        found_.push_back({seconds, shape, std::move(cut.bounds), offload});
      }
      const bool fills = shape.micro_batches >= shape.stages;
      if (!any && fills) row.too_many[at(shape.stages)] = samples;
    }
  }

  static double seconds_of(const EvenCut& cut, std::int64_t micro_batches) {
    return static_cast<double>(micro_batches) * cut.seconds +
           static_cast<double>(cut.bounds.size() - 2) * cut.seconds;
  }

  /// Returns whether both are one pipeline: rows often begin with the same devices.
  bool is_same(const Found& a, const Found& b) const {
    if (a.shape.micro_batches != b.shape.micro_batches || a.bounds != b.bounds) return false;
    const DeviceGroups& one = rows_[a.shape.row].costs->groups();
    const DeviceGroups& other = rows_[b.shape.row].costs->groups();
    return std::equal(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(a.bounds.size()) - 1,
                      other.begin());
  }

  /// Tries the fastest first, until enough fit. A row has a few of them, and each once.
  void try_found() {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Found& a, const Found& b) { return a.seconds < b.seconds; });
    std::vector<std::size_t> of_row(rows_.size());
    std::vector<const Found*> tried;
    std::size_t fit = 0;
    for (const Found& found : found_) {
      if (fit == kMostFitting || tried.size() == kMostTried || unwanted_()) break;
      const bool known = std::any_of(tried.begin(), tried.end(),
                                     [&](const Found* other) { return is_same(found, *other); });
      if (found.bounds.size() < 3 || known || of_row[found.shape.row] == kFittingOfRow) continue;
      tried.push_back(&found);
      if (!try_to_fit(found)) continue;
      ++of_row[found.shape.row];
      ++fit;
    }
  }

  std::vector<Candidate> candidates_of(const Shape& shape, const std::vector<int>& bounds) {
    Partition partition;
    partition.stage_of_block.assign(at(problem_.blocks.size()), 0);
    for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
      partition.groups.push_back(rows_[shape.row].costs->groups()[s]);
      std::fill(partition.stage_of_block.begin() + sums_.bounds()[at(bounds[s])],
                partition.stage_of_block.begin() + sums_.bounds()[at(bounds[s + 1])],
                static_cast<int>(s));
    }
    return pipelines(model_, partition, {shape.micro_batches});
  }

  /// Keeps what fits of a shape: of the cut that was found, or of one that leaves some memory free,
  /// or of the first with divided gradients. Returns whether anything does.
  bool try_to_fit(const Found& found) {
    EvenRow& row = *rows_[found.shape.row].costs;
    std::vector<int> last;
    for (const double part : kEvenPartsOfMemory) {
      if (part > 1 && found.shape.stages > kMostLooseStages) continue;
      const std::vector<int> bounds =
          part == 1
              ? found.bounds
              : row.cut(found.shape.stages, found.shape.micro_batches, part, found.offload).bounds;
      if (bounds.size() < 3) return false;
      if (bounds == last) continue;
      last = bounds;
      const auto most = part > 1 ? std::optional<StateLevel>() : StateLevel::kOptimizer;
      if (keep_fitting(found.shape, bounds, most)) return true;
    }
    return may_divide(problem_, StateLevel::kGradients) &&
           keep_fitting(found.shape, found.bounds, StateLevel::kGradients);
  }

  /// Keeps what fits of a cut, with help that divides at most `most_divided`, or without help.
  /// Returns whether anything does.
  bool keep_fitting(const Shape& shape, const std::vector<int>& bounds,
                    std::optional<StateLevel> most_divided) {
    bool fits = false;
    for (Candidate& candidate : candidates_of(shape, bounds)) {
      if (evaluator_.lacking(candidate.strategy) > 0) {
        const bool helped =
            most_divided && fit_memory(problem_, evaluator_, candidate.strategy, *most_divided);
        if (!helped) continue;
        candidate.rough_seconds =
            model_.step(candidate.strategy, timers_.of(candidate.strategy)).seconds;
      }
      fits = true;
      const auto stages = static_cast<std::int64_t>(candidate.strategy.stages.size());
      const bool many = is_long(stages, candidate.strategy.micro_batches);
      (many ? many_ : few_).push_back({rows_[shape.row].kinds, std::move(candidate)});
    }
    return fits;
  }

  /// Returns the fastest, and the fastest on each set of kinds: a search from there finds what it
  /// would find without the other devices.
  std::vector<Strategy> kept() {
    const auto faster = [](const Fitting& a, const Fitting& b) {
      return a.candidate.rough_seconds < b.candidate.rough_seconds;
    };
    std::stable_sort(few_.begin(), few_.end(), faster);
    std::stable_sort(many_.begin(), many_.end(), faster);
    std::vector<Strategy> kept;
    const bool worth =
        !many_.empty() &&
        (few_.empty() || many_.front().candidate.rough_seconds <
                             kWorthSimulating * few_.front().candidate.rough_seconds);
    if (worth) kept.push_back(std::move(many_.front().candidate.strategy));
    std::set<int> kinds;
    for (Fitting& each : few_) {
      if (kept.size() >= kEvenKept && kinds.count(each.kinds) > 0) continue;
      Strategy& strategy = each.candidate.strategy;
      if (std::find(kept.begin(), kept.end(), strategy) != kept.end()) continue;
      kinds.insert(each.kinds);
      kept.push_back(std::move(strategy));
    }
    return kept;
  }

  const Problem& problem_;
  const PieceSums& sums_;
  int most_stages_;
  std::function<bool()> unwanted_;
  std::vector<std::int64_t> numbers_;  // of micro-batches
  EvenLines lines_;
  RoughModel model_;
  Evaluator evaluator_;
  StageTimers timers_;
  std::vector<Row> rows_;
  std::vector<Shape> shapes_;
  std::vector<Found> found_;
  std::vector<Fitting> few_, many_;  // by whether they are long
  int kinds_ = 0;                    // sets of kinds so far
};

class EvenSeeder : public Seeder {
 public:
  std::string_view name() const override { return "even"; }

  Result<std::vector<Strategy>> seed(const Problem& problem, Rng) const override {
    if (problem.cluster.device_count() < 2 || problem.blocks.size() < 2) {
      return std::vector<Strategy>();
    }
    const PieceSums whole(problem, {0, problem.blocks.size()});
    if (fits_a_device(problem, whole)) return std::vector<Strategy>();
    const int stages = most_stages(problem, whole);
    const PieceSums sums(problem, piece_bounds(problem.blocks, std::max(96, 4 * stages)));
    return EvenSeeds(problem, sums, stages, [this] { return unwanted(); }).run();
  }

 private:
  static bool fits_a_device(const Problem& problem, const PieceSums& whole) {
    const double bytes = whole.memory(0, 1, 1, 1, false, {true, false});
    return std::any_of(problem.cluster.devices.begin(), problem.cluster.devices.end(),
                       [&](const Device& device) {
                         const DeviceKind& kind = problem.cluster.kinds[at(device.kind)];
                         return bytes <= static_cast<double>(kind.memory_bytes);
                       });
  }

  /// Returns twice as many stages as it takes the devices of least memory to hold parameters and
  /// optimizer state; at least kUsualEvenStages.
  static int most_stages(const Problem& problem, const PieceSums& whole) {
    std::int64_t memory = std::numeric_limits<std::int64_t>::max();
    for (const Device& device : problem.cluster.devices) {
      memory = std::min(memory, problem.cluster.kinds[at(device.kind)].memory_bytes);
    }
    const double least =
        whole.resident_bytes() / static_cast<double>(std::max<std::int64_t>(1, memory));
    const int most = static_cast<int>(std::min<double>(2 * least + 1, kMostEvenStages));
    return std::min(std::max(kUsualEvenStages, most), problem.cluster.device_count());
  }
};

}  // namespace

std::unique_ptr<Seeder> make_even_seeder() { return std::make_unique<EvenSeeder>(); }

}  // namespace agpcs
