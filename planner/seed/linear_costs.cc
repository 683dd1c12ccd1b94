// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/linear_costs.h"

#include "cost_model/network/link_model.h"
#include "ir/base/at.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/stage_memory.h"
#include "planner/seed/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace agpcs {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// The part of activations in hosts that devices have: two of eight segments.
constexpr double kPartHere = 0.25;

}  // namespace

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

PieceSums::PieceSums(const Problem& problem, std::vector<int> bounds)
    : problem_(problem), bounds_(std::move(bounds)), samples_(problem.blocks.samples) {
  sum_seconds();
  sum_gradients();
  sum_memory();
  find_copies();
}

double PieceSums::cut_bytes(int piece) const {
  return problem_.blocks.cut_bytes[at(bounds_[at(piece)])] /
         static_cast<double>(problem_.blocks.samples);
}

PieceSums::Line PieceSums::seconds(int kind, int i, int j) const {
  const std::vector<Line>& sums = seconds_[at(kind)];
  return {sums[at(j)].fixed - sums[at(i)].fixed, sums[at(j)].per_sample - sums[at(i)].per_sample};
}

double PieceSums::gradient_bytes(int i, int j) const {
  return gradients_[at(j)] - gradients_[at(i)];
}

double PieceSums::move_seconds(int kind, int i, int j, double share, double seconds) const {
  if (moves_[at(kind)] == kNever) return kNever;
  const double copy = (kept_[at(j)] - kept_[at(i)]) * share * moves_[at(kind)];
  return std::max(0.0, copy - seconds / 3) + std::max(0.0, copy - seconds * 2 / 3);
}

double PieceSums::copy_seconds(int kind, int i, int j) const {
  const double bytes = state_[at(j)] - state_[at(i)];
  return bytes > 0 ? bytes * copies_[at(kind)] : kNever;
}

/// Returns what devices have of the state of pieces [i, j) that is in the memory of hosts.
double PieceSums::window(int i, int j) const {
  const auto most =
      static_cast<double>(kOffloadWindow * kOffloadPiece * state_bytes(problem_.training));
  return std::min(most, state_[at(j)] - state_[at(i)]);
}

PieceSums::Line PieceSums::memory_line(int i, int j, double received, double in_flight,
                                       bool several, StageHelp help) const {
  double resident = resident_[at(j)] - resident_[at(i)];
  if (help.in_host) resident += window(i, j) - (state_[at(j)] - state_[at(i)]);
  if (several) resident += rounded_[at(j)] - rounded_[at(i)];
  const double own = kept_[at(j)] - kept_[at(i)], kept = own + received;
  const double between = help.recompute ? kept + (in_flight - 1) * received
                         : help.moves   ? own * kPartHere + in_flight * received
                                        : kept * in_flight;
  return {resident, between + extra_[at(i)][at(j) - 1]};
}

double PieceSums::memory(int i, int j, double share, double in_flight, bool several,
                         StageHelp help) const {
  const Line line = memory_line(i, j, cut_bytes(i), in_flight, several, help);
  return line.fixed + line.per_sample * share;
}

void PieceSums::sum_seconds() {
  const std::int64_t few = std::max<std::int64_t>(1, samples_ / 4);
  std::vector<bool> used(problem_.cluster.kinds.size());
  for (const Device& device : problem_.cluster.devices) used[at(device.kind)] = true;
  seconds_.assign(used.size(), {Line()});
  for (std::size_t k = 0; k < used.size(); ++k) {
    for (int p = 0; p < pieces(); ++p) {
      double once = 0, twice = 0;
      for (int block = bounds_[at(p)]; used[k] && block < bounds_[at(p) + 1]; ++block) {
        for (const OpId op : problem_.blocks.blocks[at(block)].ops) {
          const OpSeconds s = problem_.costs.seconds(static_cast<int>(k), op, few);
          const OpSeconds t = problem_.costs.seconds(static_cast<int>(k), op, 2 * few);
          once += s.forward + s.backward;
          twice += t.forward + t.backward;
        }
      }
      const double slope = (twice - once) / static_cast<double>(few);
      const Line& last = seconds_[k].back();
      seconds_[k].push_back({last.fixed + std::max(0.0, once - slope * static_cast<double>(few)),
                             last.per_sample + slope});
    }
  }
}

void PieceSums::sum_gradients() {
  const std::vector<GradientSum> by_block = gradients_of_blocks(problem_);
  gradients_ = held_ = rounded_ = {0};
  for (int p = 0; p < pieces(); ++p) {
    double sum = gradients_.back(), held = held_.back(), rounded = rounded_.back();
    for (int block = bounds_[at(p)]; block < bounds_[at(p) + 1]; ++block) {
      sum += static_cast<double>(by_block[at(block)].bytes);
      held += static_cast<double>(by_block[at(block)].held_bytes);
      rounded += static_cast<double>(by_block[at(block)].rounded_bytes);
    }
    gradients_.push_back(sum);
    held_.push_back(held);
    rounded_.push_back(rounded);
  }
}

