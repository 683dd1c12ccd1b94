// SPDX-License-Identifier: Apache-2.0
// Linear: contiguous stages of the topological order on contiguous runs of devices in cluster order
// (and in reverse), by dynamic programming, for several numbers of micro-batches M. For a chain of
// blocks the result is exact for this cost: (M + stages - 1) x the time per micro-batch of the
// slowest stage or cut, at most 8 stages.
// A stage takes what its fastest split of samples takes, fractions of a sample allowed, and its
// all-reduce spread over the micro-batches; a cut takes its bytes over the link between the two
// devices at the boundary.
//
// Long graphs are cut only at the cheapest place of each of at most 96 (48 with more than 16
// devices) equal parts of the FLOPs; clusters of more than 32 devices are divided into 32 runs.
#include "cost_model/link_model.h"
#include "ir/plan_graph.h"
#include "planner/candidates.h"
#include "planner/linear_program.h"
#include "planner/seeder.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr int kMostUnits = 32;
constexpr int kMostStages = 8;
constexpr std::size_t kKept = 6;

std::size_t at(int id) { return static_cast<std::size_t>(id); }

/// First block of each piece, and the number of blocks at the end.
std::vector<int> piece_bounds(const BlockGraph& blocks, int most) {
  const int count = blocks.size();
  std::vector<int> bounds = {0};
  double total = 0, before = 0;
  for (const Block& block : blocks.blocks) total += block.flops;
  int window = 0, best = -1;
  for (int i = 1; i < count; ++i) {
    before += blocks.blocks[at(i - 1)].flops;
    const int here = count <= most || total <= 0 ? i : static_cast<int>(before / total * most);
    if (best >= 0 && here != window) {
      bounds.push_back(best);
      best = -1;
    }
    window = here;
    if (best < 0 || blocks.cut_bytes[at(i)] < blocks.cut_bytes[at(best)]) best = i;
  }
  if (best >= 0) bounds.push_back(best);
  bounds.push_back(count);
  return bounds;
}

/// The devices in order, as at most kMostUnits runs.
DeviceGroups units_of(const Cluster& cluster, bool reverse) {
  const int count = cluster.device_count();
  const int units = std::min(count, kMostUnits);
  DeviceGroups result(at(units));
  for (DeviceId id = 0; id < count; ++id) {
    const int unit = static_cast<int>(static_cast<std::int64_t>(id) * units / count);
    result[at(reverse ? units - 1 - unit : unit)].push_back(id);
  }
  return result;
}

/// The costs that `solve_linear` asks for, from prefix sums: each in O(kinds).
class LinearCosts {
 public:
  LinearCosts(const Problem& problem, const std::vector<int>& bounds, const DeviceGroups& units,
              std::int64_t micro_batches)
      : problem_(problem),
        bounds_(bounds),
        units_(units),
        micro_batches_(static_cast<double>(micro_batches)),
        samples_(static_cast<double>(problem.training.batch / micro_batches)),
        kinds_(problem.cluster.kinds.size()) {
    sum_pieces();
    sum_units();
    measure_all_reduces();
    measure_links();
  }

  double stage_seconds(int i, int j, int a, int b) const {
    double rate = 0, ahead = samples_;  // samples/s together, and samples lost to launches
    double least = 0;
    for (std::size_t k = 0; k < kinds_; ++k) {
      const double devices = devices_[at(b)][k] - devices_[at(a)][k];
      if (devices == 0) continue;
      const double fixed = fixed_[k][at(j)] - fixed_[k][at(i)];
      const double slope = slope_[k][at(j)] - slope_[k][at(i)];
      if (slope <= 0) return fixed;
      rate += devices / slope;
      ahead += devices * fixed / slope;
      least = std::max(least, fixed);
    }
    const double bytes = gradients_[at(j)] - gradients_[at(i)];
    const Line& line = all_reduce_[at(a) * (units_.size() + 1) + at(b)];
    const double reduce = bytes > 0 ? (line.fixed + line.slope * bytes) / micro_batches_ : 0;
    return std::max(ahead / rate, least) + reduce;
  }

  double cut_seconds(int i, int a) const {
    const double bytes = problem_.blocks.cut_bytes[at(bounds_[at(i)])] /
                         static_cast<double>(problem_.blocks.samples) * samples_;
    return links_[at(a)].fixed + links_[at(a)].slope * bytes;
  }

