// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/step_folder.h"

#include "planner/problem/hash.h"

#include <algorithm>
#include <bit>
#include <initializer_list>

namespace agpcs {
namespace {

/// With fewer ranks, and where folding leaves more than one in so many, it does not pay.
constexpr std::size_t kFewRanks = 12;
constexpr int kLeast = 2;

/// A color for sums, in which the colors of several are added up.
std::uint64_t strong(std::uint64_t color, std::uint64_t salt) {
  return mix(mix(salt, color), 0x94d049bb133111ebULL);
}

std::uint64_t bits_of(double number) { return std::bit_cast<std::uint64_t>(number); }

/// The color at the beginning of what has these numbers.
std::uint64_t color_of(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t color = 0x243f6a8885a308d3ULL;
  for (const std::uint64_t number : numbers) color = mix(color, number);
  return color;
}

/// The color of what a team does in its passes, without what its exchanges put on links.
std::uint64_t color_of(const TeamScript& script) {
  std::uint64_t color = color_of({script.exchanges.size()});
  for (const TeamScript::Pass* const pass : {&script.forward, &script.backward, &script.step_end}) {
    color = mix(mix(color, bits_of(pass->after)), bits_of(pass->exchanged));
    color = mix(color, pass->meetings.size());
    for (const TeamScript::Meeting& meeting : pass->meetings) {
      color = mix(mix(color, bits_of(meeting.before)), at(meeting.exchange));
    }
  }
  return color;
}

bool is_alone(const Exchange& exchange) {
  return exchange.size() == 1 && exchange.front().flows.size() == 1;
}

}  // namespace

void StepFolder::Numbers::clear(std::size_t most) {
  const std::size_t size = std::bit_ceil(2 * most + 2);
  colors_.resize(size);
  numbers_.assign(size, -1);
  size_ = 0;
}

int StepFolder::Numbers::of(std::uint64_t color) {
  const std::size_t mask = numbers_.size() - 1;
  std::size_t place = static_cast<std::size_t>(color >> 20) & mask;
  while (numbers_[place] >= 0 && colors_[place] != color) place = (place + 1) & mask;
  if (numbers_[place] < 0) {
    colors_[place] = color;
    numbers_[place] = size_++;
  }
  return numbers_[place];
}

StepFolder::StepFolder(const Cluster& cluster)
    : cluster_(cluster),
      link_color_(cluster.links.size()),
      link_sum_(cluster.links.size()),
      touched_(cluster.links.size()),
      stands_(cluster.links.size()) {
  for (const Device& device : cluster.devices) {
    const auto& overlap = cluster.kinds[at(device.kind)].overlap;
    if (overlap.compute_seconds_per_byte > 0 || overlap.communication_factor != 1) {
      may_fold_ = false;
    }
  }
}

const FlatStep& StepFolder::fold(const FlatStep& step) {
  folded_ = may_fold_ && step.ranks.size() >= kFewRanks && load(step);
  if (!folded_) return step;
  refine();
  if (!folded_) return step;
  build(step);
  return step_;
}

bool StepFolder::load(const FlatStep& step) {
  whole_ = &step;
  for (const LinkId link : links_) touched_[at(link)] = 0;
  links_.clear();
  nodes_.clear();
  load_ranks(step);
  if (!may_leave_few()) return false;
  if (!load_transfers(step)) return false;
  load_collectives(step);
  load_teams(step);
  for (const LinkId link : links_) {
    link_color_[at(link)] = color_of({bits_of(cluster_.links[at(link)].bandwidth)});
  }
  return true;
}

void StepFolder::load_ranks(const FlatStep& step) {
  times_color_.clear();
  const std::size_t buckets = step.bucket_count();
  for (std::size_t i = 0; i < step.times.size(); ++i) {
    const FlatTimes& t = step.times[i];
    std::uint64_t color =
        color_of({bits_of(t.begin), bits_of(t.forward), bits_of(t.backward), bits_of(t.update),
                  bits_of(t.smaller_forward), bits_of(t.smaller_backward), bits_of(t.weight),
                  bits_of(t.smaller_weight), bits_of(t.step_end)});
    for (std::size_t b = 0; b < buckets; ++b) {
      color = mix(color, bits_of(step.gradients[i * buckets + b]));
      if (step.larger_gradients.empty()) continue;
      color = mix(color, bits_of(step.larger_gradients[i * buckets + b]));
    }
    const std::size_t needs = step.needs.empty() ? 0 : kNeedTimes * buckets;
    for (std::size_t n = 0; n < needs; ++n) color = mix(color, bits_of(step.needs[i * needs + n]));
    times_color_.push_back(color);
  }
  rank_color_.clear();
  for (const FlatRank& rank : step.ranks) {
    const int kind = cluster_.devices[at(rank.device)].kind;
    std::uint64_t color =
        color_of({at(rank.stage), at(rank.member), at(kind), times_color_[at(rank.times)]});
    const std::size_t further = step.times.size() / at(step.rounds);
    for (std::size_t i = 1; i < at(step.rounds); ++i) {
      color = mix(color, times_color_[at(rank.times) + i * further]);
    }
    rank_color_.push_back(color);
  }
  rank_sum_.resize(rank_color_.size());
}

/// Returns whether few enough ranks may be left: classes only fall apart from here on.
bool StepFolder::may_leave_few() {
  numbers_.clear(rank_color_.size());
  for (const std::uint64_t color : rank_color_) numbers_.of(color);
  return kLeast * numbers_.size() <= static_cast<int>(rank_color_.size());
}

bool StepFolder::load_transfers(const FlatStep& step) {
  for (const FlatChannel& channel : step.channels) {
    if (!is_alone(*channel.exchange)) return false;
    const Phase& phase = channel.exchange->front();
    const Flow& flow = phase.flows.front();
    const std::int64_t bytes = channel.bytes == FlatChannel::kOf ? flow.bytes : channel.bytes;
    nodes_.push_back({&flow, channel.from, channel.to,
                      color_of({bits_of(phase.latency), at(bytes), bits_of(flow.stretch)})});
    touch(flow);
  }
  step.for_each_sent([&](int end, int channel) {
    std::uint64_t& color = nodes_[at(channel)].color;
    color = mix(color, at(end));
  });
  return true;
}

/// Loads the flows of collectives, but for those of all ranks: no other flow meets theirs.
void StepFolder::load_collectives(const FlatStep& step) {
  for (std::size_t collective = 0; collective < step.collectives.size(); ++collective) {
    if (step.group_of_collective(collective) < 0) continue;
    std::uint64_t phases = 0;
    for (const Phase& phase : *step.collectives[collective]) {
      ++phases;
      for (const Flow& flow : phase.flows) {
        nodes_.push_back(
            {&flow, -1, -1, color_of({collective, phases, at(flow.bytes), bits_of(flow.stretch)})});
        touch(flow);
      }
    }
  }
}

/// Loads the flows of teams, and colors members by what their teams do.
void StepFolder::load_teams(const FlatStep& step) {
  exchange_node_.resize(step.team_exchanges.size());
  team_sum_.resize(step.teams.size());
  for (int team = 0; team < static_cast<int>(step.teams.size()); ++team) {
    const FlatTeam& of = step.teams[at(team)];
    const std::uint64_t larger = color_of(*of.larger);
    const std::uint64_t smaller = of.smaller == of.larger ? larger : color_of(*of.smaller);
    for (int i = step.team_first[at(team)]; i < step.team_first[at(team) + 1]; ++i) {
      std::uint64_t& color = rank_color_[at(step.team_ranks[at(i)])];
      color = mix(mix(color, larger), smaller);
    }
    load_exchanges(step, team, of.larger_first, of.larger->exchanges.size());
    if (of.smaller == of.larger) continue;
    load_exchanges(step, team, of.smaller_first, of.smaller->exchanges.size());
  }
}

void StepFolder::load_exchanges(const FlatStep& step, int team, int first, std::size_t count) {
  const auto own_first = at(step.teams[at(team)].larger_first);
  for (std::size_t e = at(first); e < at(first) + count; ++e) {
    exchange_node_[e] = nodes_.size();
    std::uint64_t phases = 0;
    for (const Phase& phase : *step.team_exchanges[e]) {
      ++phases;
      for (const Flow& flow : phase.flows) {
        nodes_.push_back({&flow, -1, -1,
                          color_of({~(e - own_first), phases, bits_of(phase.latency),
                                    at(flow.bytes), bits_of(flow.stretch)}),
                          team});
        touch(flow);
      }
    }
  }
}

void StepFolder::touch(const Flow& flow) {
  for (const LinkId link : flow.links) {
    if (touched_[at(link)] == 0) links_.push_back(link);
    touched_[at(link)] = 1;
  }
}

/// Refines colors until no class falls apart.
void StepFolder::refine() {
  int classes = count();
  while (true) {
    color_links();
    color_ranks();
    color_flows();
    const int now = count();
    if (now == classes) break;
    classes = now;
  }
  number_all();
}

void StepFolder::color_links() {
  for (const LinkId link : links_) link_sum_[at(link)] = 0;
  for (const Node& node : nodes_) {
    const std::uint64_t own = strong(node.color, 1);
    for (const LinkId link : node.flow->links) link_sum_[at(link)] += own;
  }
  for (const LinkId link : links_) {
    link_color_[at(link)] = strong(link_sum_[at(link)], link_color_[at(link)]);
    link_sum_[at(link)] = strong(link_color_[at(link)], 2);  // what `color_flows` adds up
  }
}

void StepFolder::color_ranks() {
  std::fill(rank_sum_.begin(), rank_sum_.end(), 0);
  for (const Node& node : nodes_) {
    if (node.from < 0) break;
    rank_sum_[at(node.from)] += strong(node.color, 3);
    rank_sum_[at(node.to)] += strong(node.color, 4);
  }
  color_teams();
  for (std::size_t r = 0; r < rank_color_.size(); ++r) {
    rank_color_[r] = strong(rank_sum_[r], rank_color_[r]);
  }
}

/// The members of a team begin passes together, so that each has all others for neighbours, and all
/// flows of the team.
void StepFolder::color_teams() {
  for (std::size_t team = 0; team < whole_->teams.size(); ++team) {
    std::uint64_t& sum = team_sum_[team];
    sum = 0;
    for (int i = whole_->team_first[team]; i < whole_->team_first[team + 1]; ++i) {
      sum += strong(rank_color_[at(whole_->team_ranks[at(i)])], 7);
    }
  }
  for (std::size_t n = nodes_.size(); n-- > 0 && nodes_[n].team >= 0;) {
    team_sum_[at(nodes_[n].team)] += strong(nodes_[n].color, 8);
  }
  for (std::size_t team = 0; team < whole_->teams.size(); ++team) {
    const std::uint64_t sum = team_sum_[team];
    for (int i = whole_->team_first[team]; i < whole_->team_first[team + 1]; ++i) {
      rank_sum_[at(whole_->team_ranks[at(i)])] += sum;
    }
  }
}

void StepFolder::color_flows() {
  for (Node& node : nodes_) {
    std::uint64_t sum = 0;
    for (const LinkId link : node.flow->links) sum += link_sum_[at(link)];
    if (node.from >= 0) {
      sum += strong(rank_color_[at(node.from)], 5) + strong(rank_color_[at(node.to)], 6);
    }
    if (node.team >= 0) sum += team_sum_[at(node.team)];
    node.color = strong(sum, node.color);
  }
}

/// Returns the number of classes.
int StepFolder::count() {
  numbers_.clear(rank_color_.size() + nodes_.size() + links_.size());
  for (const std::uint64_t color : rank_color_) numbers_.of(color);
  for (const Node& node : nodes_) numbers_.of(node.color);
  for (const LinkId link : links_) numbers_.of(link_color_[at(link)]);
  return numbers_.size();
}

void StepFolder::number_all() {
  numbers_.clear(links_.size());
  for (const LinkId link : links_) {
    const int before = numbers_.size();
    stands_[at(link)] = numbers_.of(link_color_[at(link)]) == before ? 1 : 0;
  }
  class_of_node_.clear();
  numbers_.clear(nodes_.size());
  for (const Node& node : nodes_) class_of_node_.push_back(numbers_.of(node.color));
  class_of_rank_.clear();
  numbers_.clear(rank_color_.size());
  for (const std::uint64_t color : rank_color_) class_of_rank_.push_back(numbers_.of(color));
  folded_ = kLeast * numbers_.size() <= static_cast<int>(rank_color_.size());
}

void StepFolder::build(const FlatStep& step) {
  step_.clear();
  step_.micro_batches = step.micro_batches;
  step_.smaller_from = step.smaller_from;
  step_.round = step.round;
  step_.rounds = step.rounds;
  step_.times = step.times;
  step_.gradients = step.gradients;
  step_.larger_gradients = step.larger_gradients;
  step_.tails = step.tails;
  step_.needs = step.needs;
  step_.least_seconds = step.least_seconds;
  step_.group_of_bucket = step.group_of_bucket;
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    if (at(class_of_rank_[r]) == step_.ranks.size()) step_.ranks.push_back(step.ranks[r]);
  }
  step_.group_of_further = step.group_of_further;
  step_.further_first = step.further_first;
  build_groups(step);
  exchanges_.resize(std::max(exchanges_.size(), step.channels.size() + step.collectives.size() +
                                                    step.team_exchanges.size()));
  flow_of_class_.assign(nodes_.size(), nullptr);
  build_teams(step);
  build_flows(step);
  class_of_node_.resize(step.channels.size());
  step_.take_ends(step, class_of_node_);
}

