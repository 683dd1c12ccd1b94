// SPDX-License-Identifier: Apache-2.0
// Data parallelism: one stage. For each set of devices worth trying (`device_sets`), it gives
// shares by speed and takes the fewest micro-batches whose memory suffices, since more of them only
// add launches. If memory asks for micro-batches, it also tries fewer of them with recomputation,
// with samples moved to devices that have room, with each level of divided state, or with what
// `fit_memory` has in the memory of hosts; where the fewest of these recompute, also the next two
// numbers. Where no number of micro-batches fits by itself, it does all that with equal shares,
// too. It returns those that are roughly fastest. This file also has the plainest form, with which
// plans are compared: all devices, equal shares.
#include "planner/evaluate/group_gradients.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "planner/seed/candidates.h"
#include "planner/seed/device_groups.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/seeder.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::size_t kDataParallelKept = 8;
/// Most numbers of micro-batches that are tried with help: the fewest, and the next two.
constexpr std::size_t kMostHelped = 3;

using MakeStage = std::function<StageSpec(std::int64_t samples)>;

/// Returns the counts of micro-batches that leave every device at least a sample on average,
/// ascending.
std::vector<std::int64_t> counts_for(const Problem& problem, std::size_t devices) {
  if (problem.options.micro_batches > 0) return {problem.options.micro_batches};
  std::vector<std::int64_t> counts = micro_batch_numbers(problem.training.batch);
  std::erase_if(counts, [&](std::int64_t count) {
    return count > 1 && problem.training.batch / count < static_cast<std::int64_t>(devices);
  });
  return counts;
}

std::vector<DeviceId> all_devices(const Cluster& cluster) {
  std::vector<DeviceId> devices(static_cast<std::size_t>(cluster.device_count()));
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

Strategy one_stage(const Problem& problem, std::int64_t micro_batches, const MakeStage& make) {
  Strategy strategy;
  strategy.stage_of.assign(problem.graph.ops.size(), 0);
  strategy.micro_batches = micro_batches;
  strategy.stages.push_back(make(largest_micro_batch(problem, micro_batches)));
  return strategy;
}

/// Returns the number of the first count with which `enough` holds, or of the last count if there
/// is none. If `enough` holds for a count, it holds for every larger one.
template <typename F>
std::size_t first_enough(const std::vector<std::int64_t>& counts, F enough) {
  std::size_t low = 0, high = counts.size() - 1;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    const bool found = enough(counts[middle]);
    (found ? high : low) = found ? middle : middle + 1;
  }
  return low;
}

/// Returns the strategy with the fewest micro-batches that fits, or with the most if none does.
/// Memory falls with the number of micro-batches.
Strategy fewest_micro_batches(const Problem& problem, Evaluator& evaluator, std::size_t devices,
                              const MakeStage& make) {
  const std::vector<std::int64_t> counts = counts_for(problem, devices);
  const std::size_t first = first_enough(counts, [&](std::int64_t count) {
    return evaluator.lacking(one_stage(problem, count, make)) <= 0;
  });
  return one_stage(problem, counts[first], make);
}

/// Whether a stage may recompute.
enum class Recomputes : std::uint8_t { kNo, kYes };

/// Returns the counts that are less than that of `plain`, or not more if that lacks memory.
std::vector<std::int64_t> fewer_counts(const Problem& problem, Evaluator& evaluator,
                                       const Strategy& plain, std::size_t devices) {
  std::vector<std::int64_t> counts = counts_for(problem, devices);
  const bool fits = evaluator.lacking(plain) <= 0;
  std::erase_if(counts, [&](std::int64_t count) {
    return fits ? count >= plain.micro_batches : count > plain.micro_batches;
  });
  return counts;
}

/// Makes strategies of a set of devices fit in memory, and remembers them. Refers to its arguments.
class MemoryHelp {
 public:
  MemoryHelp(const Problem& problem, Evaluator& evaluator, const MakeStage& make)
      : problem_(problem), evaluator_(evaluator), make_(make) {}

