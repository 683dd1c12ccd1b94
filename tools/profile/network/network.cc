// SPDX-License-Identifier: Apache-2.0
// All ranks go through the same list of measurements. Each measurement ends with a sum over all
// ranks. The sum gives everybody the result, and it keeps ranks without a part in the measurement
// waiting until it is over.
#include "tools/profile/network/network.h"

#include "ir/base/units.h"
#include "runtime/support/withdraw.h"
#include "tools/profile/network/choice.h"
#include "tools/profile/network/messages.h"
#include "tools/profile/network/overhead.h"
#include "tools/profile/network/overlap.h"
#include "tools/profile/network/pace.h"
#include "tools/profile/network/team.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr double kShortestPoint = 0.02, kLongestPoint = 0.5;  // seconds
// Length of an all-reduce of the overlap: long enough that rate counts and latency does not.
constexpr double kReduceSeconds = 0.25;

std::vector<std::int64_t> sizes_of(const NetworkOptions& options) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = options.smallest; bytes <= options.largest; bytes *= 4) {
    sizes.push_back(bytes);
  }
  return sizes;
}

class NetworkMeter {
 public:
  NetworkMeter(const Cluster& cluster, Transport& transport, const NetworkOptions& options);

  Result<NetworkMeasurements> run() {
    auto measured = measure();
    if (measured.ok()) return measured;
    const Status cause = measured.status();
    const Status failure(cause.code(),
                         fmt::format("rank {} ({}): {}: {}", rank_, cluster_.device_name(rank_),
                                     doing_, cause.message()));
    return withdraw(transport_, failure, options_.limit);
  }

 private:
  Result<NetworkMeasurements> measure();
  Status open_teams();
  Status measure_paths();
  Status measure_collectives();
  Status measure_message_overhead();
  Status measure_both();
  Result<std::vector<MeasuredMessages>> messages(DeviceId from, DeviceId to);
  Result<std::vector<MeasuredMessages>> share(std::vector<MeasuredMessages> points);
  void begin(std::string what);
  RankTeam& world() { return *teams_.front(); }
  RankTeam& team_of(const std::vector<DeviceId>& devices);
  int next_group() const { return options_.first_group + static_cast<int>(teams_.size()); }

  const Cluster& cluster_;
  Transport& transport_;
  const NetworkOptions& options_;
  const int rank_;
  const std::vector<std::int64_t> sizes_;
  const std::vector<std::pair<DeviceId, DeviceId>> paths_;
  const std::vector<ChosenCollective> collectives_;
  Pace pace_;
  std::vector<float> own_memory_;
  MessageMemory memory_;
  std::vector<std::unique_ptr<RankTeam>> teams_;  // the first one has all ranks
  std::string doing_;
  NetworkMeasurements measured_;
};

NetworkMeter::NetworkMeter(const Cluster& cluster, Transport& transport,
                           const NetworkOptions& options)
    : cluster_(cluster),
      transport_(transport),
      options_(options),
      rank_(transport.rank()),
      sizes_(sizes_of(options)),
      paths_(choose_paths(cluster, options.all_pairs_up_to)),
      collectives_(choose_collectives(cluster, options.all_pairs_up_to)) {
  const std::size_t points = (paths_.size() + collectives_.size()) * sizes_.size();
  pace_.seconds =
      std::clamp(options.seconds / static_cast<double>(std::max<std::size_t>(points, 1)),
                 kShortestPoint, kLongestPoint);
  pace_.longest = options.longest_message;
  memory_.data = options.memory;
  if (memory_.data.data == nullptr) {
    own_memory_.resize(static_cast<std::size_t>(options.largest + 64) / sizeof(float));
    memory_.data = {own_memory_.data(), own_memory_.size() * sizeof(float), DType::kFp32, false};
  }
}

Result<NetworkMeasurements> NetworkMeter::measure() {
  AGPCS_RETURN_IF_ERROR(open_teams());
  if (transport_.size() > 1) {
    AGPCS_RETURN_IF_ERROR(measure_paths());
    AGPCS_RETURN_IF_ERROR(measure_collectives());
  }
  AGPCS_RETURN_IF_ERROR(measure_message_overhead());
  AGPCS_RETURN_IF_ERROR(measure_both());
  return std::move(measured_);
}

void NetworkMeter::begin(std::string what) {
  doing_ = std::move(what);
  if (rank_ == 0 && options_.progress) options_.progress(doing_);
}

