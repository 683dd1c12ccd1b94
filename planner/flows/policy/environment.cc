// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/policy/environment.h"

#include "ir/base/at.h"
#include "ir/base/check.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace agpcs {
namespace {

/// Returns the logarithm to base 2, linear between powers of 2, so that it is the same on every
/// machine.
double log_of(int number) {
  const int below = std::bit_width(static_cast<unsigned>(number)) - 1;
  return below + static_cast<double>(number) / static_cast<double>(1U << below) - 1;
}

float part(double of, double whole) { return whole > 0 ? static_cast<float>(of / whole) : 0.0F; }

}  // namespace

FlowEnvironment::FlowEnvironment(const Topology& topology, const FlowForest& forest,
                                 FlowPhases phases)
    : topology_(topology),
      forest_(forest),
      phases_(phases),
      simulator_(topology, forest_, phases == FlowPhases::kBarrier, phases == FlowPhases::kGather),
      left_(topology.links.size(), 0),
      waiting_(left_),
      busy_(topology.links.size(), 0),
      queue_(busy_),
      open_on_(topology.links.size()),
      choices_(left_),
      scarce_(topology.links.size(), 0) {
  const std::size_t cells = forest.trees.size() * at(forest.servers);
  for (const Topology::Link& link : topology.links) {
    inverse_.push_back(1 / static_cast<double>(link.capacity));
    free_.push_back(link.capacity);
  }
  since_.assign(2 * cells, 0);
  first_child_.assign(cells, -1);
  next_child_.assign(cells, -1);
  const auto count = [&](std::int32_t r) {
    if (r < 0) return;
    for (const int l : forest_.routes[at(r)].links) ++left_[at(l)];
  };
  for (const FlowTree& tree : forest.trees) {
    const std::size_t base = at(tree.chunk) * at(forest.servers);
    for (int s = forest.servers - 1; s >= 0; --s) {
      const std::int32_t r = tree.down[at(s)];
      count(r);
      if (phases != FlowPhases::kGather) count(tree.up[at(s)]);
      if (r < 0) continue;
      const std::size_t above = base + at(forest.routes[at(r)].from);
      next_child_[base + at(s)] = first_child_[above];
      first_child_[above] = s;
    }
  }
  tree_left_.assign(forest.trees.size(), simulator_.jobs() / trees());
  tree_ready_.assign(forest.trees.size(), 0);
  arrived(0);
  if (phases == FlowPhases::kGather) begin_states();
}

void FlowEnvironment::begin_states() {
  states_.assign(forest_.trees.size() * at(forest_.servers), kLacks);
  lacks_.resize(at(forest_.servers));
  hops_.resize(at(forest_.servers));
  for (const FlowTree& tree : forest_.trees) {
    const int owner = tree.chunk / forest_.sub_chunks;
    state_of(tree.chunk, owner) = kHas;
    for (int s = 0; s < forest_.servers; ++s) {
      if (s != owner) lacks_[at(s)].push_back(tree.chunk);
    }
  }
  for (std::size_t r = 0; r < forest_.routes.size(); ++r) {
    hops_[at(forest_.routes[r].to)].push_back(static_cast<std::int32_t>(r));
  }
}

std::size_t FlowEnvironment::cell(const Job& job) const {
  const std::size_t index = at(job.chunk) * at(forest_.servers) + at(job.server);
  return 2 * index + (job.down ? 1 : 0);
}

/// Books the new jobs of ready(), from `first` on, then measures all links.
void FlowEnvironment::arrived(std::size_t first) {
  const auto jobs = simulator_.ready();
  for (std::size_t i = first; i < jobs.size(); ++i) {
    for (const int l : simulator_.route_of(jobs[i]).links) ++waiting_[at(l)];
    since_[cell(jobs[i])] = round();
    ++tree_ready_[at(jobs[i].chunk)];
  }
  measure_links();
}

void FlowEnvironment::measure_links() {
  rounds_left_ = 1;
  for (std::size_t l = 0; l < left_.size(); ++l) {
    busy_[l] = static_cast<double>(left_[l]) * inverse_[l];
    queue_[l] = static_cast<double>(waiting_[l]) * inverse_[l];
    rounds_left_ = std::max(rounds_left_, busy_[l]);
  }
  for (double& busy : busy_) busy /= rounds_left_;
}