/// Sums memory as if each piece were a stage of its own.
void PieceSums::sum_memory() {
  std::vector<int> piece_of_block;
  for (int p = 0; p < pieces(); ++p) piece_of_block.resize(at(bounds_[at(p) + 1]), p);
  const std::vector<int> piece_of = stage_of_ops(problem_.blocks, piece_of_block);
  std::vector<StageParts> parts(at(pieces()));
  for (OpId op = 0; op < static_cast<OpId>(piece_of.size()); ++op) {
    parts[at(piece_of[at(op)])].ops.push_back(op);
  }
  for_each_crossing(problem_.graph, piece_of, [&](int from, int to, TensorId id) {
    const bool gradient = problem_.graph.tensor(id).needs_gradient;
    parts[at(from)].sent.push_back({id, gradient});
    parts[at(to)].received.push_back({id, gradient});
  });
  StageMemoryModel model(problem_.graph, problem_.training);
  const double samples = static_cast<double>(samples_);
  resident_ = state_ = kept_ = {0};
  extra_.assign(at(pieces()), std::vector<double>(at(pieces())));
  for (int p = 0; p < pieces(); ++p) {
    parts[at(p)].gradients = static_cast<std::int64_t>(held_[at(p) + 1] - held_[at(p)]);
    const StageMemory m = model.of(parts[at(p)], samples_);
    const double received = static_cast<double>(m.received - m.received_and_free) / samples;
    resident_.push_back(resident_.back() +
                        static_cast<double>(m.parameters + m.gradients + m.optimizer));
    state_.push_back(state_.back() + static_cast<double>(m.optimizer));
    kept_.push_back(kept_.back() + static_cast<double>(m.in_flight) / samples - received);
    received_.push_back(received);
    extra_[at(p)][at(p)] =
        static_cast<double>(std::max(m.forward_peak, m.backward_peak) - m.in_flight) / samples;
  }
  for (int i = 0; i < pieces(); ++i) {
    for (int j = i + 1; j < pieces(); ++j) {
      extra_[at(i)][at(j)] = std::max(extra_[at(i)][at(j) - 1], extra_[at(j)][at(j)]);
    }
  }
}

void PieceSums::find_copies() {
  copies_.assign(problem_.cluster.kinds.size(), kNever);
  moves_ = copies_;
  for (const Device& device : problem_.cluster.devices) {
    const HostLink& link = problem_.cluster.kinds[at(device.kind)].host_link;
    if (!link.given() || problem_.cluster.hosts[at(device.host)].memory_bytes == 0) continue;
    if (may_offload(problem_)) copies_[at(device.kind)] = 1 / link.bandwidth;
    if (may_offload_activations(problem_)) moves_[at(device.kind)] = 1 / link.bandwidth;
  }
}

LinearCosts::LinearCosts(const PieceSums& sums, const DeviceLattice& lattice, RoughModel& model)
    : sums_(sums), problem_(sums.problem_) {
  for (const std::vector<int>& taken : lattice.taken_at) {
    std::vector<DeviceId> devices;
    for (std::size_t c = 0; c < taken.size(); ++c) {
      for (int i = 0; i < taken[c]; ++i) {
        const std::vector<DeviceId>& unit = lattice.units[c][at(i)];
        devices.insert(devices.end(), unit.begin(), unit.end());
      }
    }
    before_.push_back(members_of(devices));
  }
  for (int g = 0; g < static_cast<int>(lattice.groups.size()); ++g) {
    const std::vector<DeviceId> devices = lattice.devices_of(g);
    groups_.push_back(members_of(devices));
    const auto [fixed, slope] = model.seconds_of_large_sums(devices);
    all_reduce_.push_back({std::max(0.0, fixed), slope});
  }
  std::set<int> entries, exits;
  for (const ChainGroup& group : lattice.groups) {
    entries.insert(group.entry);
    exits.insert(group.exit);
  }
  places_ = lattice.places.size();
  links_.resize(places_ * places_);
  for (const int exit : exits) {
    for (const int entry : entries) {
      links_[at(exit) * places_ + at(entry)] =
          link_between(lattice.places[at(exit)], lattice.places[at(entry)]);
    }
  }
}

/// Returns the link's line. Between groups that are not both on one and the same host, all goes
/// from host to host, over as many lanes side by side as both groups have.
LinearCosts::Line LinearCosts::link_between(const LinearPlace& exit,
                                            const LinearPlace& entry) const {
  const auto host_of = [&](DeviceId id) { return problem_.cluster.devices[at(id)].host; };
  DeviceId from = exit.device, to = entry.device;
  if (exit.hosts > 1 && host_of(from) == host_of(to)) from = exit.elsewhere;
  if (entry.hosts > 1 && host_of(from) == host_of(to)) to = entry.elsewhere;
  if (from == to) return {};
  const auto seconds = [&](std::int64_t bytes) {
    return lone_seconds(problem_.cluster, transfer(problem_.cluster, from, to, bytes));
  };
  Line line = line_of(seconds(1 << 20), seconds(32 << 20));
  line.slope /= std::min(exit.hosts, entry.hosts);
  return line;
}

