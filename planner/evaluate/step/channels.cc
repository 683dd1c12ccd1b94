// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/step/channels.h"

#include "ir/base/at.h"

#include <algorithm>
#include <utility>

namespace agpcs {

void StepChannels::add(const Strategy& strategy, const PartitionInfo& partition,
                       const std::vector<int>& numbers, bool smaller, FlatStep& step) {
  strategy_ = &strategy;
  numbers_ = &numbers;
  smaller_ = smaller;
  step_ = &step;
  for (const CutInfo& cut : partition.cuts) {
    if (cut.local) {
      add_no_channels(cut);
      continue;
    }
    if (spec(cut.from).has_teams() || spec(cut.to).has_teams()) {
      add_team_channels(cut.from, cut.to, cut.forward, true);
      add_team_channels(cut.to, cut.from, cut.back, false);
      continue;
    }
    add_channels(cut.from, cut.to, cut.forward, true);
    add_channels(cut.to, cut.from, cut.back, false);
  }
}

std::int64_t StepChannels::samples_of(int stage, std::size_t replica) const {
  return spec(stage).shares[replica] - (smaller_ && replicas_.odd_of(stage) == replica ? 1 : 0);
}

/// Returns the number of a stage's ranks.
int StepChannels::places_of(int stage) const {
  const std::size_t members = spec(stage).has_teams() ? spec(stage).further[0].size() + 1 : 1;
  return static_cast<int>(spec(stage).devices.size() * members);
}

void StepChannels::add_channel(DeviceId from, DeviceId to, std::int64_t bytes) {
  step_->channels.push_back(
      {(*numbers_)[at(from)], (*numbers_)[at(to)], bytes, groups_.transfer_between(from, to)});
}

/// Calls `f(i, j, bytes)` for each replica i of stage `from` that sends something to replica j of
/// stage `to`, ascending.
template <typename F>
void StepChannels::for_each_transfer(int from, int to, const CutBytes& bytes, bool forward,
                                     F f) const {
  const std::size_t senders = spec(from).devices.size(), receivers = spec(to).devices.size();
  const std::size_t producers = forward ? senders : receivers;
  std::int64_t begin = 0;            // first of the sender's rows
  std::size_t first = 0;             // receiver of that row, or of something else
  std::int64_t first_row_there = 0;  // first of that receiver's rows
  for (std::size_t i = 0; i < senders && (bytes.rows || bytes.whole); ++i) {
    const std::int64_t end = begin + samples_of(from, i);
    for (; !bytes.whole && first < receivers; ++first) {
      const std::int64_t next = first_row_there + samples_of(to, first);
      if (next > begin) break;
      first_row_there = next;
    }
    std::int64_t other = first_row_there;  // first of the receiver's rows
    for (std::size_t j = first; j < receivers && (bytes.whole || other < end); ++j) {
      const std::int64_t share = samples_of(to, j);
      const std::int64_t rows = std::min(end, other + share) - std::max(begin, other);
      other += share;
      const bool some = bytes.rows && rows > 0;
      const bool all = bytes.whole && (forward ? j % producers == i : i % producers == j);
      if (!some && !all) continue;
      f(i, j, (some ? rows * bytes.row_bytes : 0) + (all ? bytes.whole_bytes : 0));
    }
    begin = end;
  }
}

/// Adds the ends of a cut that no message carries.
void StepChannels::add_no_channels(const CutInfo& cut) {
  const int first = static_cast<int>(step_->channels.size());
  const int ranks = static_cast<int>(spec(cut.from).devices.size());
  for (int way = 0; way < 2; ++way) step_->add_ends(first, ranks, ranks);
}

/// Adds the channels of one cut in one direction, by sender, then receiver.
void StepChannels::add_channels(int from, int to, const CutBytes& bytes, bool forward) {
  const std::vector<DeviceId>&senders = spec(from).devices, &receivers = spec(to).devices;
  const int first = static_cast<int>(step_->channels.size());
  for_each_transfer(from, to, bytes, forward, [&](std::size_t i, std::size_t j, std::int64_t sent) {
    add_channel(senders[i], receivers[j], sent);
  });
  step_->add_ends(first, static_cast<int>(senders.size()), static_cast<int>(receivers.size()));
}

/// Does so where one of the stages has teams: each member of the replica that gets something gets
/// it from the member of its own number, modulo the members of the one that has it.
void StepChannels::add_team_channels(int from, int to, const CutBytes& bytes, bool forward) {
  const auto first = static_cast<std::ptrdiff_t>(step_->channels.size());
  for_each_transfer(from, to, bytes, forward, [&](std::size_t i, std::size_t j, std::int64_t sent) {
    const std::vector<DeviceId> givers = members_of(spec(from), i);
    const std::vector<DeviceId> takers = members_of(spec(to), j);
    for (std::size_t m = 0; m < takers.size(); ++m) {
      add_channel(givers[m % givers.size()], takers[m], sent);
    }
  });
  std::sort(step_->channels.begin() + first, step_->channels.end(),
            [](const FlatChannel& a, const FlatChannel& b) {
              return std::pair(a.from, a.to) < std::pair(b.from, b.to);
            });
  step_->add_ends(static_cast<int>(first), places_of(from), places_of(to));
}

}  // namespace agpcs