void StepFolder::build_groups(const FlatStep& step) {
  step_.group_first.push_back(0);
  for (std::size_t group = 0; group + 1 < step.group_first.size(); ++group) {
    const auto begin = static_cast<std::ptrdiff_t>(step_.group_members.size());
    for (int i = step.group_first[group]; i < step.group_first[group + 1]; ++i) {
      step_.group_members.push_back(class_of_rank_[at(step.group_members[at(i)])]);
    }
    std::vector<int>& members = step_.group_members;
    std::sort(members.begin() + begin, members.end());
    members.erase(std::unique(members.begin() + begin, members.end()), members.end());
    step_.group_first.push_back(static_cast<int>(members.size()));
  }
}

/// Builds teams: those of which the members are there. Members of one number are not folded with
/// those of another, so that a team has as many as before.
void StepFolder::build_teams(const FlatStep& step) {
  if (step.team_first.empty()) return;
  step_.team_first.push_back(0);
  for (const FlatRank& rank : step_.ranks) {
    if (rank.team < 0 || rank.member > 0) continue;
    for (int i = step.team_first[at(rank.team)]; i < step.team_first[at(rank.team) + 1]; ++i) {
      step_.team_ranks.push_back(class_of_rank_[at(step.team_ranks[at(i)])]);
    }
    step_.team_first.push_back(static_cast<int>(step_.team_ranks.size()));
    FlatTeam& team = step_.teams.emplace_back(step.teams[at(rank.team)]);
    const bool same = team.smaller == team.larger;
    team.larger_first = build_exchanges(step, team.larger_first, team.larger->exchanges.size());
    team.smaller_first =
        same ? team.larger_first
             : build_exchanges(step, team.smaller_first, team.smaller->exchanges.size());
  }
  for (std::size_t team = 0; team + 1 < step_.team_first.size(); ++team) {
    for (int i = step_.team_first[team]; i < step_.team_first[team + 1]; ++i) {
      step_.ranks[at(step_.team_ranks[at(i)])].team = static_cast<int>(team);
    }
  }
}

