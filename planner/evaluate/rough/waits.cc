// SPDX-License-Identifier: Apache-2.0
// RoughModel: what stages wait for where they alternate forward and backward passes, and what
// devices with several stages do.
#include "ir/plan/lookup.h"
#include "ir/strategy/interleaved.h"
#include "planner/evaluate/rough/step.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {
namespace {

/// Returns when the last backward pass ends where stages go round over P device groups, V times.
/// The last group gets its first micro-batch after P - 1 passes, and the first one its last
/// gradient as long after the last group has made it. A round of G micro-batches fills a stage of
/// each group before it comes round again, which takes P passes and messages: where G passes take
/// less, all wait, V - 1 times forward and back. In between, neighbours differ by two passes in
/// flight, so that three slots hide a pass of each of two groups, there and back, with the messages
/// between; a way over all groups is the same of 2 P - 1 slots.
template <typename Passes, typename Messages>
double interleaved_seconds(const Strategy& strategy, const std::vector<Passes>& passes,
                           const Messages& messages, double slowest_lane) {
  const auto round = static_cast<std::size_t>(round_size(strategy));
  const std::size_t rounds = passes.size() / round;
  const auto groups = static_cast<double>(round), laps = static_cast<double>(rounds);
  const auto micro_batches = static_cast<double>(strategy.micro_batches);
  double slowest = 0, there = 0, back = 0, sent = 0, sent_back = 0;
  for (std::size_t p = 0; p < round; ++p) {
    double own = 0;
    for (std::size_t s = p; s < passes.size(); s += round) {
      own += passes[s].both;
      there += passes[s].forward;
      back += passes[s].backward;
      sent += messages.forward[s];
      sent_back += messages.backward[s];
    }
    slowest = std::max(slowest, own);
  }
  double first = 0;  // on the way to the last group, and back
  for (std::size_t p = 0; p + 1 < round; ++p) {
    first += passes[p].forward + messages.forward[p + 1];
    first += passes[p].backward + messages.backward[p];
  }
  const auto stages = static_cast<double>(passes.size());
  const std::vector<int> sizes =
      rounds_of_micro_batches(static_cast<int>(strategy.micro_batches), static_cast<int>(round));
  const auto lap = [&](double pass, double message, int size) {
    return std::max(0.0, groups * (pass + message) - size * pass);
  };
  const double fills = lap(there / stages, sent / stages, sizes.front()) * (laps - 1);
  const double drains = lap(back / stages, sent_back / stages, sizes.back()) * (laps - 1);
  const double slot = slowest / laps, both_ways = (sent + sent_back) / stages;
  const double hidden = (groups * slot + (groups - 1) * both_ways) / (2 * groups - 1);
  return first + fills + drains + micro_batches * std::max({slowest, laps * hidden, slowest_lane});
}

}  // namespace

/// Returns when the last backward pass ends as far as stage `s` waits for ways to later stages and
/// back: those before it hide one as far as it has more in flight than they. With the textbook's
/// numbers, the way to the last stage says all. `slowest`: of the stages from `s` on.
double RoughModel::end_by_ways(const Strategy& strategy, const std::vector<Passes>& passes,
                               const Messages& messages, double longest_way, std::size_t s,
                               double slowest) {
  const std::int64_t in_flight = most_in_flight(strategy, s);
  double end = 0;
  for (std::size_t later = s + 1; later < passes.size(); ++later) {
    const std::int64_t hidden = in_flight - most_in_flight(strategy, later) + 1;
    if (hidden < 1) continue;  // they exchange no gradient
    const double way = messages.later_way[s] - messages.later_way[later] + passes[later].way();
    const std::int64_t turns = (strategy.micro_batches - in_flight) / hidden;
    const auto others = static_cast<double>(strategy.micro_batches - 1 - turns * hidden);
    end = std::max(end, longest_way + static_cast<double>(turns) * way + others * slowest);
  }
  return end;
}

/// Lengthens the step to when the last backward pass ends, as far as stages know.
void RoughModel::add_waits_of_1f1b(const Strategy& strategy, const std::vector<Passes>& passes,
                                   const Messages& messages, RoughStep& rough) {
  if (strategy.schedule == Schedule::kInterleaved) {
    rough.seconds = interleaved_seconds(strategy, passes, messages, rough.slowest_cut);
    return;
  }
  const std::int64_t all = strategy.micro_batches;
  const bool departs = std::any_of(strategy.stages.begin(), strategy.stages.end(),
                                   [](const StageSpec& spec) { return bool(spec.in_flight); });
  double there = 0, back = 0;  // all forward passes of a way, and all that go back
  for (const Passes& own : passes) {
    there += own.forward;
    back += own.way() - own.forward;
  }
  const bool parted = strategy.schedule == Schedule::kZeroBubble;
  const std::vector<std::int64_t> numbers =
      parted ? in_flight_by_stage(strategy) : std::vector<std::int64_t>();
  double held = 0, free = 0, slowest = 0;  // free: if all micro-batches were in flight
  for (std::size_t s = passes.size(); s-- > 0;) {
    const Passes& of_stage = passes[s];
    const double both = of_stage.both;
    const std::int64_t in_flight = most_in_flight(strategy, s);
    const double before = rough.longest_way - messages.way[s];
    slowest = std::max(slowest, both);
    // The stage computes all of them. It waits for the first to come back, except for the forward
    // passes that it can make meanwhile.
    const auto with_waits = [&](std::int64_t others) {
      const double waits =
          messages.way[s] - of_stage.way() - static_cast<double>(others) * of_stage.forward;
      const double own = static_cast<double>(all) * both + std::max(0.0, waits);
      if (!parted) return before + own;
      // The last weight passes come while the last gradient goes on to the first stage.
      const auto put_off = static_cast<double>(std::min(weight_lag(numbers, s), all));
      const double first = before * there / (there + back);
      return first + own + std::max(0.0, before - first - put_off * of_stage.weight);
    };
    // A micro-batch can begin when the one `in_flight` before it has come back.
    const auto rounds = static_cast<double>((all - 1) / in_flight);
    const auto rest = static_cast<double>((all - 1) % in_flight);
    const double last = rough.longest_way + rounds * messages.later_way[s] + rest * slowest;
    double end = std::max(with_waits(in_flight - 1), last);
    if (departs) {
      end = std::max(end, end_by_ways(strategy, passes, messages, rough.longest_way, s, slowest));
    }
    if (end > held) rough.starved = static_cast<int>(s);
    held = std::max(held, end);
    free = std::max(
        {free, with_waits(all - 1), rough.longest_way + static_cast<double>(all - 1) * slowest});
    if (all <= in_flight) continue;
    const double pace =
        std::max(of_stage.forward + messages.forward[s], of_stage.backward + messages.backward[s]);
    rough.seconds =
        std::max(rough.seconds, rough.longest_way + static_cast<double>(all - 1) * pace);
  }
  if (std::max(rough.seconds, free) > (1 - kStarved) * held) rough.starved = -1;
  rough.seconds = std::max(rough.seconds, held);
}

}  // namespace agpcs