 private:
  struct Line {
    double fixed = 0, slope = 0;
  };

  /// Prefix sums over pieces of each kind's seconds as fixed + slope x samples, and of gradients.
  void sum_pieces() {
    const auto few = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(samples_) / problem_.cluster.device_count());
    fixed_.assign(kinds_, {0});
    slope_.assign(kinds_, {0});
    std::vector<bool> used(kinds_);
    for (const Device& device : problem_.cluster.devices) used[at(device.kind)] = true;
    for (std::size_t k = 0; k < kinds_; ++k) {
      for (std::size_t p = 0; p + 1 < bounds_.size(); ++p) {
        double once = 0, twice = 0;
        for (int block = bounds_[p]; used[k] && block < bounds_[p + 1]; ++block) {
          for (const OpId op : problem_.blocks.blocks[at(block)].ops) {
            const OpSeconds s = problem_.costs.seconds(static_cast<int>(k), op, few);
            const OpSeconds t = problem_.costs.seconds(static_cast<int>(k), op, 2 * few);
            once += s.forward + s.backward;
            twice += t.forward + t.backward;
          }
        }
        const double slope = (twice - once) / static_cast<double>(few);
        slope_[k].push_back(slope_[k].back() + slope);
        fixed_[k].push_back(fixed_[k].back() +
                            std::max(0.0, once - slope * static_cast<double>(few)));
      }
    }
    sum_gradients();
  }

  void sum_gradients() {
    std::vector<double> by_block(problem_.blocks.blocks.size());
    for (const TensorId id : problem_.graph.parameters()) {
      const Tensor& parameter = problem_.graph.tensor(id);
      const DType held = held_type(parameter.type, problem_.training.precision);
      by_block[at(problem_.blocks.block_of[at(parameter.consumers.front())])] +=
          static_cast<double>(elements_at(parameter.shape, 1)) * static_cast<double>(size_of(held));
    }
    gradients_ = {0};
    for (std::size_t p = 0; p + 1 < bounds_.size(); ++p) {
      gradients_.push_back(std::accumulate(by_block.begin() + bounds_[p],
                                           by_block.begin() + bounds_[p + 1], gradients_.back()));
    }
  }

  void sum_units() {
    devices_.assign(1, std::vector<double>(kinds_));
    for (const std::vector<DeviceId>& unit : units_) {
      devices_.push_back(devices_.back());
      for (const DeviceId device : unit) {
        devices_.back()[at(problem_.cluster.devices[at(device)].kind)] += 1;
      }
    }
  }

  /// Seconds of an all-reduce over units [a, b) as a line through two sizes.
  void measure_all_reduces() {
    all_reduce_.assign((units_.size() + 1) * (units_.size() + 1), {});
    for (std::size_t a = 0; a < units_.size(); ++a) {
      std::vector<DeviceId> devices;
      for (std::size_t b = a + 1; b <= units_.size(); ++b) {
        devices.insert(devices.end(), units_[b - 1].begin(), units_[b - 1].end());
        std::sort(devices.begin(), devices.end());
        const auto seconds = [&](std::int64_t bytes) {
          const auto lone = [&](AllReduce algorithm) {
            return lone_seconds(problem_.cluster,
                                all_reduce(problem_.cluster, devices, algorithm, bytes));
          };
          return std::min(lone(AllReduce::kRing), lone(AllReduce::kHierarchical));
        };
        if (devices.size() > 1) {
          all_reduce_[a * (units_.size() + 1) + b] = line_of(seconds(1 << 20), seconds(32 << 20));
        }
      }
    }
  }

  void measure_links() {
    links_.assign(units_.size(), {});
    for (std::size_t a = 1; a < units_.size(); ++a) {
      const auto seconds = [&](std::int64_t bytes) {
        return lone_seconds(problem_.cluster, transfer(problem_.cluster, units_[a - 1].back(),
                                                       units_[a].front(), bytes));
      };
      links_[a] = line_of(seconds(1 << 20), seconds(32 << 20));
    }
  }

  static Line line_of(double at_1_mib, double at_32_mib) {
    const double slope = (at_32_mib - at_1_mib) / (31 << 20);
    return {std::max(0.0, at_1_mib - slope * (1 << 20)), slope};
  }

  const Problem& problem_;
  const std::vector<int>& bounds_;
  const DeviceGroups& units_;
  double micro_batches_, samples_;
  std::size_t kinds_;
  std::vector<std::vector<double>> fixed_, slope_;  // by kind, prefix sums over pieces
  std::vector<double> gradients_;                   // bytes, prefix sums over pieces
  std::vector<std::vector<double>> devices_;        // prefix sums over units, by kind
  std::vector<Line> all_reduce_;                    // by first unit, end unit
  std::vector<Line> links_;                         // into the unit from the one before
};

