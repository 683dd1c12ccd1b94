// SPDX-License-Identifier: Apache-2.0
#include "ir/base/units.h"
#include "ir/plan/choices.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "ir/plan/text.h"
#include "ir/plan/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

class StageChecker {
 public:
  StageChecker(const Plan& plan, PlanFaults& faults) : plan_(plan), faults_(faults) {}

  void run() {
    if (plan_.stages.empty()) fail("no stages", "a plan has at least one stage");
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) check_stage(i);
    if (faults_.empty() && plan_.interleaves()) check_rounds();
    if (faults_.empty()) check_ranks();
  }

 private:
  void fail(std::string message, std::string hint = {}) {
    faults_.push_back({std::move(message), std::move(hint)});
  }

  void check_stage(std::size_t index) {
    const PlanStage& stage = plan_.stages[index];
    check_name({"stage", 's', index}, stage.name, faults_);
    const std::size_t count = stage.ranks.size();
    if (count == 0 || stage.devices.size() != count || stage.samples.size() != count) {
      return fail(fmt::format("stage {} has {} ranks, {} devices and {} samples", stage.name, count,
                              stage.devices.size(), stage.samples.size()),
                  "each rank has one device and one share");
    }
    for (std::size_t i = 1; i < count; ++i) {
      if (stage.ranks[i - 1] >= stage.ranks[i]) {
        fail(fmt::format("stage {}: rank {} comes after rank {}", stage.name, stage.ranks[i],
                         stage.ranks[i - 1]),
             "ranks ascend");
      }
    }
    if (!check_teams(stage)) return;
    if (stage.idle()) return check_idle(index);
    check_samples(stage);
    check_operators(stage);
    check_segments(stage);
    if (stage.recompute && plan_.parts_backward()) {
      fail(fmt::format("stage {} recomputes, but the schedule is {}", stage.name,
                       name_of(plan_.schedule)),
           "what is computed again serves a backward pass that is not parted");
    }
    check_activations_place(index);
    check_state_place(stage);
  }

  /// Refuses what does not go together yet with activations in the memory of hosts.
  void check_activations_place(std::size_t index) {
    const PlanStage& stage = plan_.stages[index];
    if (!stage.activations_in_host) return;
    if (plan_.interleaves() || plan_.parts_backward()) {
      fail(fmt::format("stage {} has activations-in=host, but the schedule is {}", stage.name,
                       name_of(plan_.schedule)),
           "ranks that have several stages or part backward passes keep activations on their "
           "devices yet");
    }
    for (const PlanBucket& bucket : plan_.buckets) {
      if (!bucket.is_of(static_cast<int>(index)) || !bucket.divides_parameters()) continue;
      return fail(fmt::format("stage {} has activations-in=host, but bucket {} has "
                              "state=parameters",
                              stage.name, bucket.name),
                  "the two do not go together yet");
    }
  }

  /// Checks that a stage whose state is in the memory of hosts has some.
  void check_state_place(const PlanStage& stage) {
    if (!stage.state_in_host) return;
    if (plan_.interleaves()) {
      fail(fmt::format("stage {} has state-in=host, but the schedule is {}", stage.name,
                       name_of(plan_.schedule)),
           "ranks that have several stages keep the optimizer's state on their devices yet");
    }
    const DType held = entry_of(kPrecisions, plan_.training.precision).held;
    const bool copies = size_of(held) < size_of(DType::kFp32);
    if (copies || variant_of(plan_.training.optimizer).state_tensors > 0) return;
    fail(fmt::format("stage {} has state-in=host, but the optimizer remembers nothing", stage.name),
         "leave out state-in=");
  }

  /// Checks that the replicas of a stage are teams of one form, or none of them is one.
  bool check_teams(const PlanStage& stage) {
    const std::size_t replicas = stage.has_teams() ? stage.ranks.size() : 0;
    const bool unlike = stage.has_unlike_teams();
    bool fits = stage.further_ranks.size() == replicas && stage.further_devices.size() == replicas;
    for (std::size_t i = 0; i < replicas && fits; ++i) {
      fits = (unlike || (!stage.further_ranks[i].empty() &&
                         stage.further_ranks[i].size() == stage.further_ranks[0].size())) &&
             stage.further_devices[i].size() == stage.further_ranks[i].size();
    }
    if (!fits) {
      fail(fmt::format("stage {}: its {} replicas are not teams of {}ranks, each with a device",
                       stage.name, stage.ranks.size(), unlike ? "" : "equally many "),
           "body= says what teams do; without it, a replica is one rank");
    }
    if (fits && unlike && stage.bodies.size() != replicas) {
      fits = false;
      fail(fmt::format("stage {}: {} bodies for {} replicas", stage.name, stage.bodies.size(),
                       replicas),
           "unlike replicas have a body each");
    }
    return fits;
  }

  void check_idle(std::size_t index) {
    const PlanStage& stage = plan_.stages[index];
    if (index == 0 || index + 1 < plan_.stages.size()) {
      fail(fmt::format("stage {} has no operators", stage.name),
           "ranks without work are in one stage, the last of several");
    }
    if (stage.odd != -1) {
      fail(fmt::format("stage {} has no operators, but odd={}", stage.name, stage.odd),
           "idle ranks take 0 samples");
    }
    if (stage.state_in_host) {
      fail(fmt::format("stage {} has no operators, but state-in=host", stage.name),
           "idle ranks have no state");
    }
    if (stage.activations_in_host) {
      fail(fmt::format("stage {} has no operators, but activations-in=host", stage.name),
           "idle ranks have no activations");
    }
    for (std::size_t i = 0; i < stage.samples.size(); ++i) {
      if (stage.samples[i] == 0) continue;
      return fail(fmt::format("stage {} has no operators, but rank {} takes {} samples", stage.name,
                              stage.ranks[i], stage.samples[i]),
                  "idle ranks take 0 samples");
    }
  }

  void check_samples(const PlanStage& stage) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < stage.samples.size(); ++i) {
      const std::int64_t samples = stage.samples[i];
      if (samples < 1 || samples > plan_.training.batch) {
        return fail(fmt::format("stage {}: rank {} takes {} samples of a batch of {}", stage.name,
                                stage.ranks[i], samples, plan_.training.batch));
      }
      if (sum <= kLargestFigure) sum += samples;
    }
    if (plan_.micro_batches < 1) return;
    check_odd(stage);
    if (sum == plan_.micro_batch_size()) return;
    fail(fmt::format("stage {}: samples sum to {}, a micro-batch has {}", stage.name, sum,
                     plan_.micro_batch_size()),
         batch_text());
  }

  /// Returns "batch 32 in 2 micro-batches".
  std::string batch_text() const {
    return fmt::format("batch {} in {}", plan_.training.batch,
                       plural(plan_.micro_batches, "micro-batch", "es"));
  }

  /// Checks who takes one sample less of the smaller micro-batches, where there are any.
  void check_odd(const PlanStage& stage) {
    const bool equal = plan_.training.batch % plan_.micro_batches == 0;
    if (equal && stage.odd == -1) return;
    const std::string batch = batch_text();
    if (equal) {
      return fail(fmt::format("stage {} has odd={}, but all micro-batches are equal", stage.name,
                              stage.odd),
                  batch);
    }
    const auto rank = std::find(stage.ranks.begin(), stage.ranks.end(), stage.odd);
    if (rank == stage.ranks.end()) {
      return fail(stage.odd == -1 ? fmt::format("stage {} has no odd=RANK", stage.name)
                                  : fmt::format("stage {}: odd={} is no rank of the stage",
                                                stage.name, stage.odd),
                  batch + ": one rank takes a sample less of the smaller ones");
    }
    const std::int64_t samples =
        stage.samples[static_cast<std::size_t>(rank - stage.ranks.begin())];
    if (samples > 1) return;
    fail(fmt::format("stage {}: rank {} would take 0 samples of smaller micro-batches", stage.name,
                     stage.odd),
         "odd=RANK names a rank with at least 2 samples");
  }

  void check_operators(const PlanStage& stage) {
    for (const PlanStage::Run& run : stage.operators) {
      if (run.count < 1 || run.count > kLargestFigure ||
          (run.count == 1) != (run.first == run.last)) {
        fail(fmt::format("stage {}: {} operators from '{}' to '{}'", stage.name, run.count,
                         run.first, run.last));
      }
    }
  }

  /// Checks which operators are a segment, where that is not all of them.
  void check_segments(const PlanStage& stage) {
    if (stage.segments.empty()) return;
    if (!stage.recompute && !stage.activations_in_host) {
      return fail(fmt::format("stage {} has segments, but recompute=no", stage.name),
                  "segments are recomputed, or have activations in hosts: recompute=yes, "
                  "activations-in=host, or no segments=");
    }
    const std::int64_t operators = operator_count(stage);
    std::int64_t sum = 0;
    for (const std::int64_t segment : stage.segments) {
      if (segment < 1 || segment > operators - sum) {
        return fail(fmt::format("stage {}: segments have {} operators, the stage has {}",
                                stage.name, print_samples(stage.segments), operators),
                    "each segment has an operator, and all have no more than the stage");
      }
      sum += segment;
    }
    if (stage.segments.size() > 1 || sum < operators) return;
    fail(fmt::format("stage {} has one segment of all its operators", stage.name),
         fmt::format("that is {} without segments=",
                     stage.recompute ? "recompute=yes" : "activations-in=host"));
  }

  /// Checks that stages go round over sets of ranks.
  void check_rounds() {
    const int round = plan_.round_size();
    const int stages = working_stages(plan_);
    if (round < 2 || stages < 2 * round || stages % round != 0) {
      return fail(fmt::format("the schedule is {}, and {} stages go round over {} sets of ranks",
                              name_of(plan_.schedule), stages, round),
                  "at least two sets of ranks, each with equally many stages, two or more");
    }
    for (int i = 0; i < stages; ++i) {
      const PlanStage& stage = plan_.stages[static_cast<std::size_t>(i)];
      const PlanStage& first = plan_.stages[static_cast<std::size_t>(i % round)];
      if (stage.ranks != first.ranks || stage.devices != first.devices ||
          stage.samples != first.samples || stage.odd != first.odd) {
        fail(fmt::format("stage {} has other ranks, devices or samples than stage {}", stage.name,
                         first.name),
             fmt::format("stages go round: every {} stages the same ranks come again", round));
      }
      if (stage.has_teams()) {
        fail(fmt::format("stage {} has teams, but the schedule is {}", stage.name,
                         name_of(plan_.schedule)),
             "ranks that have several stages are no teams yet");
      }
    }
  }

  void check_ranks() {
    std::map<int, std::string_view> stage_of;
    std::set<std::string_view> devices;
    const auto add = [&](const PlanStage& stage, int rank, const std::string& device) {
      const auto [it, added] = stage_of.emplace(rank, stage.name);
      if (!added) {
        fail(fmt::format("rank {} is in stage {} and in stage {}", rank, it->second, stage.name));
      }
      if (!devices.insert(device).second) fail(fmt::format("device '{}' has two ranks", device));
    };
    const auto round = static_cast<std::size_t>(plan_.round_size());
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const PlanStage& stage = plan_.stages[s];
      if (plan_.interleaves() && s >= round && !stage.idle()) continue;  // by `check_rounds`
      for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
        add(stage, stage.ranks[i], stage.devices[i]);
        for (std::size_t m = 0; stage.has_teams() && m < stage.further_ranks[i].size(); ++m) {
          add(stage, stage.further_ranks[i][m], stage.further_devices[i][m]);
        }
      }
    }
    const int count = plan_.rank_count();
    if (!faults_.empty() ||
        (stage_of.begin()->first == 0 && stage_of.rbegin()->first == count - 1)) {
      return;
    }
    fail(fmt::format("{} ranks, numbered {} to {}", count, stage_of.begin()->first,
                     stage_of.rbegin()->first),
         "ranks are numbered from 0 without gaps");
  }

  const Plan& plan_;
  PlanFaults& faults_;
};

}  // namespace

void check_stages(const Plan& plan, PlanFaults& faults) { StageChecker(plan, faults).run(); }

void check_name(const PlanSection& section, const std::string& name, PlanFaults& faults) {
  const std::string expected = fmt::format("{}{}", section.letter, section.index);
  if (name == expected) return;
  faults.push_back({fmt::format("{} '{}' is where '{}' is expected", section.kind, name, expected),
                    fmt::format("{}s are named {}0, {}1, ... in order", section.kind,
                                section.letter, section.letter)});
}

}  // namespace agpcs