/// Builds the exchanges of a team that is left, and returns the index of the first.
int StepFolder::build_exchanges(const FlatStep& step, int first, std::size_t count) {
  const auto begin = static_cast<int>(step_.team_exchanges.size());
  const std::size_t before = step.channels.size() + step.collectives.size();
  for (std::size_t e = at(first); e < at(first) + count; ++e) {
    Exchange& exchange = exchanges_[before + e];
    std::size_t node = exchange_node_[e];
    begin_exchange(*step.team_exchanges[e], node, exchange);
    step_.team_exchanges.push_back(&exchange);
  }
  return begin;
}

/// Builds transfers and collectives. A flow that stands for its class crosses the links that stand
/// for theirs, each as often as all flows of the class do.
void StepFolder::build_flows(const FlatStep& step) {
  const std::size_t transfers = step.channels.size();
  for (std::size_t c = 0; c < transfers; ++c) {
    const int own = class_of_node_[c];
    if (flow_of_class_[at(own)] != nullptr) continue;
    const FlatChannel& channel = step.channels[c];
    Exchange& exchange = exchanges_[c];
    std::size_t node = c;
    begin_exchange(*channel.exchange, node, exchange);
    step_.channels.push_back({class_of_rank_[at(channel.from)], class_of_rank_[at(channel.to)],
                              channel.bytes, &exchange});
  }
  std::size_t node = transfers;
  for (std::size_t collective = 0; collective < step.collectives.size(); ++collective) {
    if (step.group_of_collective(collective) < 0) {
      step_.collectives.push_back(step.collectives[collective]);
      continue;
    }
    Exchange& exchange = exchanges_[transfers + collective];
    begin_exchange(*step.collectives[collective], node, exchange);
    step_.collectives.push_back(&exchange);
  }
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    std::vector<LinkId>& links = flow_of_class_[at(class_of_node_[n])]->links;
    for (const LinkId link : nodes_[n].flow->links) {
      if (stands_[at(link)] != 0) links.push_back(link);
    }
  }
}

/// Begins the folded form of an exchange, whose nodes begin at `node`: one flow of each class,
/// still without links. Flows that stay without links do not flow.
void StepFolder::begin_exchange(const Exchange& exchange, std::size_t& node, Exchange& folded) {
  folded.resize(exchange.size());
  for (std::size_t p = 0; p < exchange.size(); ++p) {
    const std::vector<Flow>& flows = exchange[p].flows;
    folded[p].latency = exchange[p].latency;
    folded[p].flows.resize(flows.size());
    for (std::size_t i = 0; i < flows.size(); ++i) {
      Flow& flow = folded[p].flows[i];
      flow.links.clear();
      flow.bytes = flows[i].bytes;
      flow.stretch = flows[i].stretch;
      Flow*& stands = flow_of_class_[at(class_of_node_[node++])];
      if (stands == nullptr) stands = &flow;
    }
  }
}

}  // namespace agpcs
