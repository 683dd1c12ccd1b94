// SPDX-License-Identifier: Apache-2.0
#include "tools/cluster/measure.h"

#include "frontend/cluster/file.h"
#include "ir/base/check.h"
#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/socket.h"
#include "tools/profile/fits.h"
#include "tools/profile/network/network.h"

#include <agpcs/tcp.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace agpcs {
namespace {

constexpr std::int64_t kLargest = std::int64_t{16} << 20;  // bytes of a message

/// Returns the ranks of each host, of which every rank says its number there.
Result<std::vector<int>> ranks_of_hosts(Bootstrap& bootstrap, int local_rank,
                                        std::chrono::milliseconds limit) {
  const auto key = [](int rank) { return fmt::format("local rank {}", rank); };
  AGPCS_RETURN_IF_ERROR(bootstrap.set(key(bootstrap.rank()), fmt::to_string(local_rank)));
  std::vector<int> counts;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    AGPCS_TRY(const std::string text, bootstrap.get(key(rank), limit));
    int place = -1;
    std::from_chars(text.data(), text.data() + text.size(), place);
    if (place == 0) counts.push_back(0);
    if (counts.empty() || place != counts.back()) {
      return invalid_input(
          fmt::format("rank {} is number {} on its host, {} is expected\n"
                      "  hint: --measure needs the ranks of a host one after the other",
                      rank, text, counts.empty() ? 0 : counts.back()));
    }
    ++counts.back();
  }
  return counts;
}

/// Returns a cluster of hosts with so many devices each; its figures do not matter.
Result<Cluster> cluster_of(const std::vector<int>& ranks) {
  std::string text =
      "name: measured\n"
      "device_kinds: {rank: {memory: 1GB, memory_bandwidth: 1GB/s, peak: {fp32: 1GFLOPS}}}\n"
      "hosts:\n";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += fmt::format(
        "  - name: h{}\n"
        "    devices: {{kind: rank, count: {}}}\n"
        "    interconnect: {{kind: tcp, bandwidth: 1GB/s, latency: 1us}}\n"
        "    nic: {{bandwidth: 1GB/s, latency: 1us}}\n",
        i, ranks[i]);
  }
  AGPCS_TRY(ClusterFile file, parse_cluster(text + "network: {topology: switch}\n", "measured"));
  return std::move(file.cluster);
}

/// Means over the paths of a host.
class PathMean {
 public:
  void add(const Cluster& fitted, const std::vector<LinkId>& route) {
    double least = 0;
    for (const LinkId id : route) {
      const Link& link = fitted.links[static_cast<std::size_t>(id)];
      least = least == 0 ? link.bandwidth : std::min(least, link.bandwidth);
      latency_ += link.latency;
    }
    bandwidth_ = std::max(bandwidth_, least);  // a NIC is as fast as the fastest path over it
    ++count_;
  }
  MeasuredLink link() const {
    return {bandwidth_, count_ == 0 ? 0 : latency_ / static_cast<double>(count_)};
  }

 private:
  double bandwidth_ = 0, latency_ = 0;
  int count_ = 0;
};

Status take_figures(const Cluster& cluster, NetworkMeasurements measured,
                    std::vector<FoundHost>& hosts) {
  Profile profile;
  profile.file = "what --measure measured";
  profile.paths = std::move(measured.paths);
  seal_profile(profile);
  AGPCS_TRY(const Calibrated fitted, fit_profile(cluster, profile));
  std::vector<PathMean> nics(hosts.size()), within(hosts.size());
  for (const MeasuredPath& path : profile.paths) {
    const DeviceId from = cluster.find_device(path.from), to = cluster.find_device(path.to);
    const auto host = [&](DeviceId id) {
      return static_cast<std::size_t>(cluster.devices[static_cast<std::size_t>(id)].host);
    };
    const std::vector<LinkId> route = fitted.cluster.route(from, to);
    if (host(from) == host(to)) {
      within[host(from)].add(fitted.cluster, route);
    } else {
      nics[host(from)].add(fitted.cluster, route);
      nics[host(to)].add(fitted.cluster, route);
    }
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    hosts[i].measured_nic = nics[i].link();
    hosts[i].measured_within = within[i].link();
  }
  return {};
}

Status measure(Bootstrap& bootstrap, const std::vector<int>& ranks, const MeasureOptions& options,
               std::vector<FoundHost>& hosts) {
  AGPCS_TRY(const std::unique_ptr<Transport> transport, connect_tcp(bootstrap));
  AGPCS_TRY(const Cluster cluster, cluster_of(ranks));
  NetworkOptions network;
  network.seconds = options.seconds;
  network.largest = kLargest;
  network.limit = options.limit;
  AGPCS_TRY(NetworkMeasurements measured,
            measure_network(cluster, bootstrap.rank(), *transport, network));
  // No rank closes a connection that another one still reads from.
  AGPCS_RETURN_IF_ERROR(bootstrap.barrier("links measured", options.limit));
  if (bootstrap.rank() != 0) return {};
  AGPCS_CHECK(hosts.size() == ranks.size(), "{} hosts of {}", hosts.size(), ranks.size());
  return take_figures(cluster, std::move(measured), hosts);
}

}  // namespace

Status measure_links(Bootstrap& bootstrap, int local_rank, const MeasureOptions& options,
                     std::vector<FoundHost>& hosts) {
  AGPCS_TRY(const std::vector<int> ranks, ranks_of_hosts(bootstrap, local_rank, options.limit));
  return measure(bootstrap, ranks, options, hosts);
}

Status measure_this_host(const MeasureOptions& options, FoundHost& host) {
  AGPCS_TRY(Fd listening, listen_at("127.0.0.1"));
  const int port = port_of(listening.get());
  AGPCS_TRY(const std::string token, random_token());
  std::vector<FoundHost> hosts = {host};
  const auto run = [&](int rank, int listen_fd) -> Status {
    BootstrapOptions join;
    join.rank = rank;
    join.size = 2;
    join.port = port;
    join.listen_fd = listen_fd;
    join.token = token;
    join.identity = "agpcs-cluster discover --measure";
    join.name = fmt::format("end {}", rank);
    join.join_limit = options.limit;
    AGPCS_TRY(const std::unique_ptr<Bootstrap> bootstrap, Bootstrap::join(join));
    const Status done = measure(*bootstrap, {2}, options, hosts);
    if (!done.ok()) bootstrap->report(done);
    return done;
  };
  Status second;
  std::thread other([&] { second = run(1, -1); });
  const Status first = run(0, listening.release());
  other.join();
  AGPCS_RETURN_IF_ERROR(first);
  AGPCS_RETURN_IF_ERROR(second);
  host = std::move(hosts.front());
  return {};
}

}  // namespace agpcs