void LinearCosts::set(std::int64_t micro_batches, double part_of_memory, bool offload) {
  offload_ = offload;
  micro_batches_ = static_cast<double>(micro_batches);
  part_of_memory_ = part_of_memory;
  samples_ = static_cast<double>(problem_.training.batch) / micro_batches_;
}

LinearCosts::Members LinearCosts::members_of(const std::vector<DeviceId>& devices) const {
  std::vector<double> of_kind(problem_.cluster.kinds.size());
  for (const DeviceId device : devices) of_kind[at(problem_.cluster.devices[at(device)].kind)] += 1;
  Members members;
  for (std::size_t k = 0; k < of_kind.size(); ++k) {
    if (of_kind[k] > 0) members.push_back({static_cast<int>(k), of_kind[k]});
  }
  return members;
}

double LinearCosts::stage_seconds(int i, int j, int group, int later, double most) const {
  double rate = 0, ahead = samples_;  // samples/s of all together, and samples lost to launches
  double least = 0;
  const Members& members = groups_[at(group)];
  for (const Member& member : members) {
    const std::vector<PieceSums::Line>& sums = sums_.seconds_[at(member.kind)];
    const double fixed = sums[at(j)].fixed - sums[at(i)].fixed;
    const double slope = std::max(1e-15, sums[at(j)].per_sample - sums[at(i)].per_sample);
    rate += member.devices / slope;
    ahead += member.devices * fixed / slope;
    least = std::max(least, fixed);
  }
  double seconds = std::max(ahead / rate, least);
  if (members.size() == 1) {  // devices are alike, so some device has the odd sample
    const std::vector<PieceSums::Line>& sums = sums_.seconds_[at(members.front().kind)];
    const double largest = std::ceil(samples_ / members.front().devices);
    seconds = sums[at(j)].fixed - sums[at(i)].fixed +
              largest * (sums[at(j)].per_sample - sums[at(i)].per_sample);
  }
  const double bytes = sums_.gradients_[at(j)] - sums_.gradients_[at(i)];
  const double reduces = bytes > 0 ? all_reduce_[at(group)].at(bytes) / micro_batches_ : 0;
  if (seconds + reduces > most) return seconds + reduces;  // help makes no stage faster
  HostSeconds hosts;
  if (offload_) {
    hosts = {sums_.copy_seconds(members, i, j) / micro_batches_, 0};
    for (const Member& member : members) {
      const double share = share_of(member, i, j, rate);
      hosts.activations =
          std::max(hosts.activations, sums_.move_seconds(member.kind, i, j, share, seconds));
    }
  }
  seconds = seconds_with_help(
      seconds, hosts, [&](StageHelp help) { return fits(i, j, members, rate, later, help); });
  return seconds + reduces;
}

/// Returns the samples of a micro-batch that a device takes of a group with `rate`.
double LinearCosts::share_of(const Member& member, int i, int j, double rate) const {
  const std::vector<PieceSums::Line>& sums = sums_.seconds_[at(member.kind)];
  const double slope = std::max(1e-15, sums[at(j)].per_sample - sums[at(i)].per_sample);
  return std::max(1.0, samples_ / (slope * rate));
}

bool LinearCosts::fits(int i, int j, const Members& group, double rate, int later,
                       StageHelp help) const {
  const bool several = group.size() > 1 || group.front().devices > 1;
  const double in_flight = std::min(micro_batches_, later + 1.0);
  const PieceSums::Line bytes =
      sums_.memory_line(i, j, sums_.received_[at(i)], in_flight, several, help);
  for (const Member& member : group) {
    const double share = share_of(member, i, j, rate);
    const double memory =
        part_of_memory_ * static_cast<double>(problem_.cluster.kinds[at(member.kind)].memory_bytes);
    if (bytes.fixed + bytes.per_sample * share > memory) return false;
  }
  return true;
}

double LinearCosts::cut_seconds(int piece, int exit, int entry) const {
  return links_[at(exit) * places_ + at(entry)].at(sums_.cut_bytes(piece) * samples_);
}

double LinearCosts::least_before(int i, int state) const {
  double rate = 0;
  for (const Member& member : before_[at(state)]) {
    rate += member.devices / std::max(1e-15, sums_.seconds_[at(member.kind)][at(i)].per_sample);
  }
  // Every stage lasts at least as long as all the work spread over all devices would.
  return rate > 0 ? samples_ / rate : kNever;
}

LinearCosts::Line LinearCosts::line_of(double at_1_mib, double at_32_mib) {
  const double slope = (at_32_mib - at_1_mib) / (31 << 20);
  return {std::max(0.0, at_1_mib - slope * (1 << 20)), slope};
}

}  // namespace agpcs