  /// Returns what `fit_memory` makes of `count` micro-batches; nothing if they do not fit.
  const std::optional<Strategy>& of(std::int64_t count, StateLevel most_divided,
                                    Offloads offloads) {
    const auto [entry, added] = known_.try_emplace({count, most_divided, offloads});
    if (!added) return entry->second;
    Strategy strategy = one_stage(problem_, count, make_);
    if (fit_memory(problem_, evaluator_, strategy, most_divided, SampleMoves::kYes, offloads)) {
      entry->second = std::move(strategy);
    }
    return entry->second;
  }

 private:
  const Problem& problem_;
  Evaluator& evaluator_;
  const MakeStage& make_;
  std::map<std::tuple<std::int64_t, StateLevel, Offloads>, std::optional<Strategy>> known_;
};

/// Returns strategies with numbers of micro-batches among `counts` that `help` makes fit, with what
/// devices may divide: the one with the fewest, and where that recomputes, those with the next
/// numbers, as with smaller micro-batches it may keep more.
std::vector<Strategy> fewer_with_help(MemoryHelp& help, const std::vector<std::int64_t>& counts,
                                      StateLevel most_divided, Recomputes recomputes,
                                      Offloads offloads) {
  if (counts.empty()) return {};
  const auto fitting = [&](std::int64_t count) -> const Strategy* {
    const std::optional<Strategy>& helped = help.of(count, most_divided, offloads);
    if (!helped) return nullptr;
    const Recomputation& recompute = helped->stages[0].recompute;
    const bool is_wanted = recomputes == Recomputes::kYes || !recompute || !recompute.again;
    return is_wanted ? &*helped : nullptr;
  };
  std::vector<Strategy> found;
  const auto fits_with = [&](std::int64_t count) { return fitting(count) != nullptr; };
  for (std::size_t i = first_enough(counts, fits_with); i < counts.size(); ++i) {
    const Strategy* helped = fitting(counts[i]);
    if (helped == nullptr) break;
    found.push_back(*helped);
    if (found.size() == kMostHelped || !helped->stages[0].recompute) break;
  }
  return found;
}

/// Returns the strategy with the fewest of `counts` micro-batches that fits where the devices
/// divide what `level` says.
std::optional<Strategy> fewest_by_level(const Problem& problem, Evaluator& evaluator,
                                        const std::vector<std::int64_t>& counts,
                                        std::size_t devices, const MakeStage& make,
                                        StateLevel level) {
  if (devices < 2 || counts.empty() || !may_divide(problem, level)) return std::nullopt;
  std::optional<Strategy> found;
  const auto fits_with = [&](std::int64_t count) {
    Strategy strategy = one_stage(problem, count, make);
    if (!fit_memory_by(problem, evaluator, strategy, level, SampleMoves::kYes)) return false;
    found = std::move(strategy);
    return true;
  };
  const std::size_t first = first_enough(counts, fits_with);
  if (!found) fits_with(counts[first]);
  return found;
}

class DataParallelSeeder : public Seeder {
 public:
  std::string_view name() const override { return "data_parallel"; }

