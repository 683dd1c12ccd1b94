// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/flat_step.h"

#include "cost_model/step/model.h"
#include "ir/plan/lookup.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace agpcs {

void FlatStep::clear() {
  round = rounds = 1;
  ranks.clear();
  times.clear();
  gradients.clear();
  larger_gradients.clear();
  tails.clear();
  needs.clear();
  channels.clear();
  collectives.clear();
  least_seconds.clear();
  group_of_bucket.clear();
  group_first.clear();
  group_members.clear();
  further_first.clear();
  group_of_further.clear();
  team_first.clear();
  team_ranks.clear();
  teams.clear();
  team_exchanges.clear();
  team_bytes.clear();
  clear_ends();
}

void FlatStep::add_team(const TeamScript& larger, const TeamScript& smaller) {
  const auto add = [&](const TeamScript& script) {
    const auto first = static_cast<int>(team_exchanges.size());
    for (const Exchange& exchange : script.exchanges) team_exchanges.push_back(&exchange);
    return first;
  };
  FlatTeam& team = teams.emplace_back();
  team.larger = &larger;
  team.smaller = &smaller;
  team.larger_first = add(larger);
  team.smaller_first = &smaller == &larger ? team.larger_first : add(smaller);
}

void FlatStep::clear_ends() {
  end_base_.clear();
  end_first_.clear();
  end_channels_.clear();
}

void FlatStep::add_ends(int first, int senders, int receivers) {
  add_end(first, senders, true);
  add_end(first, receivers, false);
}

void FlatStep::add_end(const std::vector<std::vector<int>>& by_place, std::size_t places) {
  end_base_.push_back(static_cast<int>(end_first_.size()));
  for (std::size_t place = 0; place < places; ++place) {
    end_first_.push_back(static_cast<int>(end_channels_.size()));
    if (place >= by_place.size()) continue;
    const std::vector<int>& channels_of_it = by_place[place];
    end_channels_.insert(end_channels_.end(), channels_of_it.begin(), channels_of_it.end());
  }
  end_first_.push_back(static_cast<int>(end_channels_.size()));
}

void FlatStep::take_ends(const FlatStep& other, const std::vector<int>& now) {
  end_base_ = other.end_base_;
  end_first_.clear();
  end_channels_.clear();
  for (std::size_t i = 0; i < other.end_first_.size(); ++i) {
    const auto begin = static_cast<std::ptrdiff_t>(end_channels_.size());
    end_first_.push_back(static_cast<int>(begin));
    // The last entry of an end has no channels: the next end begins where it ends.
    const int last =
        i + 1 < other.end_first_.size() ? other.end_first_[i + 1] : other.end_first_[i];
    for (int c = other.end_first_[i]; c < last; ++c) {
      const int channel =
          now[static_cast<std::size_t>(other.end_channels_[static_cast<std::size_t>(c)])];
      const auto own = end_channels_.begin() + begin;
      if (std::find(own, end_channels_.end(), channel) == end_channels_.end()) {
        end_channels_.push_back(channel);
      }
    }
  }
}

/// Counts the channels of each rank, then puts them there, ascending in each rank.
void FlatStep::add_end(int first, int places, bool sending) {
  end_base_.push_back(static_cast<int>(end_first_.size()));
  const std::size_t base = end_first_.size();
  const std::size_t begin = end_channels_.size();
  end_first_.resize(base + static_cast<std::size_t>(places) + 1, 0);
  end_channels_.resize(begin + channels.size() - static_cast<std::size_t>(first));
  const auto end_of = [&](std::size_t channel) -> int& {
    const int rank = sending ? channels[channel].from : channels[channel].to;
    return end_first_[base + static_cast<std::size_t>(ranks[static_cast<std::size_t>(rank)].place)];
  };
  for (std::size_t c = static_cast<std::size_t>(first); c < channels.size(); ++c) ++end_of(c);
  int end = static_cast<int>(begin);
  for (std::size_t i = base; i < end_first_.size(); ++i) {
    end += end_first_[i];
    end_first_[i] = end;
  }
  for (std::size_t c = channels.size(); c-- > static_cast<std::size_t>(first);) {
    end_channels_[static_cast<std::size_t>(--end_of(c))] = static_cast<int>(c);
  }
}