Partition partition_of(const LinearPlan& plan, const std::vector<int>& bounds,
                       const DeviceGroups& units) {
  Partition partition;
  partition.stage_of_block.assign(at(bounds.back()), 0);
  for (const LinearStage& stage : plan.stages) {
    const auto index = static_cast<int>(partition.groups.size());
    std::fill(partition.stage_of_block.begin() + bounds[at(stage.first_piece)],
              partition.stage_of_block.begin() + bounds[at(stage.end_piece)], index);
    std::vector<DeviceId> group;
    for (int unit = stage.first_unit; unit < stage.end_unit; ++unit) {
      group.insert(group.end(), units[at(unit)].begin(), units[at(unit)].end());
    }
    std::sort(group.begin(), group.end());
    partition.groups.push_back(std::move(group));
  }
  return partition;
}

/// Numbers of micro-batches from one to eight times the devices, each about four times the last.
std::vector<std::int64_t> counts_to_try(const Problem& problem) {
  if (problem.options.micro_batches > 0) return {problem.options.micro_batches};
  std::vector<std::int64_t> counts;
  for (const std::int64_t count : micro_batch_numbers(problem.training.batch)) {
    if (count > 8 * problem.cluster.device_count()) break;
    if (counts.empty() || count >= 4 * counts.back()) counts.push_back(count);
  }
  return counts;
}

class LinearSeeder : public Seeder {
 public:
  std::string_view name() const override { return "linear"; }

  Result<std::vector<Strategy>> seed(const Problem& problem, Rng) const override {
    const int most_pieces = problem.cluster.device_count() > 16 ? 48 : 96;
    const std::vector<int> bounds = piece_bounds(problem.blocks, most_pieces);
    std::vector<Candidate> candidates;
    for (const bool reverse : {false, true}) {
      const DeviceGroups units = units_of(problem.cluster, reverse);
      for (const std::int64_t count : counts_to_try(problem)) {
        const LinearCosts costs(problem, bounds, units, count);
        for (const LinearPlan& plan : plans_of(costs, bounds, units, count)) {
          const Partition partition = partition_of(plan, bounds, units);
          for (Candidate& candidate : pipelines(problem, partition, {count})) {
            candidates.push_back(std::move(candidate));
          }
        }
      }
    }
    return thin_out(problem, std::move(candidates), kKept);
  }

 private:
  /// The plan with the best number of stages, then the one with most: it needs least memory.
  static std::vector<LinearPlan> plans_of(const LinearCosts& costs, const std::vector<int>& bounds,
                                          const DeviceGroups& units, std::int64_t micro_batches) {
    LinearProblem linear;
    linear.pieces = static_cast<int>(bounds.size()) - 1;
    linear.units = static_cast<int>(units.size());
    linear.most_stages = kMostStages;
    linear.stage_seconds = [&](int i, int j, int a, int b) {
      return costs.stage_seconds(i, j, a, b);
    };
    linear.cut_seconds = [&](int i, int a) { return costs.cut_seconds(i, a); };
    std::vector<LinearPlan> plans = solve_linear(linear);
    const auto step = [&](const LinearPlan& plan) {
      return plan.seconds *
             static_cast<double>(micro_batches - 1 + static_cast<std::int64_t>(plan.stages.size()));
    };
    const auto best = std::min_element(
        plans.begin(), plans.end(),
        [&](const LinearPlan& a, const LinearPlan& b) { return step(a) < step(b); });
    if (best + 1 == plans.end()) return {*best};
    return {*best, plans.back()};
  }
};

}  // namespace

std::unique_ptr<Seeder> make_linear_seeder() { return std::make_unique<LinearSeeder>(); }

}  // namespace agpcs