// Opens the teams' groups before the first collective, in the same order on every rank.
Status NetworkMeter::open_teams() {
  doing_ = "open groups";
  std::vector<int> all(static_cast<std::size_t>(transport_.size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int>> groups = {all};
  for (const ChosenCollective& collective : collectives_) {
    const bool known = std::find(groups.begin(), groups.end(), collective.devices) != groups.end();
    if (!known) groups.push_back(collective.devices);
  }
  std::vector<int> hosts;
  for (const Device& device : cluster_.devices) hosts.push_back(device.host);
  for (std::vector<int>& group : groups) {
    teams_.push_back(
        std::make_unique<RankTeam>(transport_, next_group(), std::move(group), options_.limit));
    if (!teams_.back()->has(rank_)) continue;
    AGPCS_RETURN_IF_ERROR(teams_.back()->open(hosts));
  }
  return {};
}

RankTeam& NetworkMeter::team_of(const std::vector<DeviceId>& devices) {
  return **std::find_if(teams_.begin(), teams_.end(),
                        [&](const auto& team) { return team->ranks() == devices; });
}

Status NetworkMeter::measure_paths() {
  for (const auto& [from, to] : paths_) {
    MeasuredPath path{cluster_.device_name(from), cluster_.device_name(to), {}, {}};
    begin(fmt::format("messages from {} to {}", path.from, path.to));
    for (const LinkId link : cluster_.route(from, to)) {
      path.links.push_back(cluster_.links[static_cast<std::size_t>(link)].name);
    }
    AGPCS_TRY(path.points, messages(from, to));
    measured_.paths.push_back(std::move(path));
  }
  return {};
}

// Measures messages one way: a message and a small answer, less half a round trip of a small
// message.
Result<std::vector<MeasuredMessages>> NetworkMeter::messages(DeviceId from, DeviceId to) {
  std::vector<MeasuredMessages> points;
  if (rank_ == from || rank_ == to) {
    RoundTrip trip(transport_, from, to, memory_, options_.limit);
    std::vector<std::int64_t> sizes = {kAnswerBytes};
    sizes.insert(sizes.end(), sizes_.begin(), sizes_.end());
    AGPCS_TRY(points, measure_sizes(trip, sizes, pace_));
  }
  if (!points.empty()) {
    const double answer = points.front().time.seconds / 2;
    points.erase(points.begin());
    for (MeasuredMessages& point : points) {
      Measured& time = point.time;
      const double one_way = std::max(time.seconds - answer, time.seconds / 2);
      time = {one_way, time.spread * time.seconds / one_way};
    }
  }
  return share(std::move(points));
}

Status NetworkMeter::measure_collectives() {
  for (const ChosenCollective& chosen : collectives_) {
    MeasuredCollective collective{chosen.algorithm, {}, {}};
    for (const DeviceId id : chosen.devices) {
      collective.devices.push_back(cluster_.device_name(id));
    }
    begin(fmt::format("{} all-reduces over {}", name_of(chosen.algorithm),
                      fmt::join(collective.devices, ", ")));
    RankTeam& team = team_of(chosen.devices);
    std::vector<MeasuredMessages> points;
    if (team.has(rank_)) {
      RepeatedAllReduce reduce(team, rank_, chosen.algorithm, memory_.data);
      AGPCS_TRY(points, measure_sizes(reduce, sizes_, pace_));
    }
    AGPCS_TRY(collective.points, share(std::move(points)));
    measured_.collectives.push_back(std::move(collective));
  }
  return {};
}

// Shares the points of the one rank that has them with all ranks.
Result<std::vector<MeasuredMessages>> NetworkMeter::share(std::vector<MeasuredMessages> points) {
  std::vector<double> figures(2 * sizes_.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    figures[2 * i] = points[i].time.seconds;
    figures[2 * i + 1] = points[i].time.spread;
  }
  AGPCS_TRY(figures, world().sum(std::move(figures)));
  points.clear();
  for (std::size_t i = 0; i < sizes_.size() && figures[2 * i] > 0; ++i) {
    points.push_back({sizes_[i], {figures[2 * i], figures[2 * i + 1]}});
  }
  return points;
}

Status NetworkMeter::measure_message_overhead() {
  begin("overhead of messages");
  OverheadWork work;
  work.first_group = next_group();
  work.seconds = pace_.seconds;
  work.limit = options_.limit;
  AGPCS_TRY(measured_.message_overhead,
            measure_overhead(cluster_, world(), transport_, memory_, work));
  return {};
}

Status NetworkMeter::measure_both() {
  begin("computing and communicating at the same time");
  if (transport_.size() == 1) return {};
  AGPCS_TRY(const std::vector<double> able, world().sum({options_.compute ? 1.0 : 0.0}));
  if (able.front() < transport_.size()) return {};
  const MeasuredCollective* ring = nullptr;
  for (const MeasuredCollective& collective : measured_.collectives) {
    const bool all = collective.devices.size() == cluster_.devices.size();
    if (all && collective.algorithm == AllReduce::kRing) ring = &collective;
  }
  MeasuredMessages messages = ring->points.front();
  for (const MeasuredMessages& point : ring->points) {
    if (point.time.seconds <= kReduceSeconds) messages = point;
  }
  OverlapWork work;
  work.compute = options_.compute;
  work.buffer = part_of(memory_.data, messages.bytes);
  work.reduce_seconds = messages.time.seconds;
  work.seconds = options_.overlap_seconds;
  work.limit = std::chrono::duration<double>(options_.limit).count();
  AGPCS_TRY(measured_.overlap, measure_overlap(world(), rank_, work));
  return {};
}

Status check_fit(const Cluster& cluster, int rank, const Transport& transport,
                 const NetworkOptions& options) {
  if (transport.size() != cluster.device_count()) {
    return invalid_input(fmt::format("cluster '{}' has {}, the transport {}", cluster.name,
                                     plural(cluster.device_count(), "device"),
                                     plural(transport.size(), "rank")));
  }
  if (rank != transport.rank()) {
    return invalid_input(
        fmt::format("rank {} cannot use the transport of rank {}", rank, transport.rank()));
  }
  if (options.smallest < 4 || options.largest < options.smallest) {
    return invalid_input(
        fmt::format("no message sizes from {} to {} bytes", options.smallest, options.largest));
  }
  const auto needed = static_cast<std::size_t>(options.largest) + 64;
  if (options.memory.data != nullptr && options.memory.bytes < needed) {
    return invalid_input(fmt::format("messages need {} bytes of memory, {} are given", needed,
                                     options.memory.bytes));
  }
  return {};
}

}  // namespace

Result<NetworkMeasurements> measure_network(const Cluster& cluster, int rank, Transport& transport,
                                            const NetworkOptions& options) {
  AGPCS_RETURN_IF_ERROR(check_fit(cluster, rank, transport, options));
  return NetworkMeter(cluster, transport, options).run();
}

}  // namespace agpcs