namespace {

void add_row(const RankTimes& times, bool scatters, FlatStep& step) {
  step.times.push_back({times.begin, times.forward, times.backward, times.update,
                        times.smaller_forward, times.smaller_backward, times.weight,
                        times.smaller_weight, times.step_end});
  step.gradients.insert(step.gradients.end(), times.gradients.begin(), times.gradients.end());
  step.needs.insert(step.needs.end(), times.needs.begin(), times.needs.end());
  if (!scatters) return;
  step.larger_gradients.insert(step.larger_gradients.end(), times.larger_gradients.begin(),
                               times.larger_gradients.end());
}

void flatten_ranks(const Plan& plan, const StepModel& model, bool scatters, FlatStep& step) {
  for (std::size_t r = 0; r < model.ranks.size(); ++r) {
    const StepRank& rank = model.ranks[r];
    const bool unlike = plan.stages[static_cast<std::size_t>(rank.stage)].has_unlike_teams();
    step.ranks.push_back({&model.programs[static_cast<std::size_t>(rank.program)], rank.stage,
                          rank.place, rank.device, static_cast<int>(r), rank.team,
                          unlike ? 0 : rank.member});
  }
  for (std::size_t round = 0; round < static_cast<std::size_t>(model.rounds); ++round) {
    for (const StepRank& rank : model.ranks) {
      const bool idle = round > rank.further_times.size();
      add_row(round == 0 || idle ? rank.times : rank.further_times[round - 1], scatters, step);
    }
  }
}

void flatten_groups(const Plan& plan, FlatStep& step) {
  const auto add = [&](const std::vector<int>& ranks) {
    step.group_members.insert(step.group_members.end(), ranks.begin(), ranks.end());
    step.group_first.push_back(static_cast<int>(step.group_members.size()));
  };
  step.group_first.push_back(0);
  for (const PlanStage& stage : plan.stages) {
    add(stage.has_unlike_teams() ? stage.all_ranks() : stage.ranks);
  }
  int next = world_group(plan) + 1;  // group of the next set of stages that share a bucket
  for (const PlanBucket& bucket : plan.buckets) {
    const int group = group_of(plan, bucket);
    step.group_of_bucket.push_back(bucket.is_shared() ? group - 1 : group);
    if (group != next) continue;
    add(ranks_of(plan, bucket));
    ++next;
  }
  if (plan.bodies.empty()) return;
  for (const PlanBucket& bucket : plan.buckets) {
    step.further_first.push_back(static_cast<int>(step.group_of_further.size()));
    const std::vector<std::vector<int>> groups = meeting_ranks(plan, bucket);
    for (std::size_t m = 1; m < groups.size(); ++m) {
      step.group_of_further.push_back(static_cast<int>(step.group_first.size()) - 1);
      add(groups[m]);
    }
  }
}

void flatten_teams(const StepModel& model, FlatStep& step) {
  step.team_first.push_back(0);
  for (const std::vector<int>& team : model.teams) {
    step.team_ranks.insert(step.team_ranks.end(), team.begin(), team.end());
    step.team_first.push_back(static_cast<int>(step.team_ranks.size()));
  }
  for (const TeamScripts& scripts : model.team_scripts) {
    step.add_team(scripts.larger, scripts.smaller ? *scripts.smaller : scripts.larger);
  }
  for (const TeamCollectives& of : model.team_exchanges) {
    for (const Exchange& exchange : of.exchanges) {
      step.team_bytes.emplace_back(&exchange, of.end - of.first);
    }
  }
}

}  // namespace

void flatten(const Plan& plan, const StepModel& model, FlatStep& step) {
  step.clear();
  step.micro_batches = static_cast<int>(plan.micro_batches);
  step.smaller_from = model.smaller_from;
  step.round = model.round;
  step.rounds = model.rounds;
  const bool scatters = std::any_of(plan.buckets.begin(), plan.buckets.end(),
                                    [](const auto& b) { return b.divides_gradients(); });
  flatten_ranks(plan, model, scatters, step);
  flatten_groups(plan, step);
  flatten_teams(model, step);
  for (const Channel& channel : model.channels) {
    step.channels.push_back({channel.from, channel.to, FlatChannel::kOf, &channel.exchange});
  }
  for (const Exchange& sum : model.sums) step.collectives.push_back(&sum);
  step.collectives.push_back(&model.report);
  step.collectives.push_back(&model.norm);
  for (const Exchange& gather : model.gathers) step.collectives.push_back(&gather);
  for (const std::vector<Exchange>& sums : model.further_sums) {
    for (const Exchange& sum : sums) step.collectives.push_back(&sum);
  }
  for (std::size_t end = 0; end < model.channel_ends.size(); ++end) {
    const Cut& cut = plan.cuts[end / 4 % plan.cuts.size()];
    const bool producer = end % 4 == 0 || end % 4 == 3;  // sends, and receives the gradient
    const int stage = producer ? cut.from : cut.to;
    step.add_end(model.channel_ends[end],
                 plan.stages[static_cast<std::size_t>(stage)].all_ranks().size());
  }
}

}  // namespace agpcs