void FlowEnvironment::begin_round() {
  const auto jobs = ready();
  rows_.assign(jobs.size() * kWorkloadFeatureCount, 0.0F);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    describe(jobs[i], rows_.data() + i * kWorkloadFeatureCount);
  }
}

void FlowEnvironment::describe(const Job& job, float* row) const {
  const std::vector<int>& links = simulator_.route_of(job).links;
  const double scale = 1 / rounds_left_;
  double busiest = 0, idlest = 1, longest = 0;
  for (const int l : links) {
    busiest = std::max(busiest, busy_[at(l)]);
    idlest = std::min(idlest, busy_[at(l)]);
    longest = std::max(longest, queue_[at(l)]);
  }
  const auto first = at(links.front()), last = at(links.back());
  const std::int32_t tree_left = tree_left_[at(job.chunk)];
  row[kHeight] = static_cast<float>(std::min(2.0, simulator_.height_of(job) * scale));
  row[kWeight] =
      part(log_of(1 + simulator_.weight_of(job)), log_of(1 + simulator_.jobs() / trees()));
  row[kTreeLeft] = part(tree_left, simulator_.jobs() / trees());
  row[kTreeReady] = part(tree_ready_[at(job.chunk)], tree_left);
  row[kBusiest] = static_cast<float>(busiest);
  row[kIdlest] = static_cast<float>(idlest);
  row[kFirstBusy] = static_cast<float>(busy_[first]);
  row[kLastBusy] = static_cast<float>(busy_[last]);
  row[kFirstQueue] = static_cast<float>(queue_[first] * scale);
  row[kLastQueue] = static_cast<float>(queue_[last] * scale);
  row[kLongestQueue] = static_cast<float>(longest * scale);
  row[kLastUnready] =
      1 - part(static_cast<double>(waiting_[last]), static_cast<double>(left_[last]));
  describe_unlocked(job, row);
  row[kWaited] = static_cast<float>(std::min(1.0, (round() - since_[cell(job)]) * scale));
  row[kLinks] = static_cast<float>(links.size()) / 4;
  row[kProgress] = part(round(), round() + rounds_left_);
}

/// Describes what the job unlocks. Downward these are the children; upward it is the next workload
/// toward the owner, which may wait for others.
void FlowEnvironment::describe_unlocked(const Job& job, float* row) const {
  int count = 0;
  double most = 0, sum = 0;
  const FlowTree& tree = forest_.trees[at(job.chunk)];
  const auto unlock = [&](std::int32_t r) {
    const std::size_t last = at(forest_.routes[at(r)].links.back());
    const double need = busy_[last] / (1 + queue_[last]);
    ++count;
    most = std::max(most, need);
    sum += need;
  };
  const auto children = [&](int server) {
    const std::size_t base = at(job.chunk) * at(forest_.servers);
    for (int s = first_child_[base + at(server)]; s >= 0; s = next_child_[base + at(s)]) {
      unlock(tree.down[at(s)]);
    }
  };
  if (job.down) {
    children(job.server);
  } else {
    const int to = simulator_.route_of(job).to;
    if (tree.up[at(to)] >= 0) unlock(tree.up[at(to)]);
    if (tree.up[at(to)] < 0 && phases_ == FlowPhases::kOverlapped) children(to);
  }
  row[kUnlocks] = static_cast<float>(std::min(1.0, count / 4.0));
  row[kUnlocksBusy] = static_cast<float>(most);
  row[kUnlocksSum] = static_cast<float>(std::min(2.0, sum / 4));
}

