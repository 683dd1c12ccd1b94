// SPDX-License-Identifier: Apache-2.0
// Random strategies that verify: stages of blocks, devices, shares, micro-batches, schedules,
// micro-batches in flight, recomputation, buckets.
#pragma once

#include "ir/base/rng.h"
#include "ir/base/shuffle.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/problem.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs::testing {

/// A number in [low, high].
inline int between(Rng& rng, int low, int high) {
  return low + static_cast<int>(rng.below(static_cast<std::uint64_t>(high - low + 1)));
}

/// `devices` devices in `stages` groups, none empty, each ascending; some devices may be left out.
inline std::vector<std::vector<DeviceId>> random_groups(Rng& rng, int devices, int stages) {
  std::vector<DeviceId> order;
  for (DeviceId id = 0; id < devices; ++id) order.push_back(id);
  shuffle(order, rng);
  std::vector<std::vector<DeviceId>> groups(static_cast<std::size_t>(stages));
  for (int i = 0; i < devices; ++i) {
    const int group = i < stages ? i : between(rng, 0, stages);  // `stages`: left out
    if (group < stages) {
      groups[static_cast<std::size_t>(group)].push_back(order[static_cast<std::size_t>(i)]);
    }
  }
  for (std::vector<DeviceId>& group : groups) std::sort(group.begin(), group.end());
  return groups;
}

/// `samples` in as many parts as there are devices, each at least 1. Needs: enough samples.
inline std::vector<std::int64_t> random_shares(Rng& rng, std::size_t devices,
                                               std::int64_t samples) {
  std::vector<std::int64_t> shares(devices, 1);
  for (std::int64_t left = samples - static_cast<std::int64_t>(devices); left > 0; --left) {
    ++shares[rng.below(devices)];
  }
  return shares;
}

/// Stages of consecutive blocks.
inline std::vector<int> random_stages(Rng& rng, const Problem& problem, int stages) {
  const int blocks = static_cast<int>(problem.blocks.blocks.size());
  std::vector<int> stage_of_block(static_cast<std::size_t>(blocks));
  std::vector<int> firsts;
  while (static_cast<int>(firsts.size()) < stages - 1) {
    const int first = between(rng, 1, blocks - 1);
    if (std::find(firsts.begin(), firsts.end(), first) == firsts.end()) firsts.push_back(first);
  }
  for (const int first : firsts) {
    for (int b = first; b < blocks; ++b) ++stage_of_block[static_cast<std::size_t>(b)];
  }
  return stage_of_ops(problem.blocks, stage_of_block);
}

inline Recomputation random_recomputation(Rng& rng) {
  if (rng.below(3) != 0) return {};
  const int segments = between(rng, 1, 6);
  return {segments, between(rng, 0, segments - 1)};
}

/// With buckets of random sizes and algorithms; or, now and then, without any.
inline Strategy random_strategy(Rng& rng, const Problem& problem) {
  const int devices = problem.cluster.device_count();
  for (;;) {
    const int most = std::min({4, devices, static_cast<int>(problem.blocks.blocks.size())});
    const int stages = between(rng, 1, most);
    Strategy strategy;
    strategy.stage_of = random_stages(rng, problem, stages);
    const auto groups = random_groups(rng, devices, stages);
    std::size_t widest = 0;
    for (const auto& group : groups) widest = std::max(widest, group.size());
    std::vector<std::int64_t> counts = micro_batch_numbers(problem.training.batch);
    std::erase_if(counts, [&](std::int64_t count) {
      return problem.training.batch / count < static_cast<std::int64_t>(widest);
    });
    if (counts.empty()) continue;
    strategy.micro_batches = counts[rng.below(counts.size())];
    strategy.schedule = rng.below(3) == 0 ? Schedule::kGPipe : Schedule::k1F1B;
    for (const auto& group : groups) {
      strategy.stages.push_back(
          {group,
           random_shares(rng, group.size(),
                         largest_micro_batch(problem.training.batch, strategy.micro_batches)),
           random_recomputation(rng)});
      if (rng.below(2) == 0) strategy.stages.back().odd = group[rng.below(group.size())];
    }
    if (problem.options.part_backward && may_part_backward(strategy) && rng.below(3) == 0) {
      strategy.schedule = Schedule::kZeroBubble;
    }
    if (strategy.schedule != Schedule::kGPipe && rng.below(3) == 0) {
      for (StageSpec& spec : strategy.stages) {
        spec.in_flight = between(rng, 1, static_cast<int>(strategy.micro_batches));
      }
      std::sort(strategy.stages.begin(), strategy.stages.end(),
                [](const StageSpec& a, const StageSpec& b) { return *a.in_flight > *b.in_flight; });
      fit_in_flight(strategy);
    }
    if (!verify_strategy(strategy, problem.graph, problem.cluster, problem.training.batch).ok()) {
      continue;
    }
    if (rng.below(5) == 0) return strategy;
    const std::int64_t sizes[] = {1, 100'000, 1'000'000, 25'000'000};
    strategy = group_gradients(problem, std::move(strategy), sizes[rng.below(4)]);
    for (Bucket& bucket : strategy.buckets) {
      if (rng.below(2) == 0) bucket.algorithm = kAllReduces[rng.below(kAllReduces.size())];
    }
    return strategy;
  }
}

/// Stages that go round over random groups of devices; nothing where in some tries none verifies,
/// because two stages of the same devices share a parameter.
inline std::optional<Strategy> random_interleaved(Rng& rng, const Problem& problem) {
  const int blocks = static_cast<int>(problem.blocks.blocks.size());
  if (problem.cluster.device_count() < 2) return std::nullopt;
  for (int tries = 0; tries < 20; ++tries) {
    const int groups = between(rng, 2, std::min(3, problem.cluster.device_count()));
    if (2 * groups > blocks) continue;
    const int each = between(rng, 2, std::min(4, blocks / groups));
    Strategy strategy;
    strategy.schedule = Schedule::kInterleaved;
    strategy.stage_of = random_stages(rng, problem, groups * each);
    const auto devices = random_groups(rng, problem.cluster.device_count(), groups);
    std::size_t widest = 0;
    for (const auto& group : devices) widest = std::max(widest, group.size());
    std::vector<std::int64_t> counts = micro_batch_numbers(problem.training.batch);
    std::erase_if(counts, [&](std::int64_t count) {
      return problem.training.batch / count < static_cast<std::int64_t>(widest);
    });
    if (counts.empty()) continue;
    strategy.micro_batches = counts[rng.below(counts.size())];
    for (int s = 0; s < groups * each; ++s) {
      StageSpec spec;
      if (s >= groups) {
        spec = strategy.stages[static_cast<std::size_t>(s - groups)];
      } else {
        spec.devices = devices[static_cast<std::size_t>(s)];
        spec.shares =
            random_shares(rng, spec.devices.size(),
                          largest_micro_batch(problem.training.batch, strategy.micro_batches));
        if (rng.below(2) == 0) spec.odd = spec.devices[rng.below(spec.devices.size())];
      }
      spec.recompute = random_recomputation(rng);
      strategy.stages.push_back(std::move(spec));
    }
    if (!verify_strategy(strategy, problem.graph, problem.cluster, problem.training.batch).ok()) {
      continue;
    }
    if (rng.below(3) != 0) strategy = group_gradients(problem, std::move(strategy), 100'000);
    return strategy;
  }
  return std::nullopt;
}

}  // namespace agpcs::testing