  Result<std::vector<Strategy>> seed(const Problem& problem, Rng) const override {
    StageTimer timer(problem, all_ops(problem));
    Evaluator evaluator(problem);
    RoughModel model(problem);
    std::vector<Candidate> candidates;
    const auto add = [&](Strategy strategy) {
      const double seconds = model.step(strategy, {&timer}).seconds;
      candidates.push_back({std::move(strategy), seconds});
    };
    // Returns whether something fits without help.
    const auto add_forms = [&](const std::vector<DeviceId>& devices, const MakeStage& make) {
      Strategy plain = fewest_micro_batches(problem, evaluator, devices.size(), make);
      const std::vector<std::int64_t> counts =
          fewer_counts(problem, evaluator, plain, devices.size());
      MemoryHelp help(problem, evaluator, make);
      const auto helped = [&](StateLevel most, Recomputes recomputes = Recomputes::kYes,
                              Offloads offloads = Offloads::kNo) {
        return fewer_with_help(help, counts, most, recomputes, offloads);
      };
      // Gradients that are divided let fewer micro-batches fit, which need not be faster, and so do
      // parameters.
      std::vector<Strategy> whole = helped(StateLevel::kOptimizer), filled;
      if (may_divide(problem, StateLevel::kGradients)) filled = helped(StateLevel::kGradients);
      const auto add_if = [&](std::vector<Strategy> found, const auto& is_wanted) {
        for (Strategy& strategy : found) {
          if (is_wanted(strategy.stages[0])) add(std::move(strategy));
        }
      };
      const auto is_offloaded = [](const StageSpec& spec) {
        return spec.state_in_host || spec.recompute.in_host;
      };
      const auto is_gathered = [](const StageSpec& spec) {
        return spec.state == StateLevel::kParameters;
      };
      for (const Recomputes recomputes : {Recomputes::kNo, Recomputes::kYes}) {
        if (!may_use_hosts(problem)) break;
        add_if(helped(StateLevel::kGradients, recomputes, Offloads::kYes), is_offloaded);
      }
      // What `fit_memory` takes for the fastest need not be it, so each level is tried.
      for (const StateLevel level : kDividingLevels) {
        std::optional<Strategy> divided =
            fewest_by_level(problem, evaluator, counts, devices.size(), make, level);
        if (divided) add(*std::move(divided));
      }
      if (may_divide(problem, StateLevel::kParameters)) {
        // State in hosts lets fewer micro-batches fit, which need not be faster.
        for (const Recomputes recomputes : {Recomputes::kNo, Recomputes::kYes}) {
          for (const Offloads offloads : {Offloads::kNo, Offloads::kYes}) {
            if (offloads == Offloads::kYes && !may_use_hosts(problem)) break;
            add_if(helped(StateLevel::kParameters, recomputes, offloads), is_gathered);
          }
        }
      }
      const bool fits = evaluator.lacking(plain) <= 0;
      add(std::move(plain));
      add_if(std::move(filled),
             [](const StageSpec& spec) { return spec.state >= StateLevel::kGradients; });
      add_if(std::move(whole), [](const StageSpec&) { return true; });
      return fits;
    };
    for (const std::vector<DeviceId>& devices : device_sets(problem.cluster)) {
      const bool fits = add_forms(devices, [&](std::int64_t samples) {
        return balanced_stage(problem, timer, devices, samples);
      });
      if (fits) continue;
      // Shares by speed may leave out slow devices that have the memory.
      add_forms(devices,
                [&](std::int64_t samples) { return equal_stage(problem, devices, samples); });
    }
    return thin_out(model, evaluator, std::move(candidates), kDataParallelKept);
  }
};

class EqualSeeder : public Seeder {
 public:
  std::string_view name() const override { return "equal"; }
  bool as_it_is() const override { return true; }

  Result<std::vector<Strategy>> seed(const Problem& problem, Rng) const override {
    AGPCS_TRY(Strategy strategy, plain_data_parallelism(problem));
    return std::vector<Strategy>{std::move(strategy)};
  }
};

}  // namespace

std::unique_ptr<Seeder> make_equal_seeder() { return std::make_unique<EqualSeeder>(); }

std::unique_ptr<Seeder> make_data_parallel_seeder() {
  return std::make_unique<DataParallelSeeder>();
}

Strategy data_parallelism_by_speed(const Problem& problem, Evaluator& evaluator) {
  const std::vector<DeviceId> devices = all_devices(problem.cluster);
  StageTimer timer(problem, all_ops(problem));
  return fewest_micro_batches(problem, evaluator, devices.size(), [&](std::int64_t samples) {
    return balanced_stage(problem, timer, devices, samples);
  });
}

Result<Strategy> plain_data_parallelism(const Problem& problem) {
  const std::vector<DeviceId> devices = all_devices(problem.cluster);
  Evaluator evaluator(problem);
  const auto make = [&](std::int64_t samples) { return equal_stage(problem, devices, samples); };
  Strategy strategy = fewest_micro_batches(problem, evaluator, devices.size(), make);
  const std::int64_t asked = problem.options.bucket_bytes;
  return group_gradients(problem, std::move(strategy), asked > 0 ? asked : kUsualBucketBytes);
}

}  // namespace agpcs