void FlowEnvironment::describe_trees(std::vector<float>& rows) const {
  const auto jobs = ready();
  rows.assign(at(trees()) * kTreeFeatureCount, 0.0F);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const float* const from = rows_.data() + i * kWorkloadFeatureCount;
    float* const row = rows.data() + at(jobs[i].chunk) * kTreeFeatureCount;
    const float share = 1 / static_cast<float>(tree_ready_[at(jobs[i].chunk)]);
    row[kTreeHeight] = std::max(row[kTreeHeight], from[kHeight]);
    row[kTreeBusiest] = std::max(row[kTreeBusiest], from[kBusiest]);
    row[kTreeMeanBusiest] += share * from[kBusiest];
    row[kTreeQueue] += share * from[kLongestQueue];
    row[kTreeUnlocks] = std::max(row[kTreeUnlocks], from[kUnlocksBusy]);
  }
  const double whole = static_cast<double>(simulator_.jobs()) / trees();
  const float all_left = part(simulator_.jobs_left(), simulator_.jobs());
  const auto active = std::count_if(tree_ready_.begin(), tree_ready_.end(),
                                    [](std::int32_t ready) { return ready > 0; });
  for (int t = 0; t < trees(); ++t) {
    float* const row = rows.data() + at(t) * kTreeFeatureCount;
    row[kTreePartLeft] = part(tree_left_[at(t)], whole);
    row[kTreePartReady] = part(tree_ready_[at(t)], tree_left_[at(t)]);
    row[kTreeBehind] = row[kTreePartLeft] - all_left;
    row[kAllReady] = part(static_cast<double>(active), trees());
    row[kAllLeft] = all_left;
    row[kRoundsDone] = part(round(), round() + rounds_left_);
  }
}

void FlowEnvironment::select(std::span<const std::uint8_t> trees) {
  for (std::vector<int>& jobs : open_on_) jobs.clear();
  const auto jobs = ready();
  open_.assign(jobs.size(), 0);
  open_count_ = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (trees[at(jobs[i].chunk)] == 0) continue;
    open_[i] = 1;
    ++open_count_;
    for (const int l : links_of(i)) open_on_[at(l)].push_back(static_cast<int>(i));
  }
  for (std::size_t l = 0; l < open_on_.size(); ++l) {
    choices_[l] = static_cast<std::int64_t>(open_on_[l].size());
    scarce_[l] = scarcity(static_cast<int>(l));
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (open_[i] != 0) describe_scarcity(i);
  }
}

/// Returns the scarcity in few steps, so that few workloads change when one is taken.
float FlowEnvironment::scarcity(int link) const {
  const std::int64_t choices = choices_[at(link)], units = free_[at(link)];
  if (choices <= units) return 1;
  if (choices <= 2 * units) return 0.5F;
  if (choices <= 3 * units) return 0.33F;
  if (choices <= 5 * units) return 0.2F;
  return choices <= 8 * units ? 0.1F : 0.0F;
}

void FlowEnvironment::describe_scarcity(std::size_t index) {
  float* const row = rows_.data() + index * kWorkloadFeatureCount;
  const std::vector<int>& links = links_of(index);
  row[kFirstScarce] = scarce_[at(links.front())];
  row[kLastScarce] = scarce_[at(links.back())];
  row[kInnerScarce] = 0;
  for (std::size_t i = 1; i + 1 < links.size(); ++i) {
    row[kInnerScarce] = std::max(row[kInnerScarce], scarce_[at(links[i])]);
  }
}

void FlowEnvironment::close(std::size_t index) {
  if (open_[index] == 0) return;
  open_[index] = 0;
  --open_count_;
  for (const int l : links_of(index)) {
    --choices_[at(l)];
    closed_on_.push_back(l);
  }
}

std::span<const int> FlowEnvironment::take(std::size_t index) {
  AGPCS_CHECK(is_open(index), "workload {} of round {} cannot be taken", index, round());
  closed_on_.clear();
  changed_.clear();
  close(index);
  book(index);
  for (const int l : links_of(index)) {
    if (free_[at(l)] > 0) continue;
    for (const int other : open_on_[at(l)]) close(at(other));
  }
  std::sort(closed_on_.begin(), closed_on_.end());
  closed_on_.erase(std::unique(closed_on_.begin(), closed_on_.end()), closed_on_.end());
  for (const int l : closed_on_) {
    const float now = scarcity(l);
    if (now == scarce_[at(l)]) continue;
    scarce_[at(l)] = now;
    for (const int i : open_on_[at(l)]) {
      if (is_open(at(i))) changed_.push_back(i);
    }
  }
  std::sort(changed_.begin(), changed_.end());
  changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
  for (const int i : changed_) describe_scarcity(at(i));
  return changed_;
}

void FlowEnvironment::book(std::size_t index) {
  for (const int l : links_of(index)) {
    used_.push_back(l);
    --free_[at(l)];
  }
  taken_.push_back(index);
  const Job& job = ready()[index];
  if (!states_.empty()) state_of(job.chunk, job.server) = kComes;
}

bool FlowEnvironment::fits(std::int32_t route) const {
  const std::vector<int>& links = forest_.routes[at(route)].links;
  return std::all_of(links.begin(), links.end(), [&](int l) { return free_[at(l)] > 0; });
}

/// Returns how much is gained when a server gets a sub-chunk now: how busy its planned way is.
double FlowEnvironment::need_of(std::int32_t chunk, int server) const {
  double busiest = 0;
  const std::int32_t planned = forest_.trees[at(chunk)].down[at(server)];
  for (const int l : forest_.routes[at(planned)].links) busiest = std::max(busiest, busy_[at(l)]);
  const double height = simulator_.height_of({chunk, server, true}) / rounds_left_;
  return busiest + 0.5 * height + 0.25 * part(tree_left_[at(chunk)], forest_.servers);
}

FlowEnvironment::Detour FlowEnvironment::best_detour(int server) const {
  Detour best;
  std::vector<std::int32_t> open;
  for (const std::int32_t r : hops_[at(server)]) {
    if (fits(r)) open.push_back(r);
  }
  if (open.empty()) return best;
  for (const std::int32_t chunk : lacks_[at(server)]) {
    const State* const states = states_.data() + at(chunk) * at(forest_.servers);
    if (states[server] != kLacks) continue;
    const auto from = std::find_if(open.begin(), open.end(), [&](std::int32_t r) {
      return states[forest_.routes[at(r)].from] == kHas;
    });
    if (from == open.end()) continue;
    const double value = need_of(chunk, server);
    if (value > best.value) best = {chunk, *from, value};
  }
  return best;
}

void FlowEnvironment::take_detour(int server, const Detour& detour) {
  std::int32_t& route = forest_.trees[at(detour.chunk)].down[at(server)];
  const FlowRoute& planned = forest_.routes[at(route)];
  const std::size_t before = ready().size();
  simulator_.moved(detour.chunk, server, planned.from);
  const bool was_ready = ready().size() == before;
  for (const int l : planned.links) {
    --left_[at(l)];
    if (was_ready) --waiting_[at(l)];
  }
  route = detour.route;
  for (const int l : forest_.routes[at(route)].links) {
    ++left_[at(l)];
    ++waiting_[at(l)];
  }
  if (!was_ready) ++tree_ready_[at(detour.chunk)];
  const auto jobs = ready();
  const auto job = std::find_if(jobs.begin(), jobs.end(), [&](const Job& other) {
    return other.chunk == detour.chunk && other.server == server;
  });
  book(static_cast<std::size_t>(job - jobs.begin()));
}

void FlowEnvironment::fill_idle() {
  if (states_.empty()) return;
  for (int i = 0; i < forest_.servers; ++i) {
    const int server = (i + round()) % forest_.servers;
    std::erase_if(lacks_[at(server)], [&](std::int32_t c) { return state_of(c, server) == kHas; });
    for (Detour detour = best_detour(server); detour.route >= 0; detour = best_detour(server)) {
      take_detour(server, detour);
    }
  }
}

int FlowEnvironment::end_round() {
  std::sort(taken_.begin(), taken_.end(),
            std::greater<>());  // so that the last one takes a sent one's place
  for (const std::size_t index : taken_) {
    const Job job = ready()[index];
    simulator_.send(index);
    if (!states_.empty()) state_of(job.chunk, job.server) = kHas;
    --tree_left_[at(job.chunk)];
    --tree_ready_[at(job.chunk)];
  }
  for (const int l : used_) {
    --left_[at(l)];
    --waiting_[at(l)];
    free_[at(l)] = topology_.links[at(l)].capacity;
  }
  const auto sent = static_cast<int>(taken_.size());
  used_.clear();
  taken_.clear();
  const std::size_t before = ready().size();
  simulator_.next_round();
  arrived(before);
  return sent;
}

}  // namespace agpcs
