// SPDX-License-Identifier: Apache-2.0
// Our network model and simulator against SimGrid's (tests/system/simgrid/simgrid_run.cc), an
// independent implementation of fluid max-min sharing: the same messages, times within 2%.
//
// Each test prints a row of the table in docs/results/benchmarks.md.
#include "cost_model/network/link_model.h"
#include "cost_model/network/network.h"
#include "ir/base/rng.h"
#include "ir/plan/reduction_tree.h"
#include "tests/cost_model/step/steps.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

namespace agpcs {
namespace {

using testing::chain_of;
using testing::cluster_of;
using testing::event_of;
using testing::Step;

struct Message {
  std::int64_t bytes = 0;
  double start = 0;
  std::vector<LinkId> links;
  std::vector<int> after;  ///< messages that must have ended
};

constexpr double kClose = 0.02;

class SimGrid : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(AGPCS_SIMGRID_RUN).empty()) {
      GTEST_SKIP() << "SimGrid is not installed (Debian: libsimgrid-dev), so there is nothing to "
                      "compare with";
    }
  }

  /// When each message ends, by SimGrid.
  static std::vector<double> simgrid(const std::vector<Link>& links,
                                     const std::vector<Message>& messages) {
    const std::string path = ::testing::TempDir() +
                             ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                             std::string(".messages");
    std::ofstream(path) << text_of(links, messages);
    const std::string command =
        fmt::format("'{}' --log=root.threshold:warning < '{}'", AGPCS_SIMGRID_RUN, path);
    std::FILE* pipe = popen(command.c_str(), "r");
    std::vector<double> ends;
    for (double end = 0; std::fscanf(pipe, "%lf", &end) == 1;) ends.push_back(end);
    EXPECT_EQ(pclose(pipe), 0) << command;
    std::remove(path.c_str());
    AGPCS_CHECK(ends.size() == messages.size(), "{} ends of {} messages", ends.size(),
                messages.size());
    return ends;
  }

  /// Milliseconds, ours and SimGrid's.
  static void print_row(const std::string& pattern, double ours, double theirs) {
    std::printf("| %s | %.6g | %.6g | %+.2f%% |\n", pattern.c_str(), 1e3 * ours, 1e3 * theirs,
                100 * (ours / theirs - 1));
  }
  static void compare(const std::string& pattern, double ours, double theirs) {
    print_row(pattern, ours, theirs);
    EXPECT_NEAR(ours / theirs, 1, kClose) << pattern;
  }

 private:
  static std::string text_of(const std::vector<Link>& links, const std::vector<Message>& messages) {
    std::string text;
    for (const Link& link : links) {
      text += fmt::format("link {:.17g} {:.17g}\n", link.bandwidth, link.latency);
    }
    for (const Message& m : messages) {
      text += fmt::format("message {} {:.17g} links {} after {}\n", m.bytes, m.start,
                          fmt::join(m.links, " "), fmt::join(m.after, " "));
    }
    return text;
  }
};

/// When each message ends by our Network: its latency first, then its bytes. No `after`.
std::vector<double> ours(const std::vector<Link>& links, const std::vector<Message>& messages) {
  struct Arrival {
    double time;
    int message;
  };
  std::vector<Arrival> arrivals;
  std::vector<Flow> flows;
  for (const Message& m : messages) {
    double time = m.start;
    for (const LinkId link : m.links) time += links[static_cast<std::size_t>(link)].latency;
    arrivals.push_back({time, static_cast<int>(flows.size())});
    flows.emplace_back();
    flows.back().bytes = m.bytes;
    flows.back().links = m.links;
  }
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.time < b.time; });
  Network network(links);
  std::vector<FlowEnd> ends;
  std::vector<double> result(messages.size());
  auto next = arrivals.begin();
  for (std::size_t done = 0; done < messages.size();) {
    const auto first = std::min_element(
        ends.begin(), ends.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
    if (next != arrivals.end() && (first == ends.end() || next->time <= first->time)) {
      network.start(flows[static_cast<std::size_t>(next->message)], next->message, next->time);
      network.settle(next->time, ends);
      ++next;
      continue;
    }
    const FlowEnd end = *first;
    ends.erase(first);
    if (!network.is_current(end)) continue;
    result[static_cast<std::size_t>(network.finish(end))] = end.time;
    ++done;
    network.settle(end.time, ends);
  }
  return result;
}

Link link_of(double bandwidth, double latency) { return {"", "test", bandwidth, latency, {}}; }

double last_of(const std::vector<double>& ends) {
  return *std::max_element(ends.begin(), ends.end());
}

/// The messages of a ring all-reduce, one a step and device: a device sends its next piece when the
/// one before has left and its neighbour's has come.
void add_ring(const Cluster& cluster, const std::vector<DeviceId>& devices, std::int64_t bytes,
              const std::vector<int>& after, std::vector<Message>& messages) {
  const int n = static_cast<int>(devices.size());
  const int first = static_cast<int>(messages.size());
  for (int step = 0; step < 2 * (n - 1); ++step) {
    for (int i = 0; i < n; ++i) {
      Message m;
      m.bytes = bytes / n;
      m.links = cluster.route(devices[static_cast<std::size_t>(i)],
                              devices[static_cast<std::size_t>((i + 1) % n)]);
      const int before = first + (step - 1) * n;
      m.after = step == 0 ? after : std::vector<int>{before + i, before + (i + n - 1) % n};
      messages.push_back(m);
    }
  }
}

TEST_F(SimGrid, AgreesOnFlowsThatStartAtDifferentTimes) {
  const std::vector<Link> links = {link_of(1e9, 1e-3), link_of(4e8, 1e-3), link_of(2.5e8, 1e-3)};
  const std::vector<Message> messages = {
      {100'000'000, 0, {0, 1}, {}},    {50'000'000, 0.05, {0, 1}, {}},
      {80'000'000, 0.1, {0, 2}, {}},   {120'000'000, 0.12, {1, 2}, {}},
      {10'000'000, 0.125, {0, 2}, {}},
  };
  const std::vector<double> a = ours(links, messages), b = simgrid(links, messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    compare(fmt::format("flow {} of 5 over 3 unequal links", i + 1), a[i], b[i]);
  }
}

TEST_F(SimGrid, AgreesOnManyFlowsOverManyLinks) {
  Rng rng(7);
  std::vector<Link> links;
  for (int i = 0; i < 8; ++i)
    links.push_back(link_of(1e8 * static_cast<double>(1 + rng.below(9)), 0));
  std::vector<Message> messages;
  for (int i = 0; i < 60; ++i) {
    Message m;
    m.bytes = static_cast<std::int64_t>(1'000'000 * (1 + rng.below(50)));
    m.start = 0.01 * static_cast<double>(rng.below(100));
    for (LinkId link = 0; link < 8; ++link) {
      if (rng.below(4) == 0) m.links.push_back(link);
    }
    if (m.links.empty()) m.links.push_back(static_cast<LinkId>(rng.below(8)));
    messages.push_back(m);
  }
  const std::vector<double> a = ours(links, messages), b = simgrid(links, messages);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i] - messages[i].start, b[i] - messages[i].start,
                kClose * (b[i] - messages[i].start))
        << "message " << i;
  }
  compare("last of 60 flows over 8 links", last_of(a), last_of(b));
}

/// SimGrid gives flows on a link rates in inverse proportion to their latency, as TCP would; ours
/// are equal. So the far one ends earlier with us, and the near one later; what the link carries in
/// all, and the last end, are the same.
TEST_F(SimGrid, DiffersForFlowsOfUnequalLatencyAsTcpDoes) {
  const std::vector<Link> links = {link_of(1e9, 1e-3), link_of(1e12, 0), link_of(1e12, 2e-3)};
  const std::vector<Message> messages = {{300'000'000, 0, {0, 1}, {}},
                                         {300'000'000, 0, {0, 2}, {}}};
  const std::vector<double> a = ours(links, messages), b = simgrid(links, messages);
  EXPECT_NEAR(a[0], 0.6, 0.01);
  EXPECT_NEAR(b[0], 0.4, 0.01);  // three quarters of the link: 1 ms against 3 ms
  compare("last of 2 flows, latency 1 and 3 ms", last_of(a), last_of(b));
}

const char* const kSwitch =
    "kind gpu fp32=1e12\n"
    "host a gpu 1 bandwidth=1e10 latency=1e-6 nic=1e9 nic-latency=1e-5\n"
    "host b gpu 1 bandwidth=1e10 latency=1e-6 nic=1e9 nic-latency=1e-5\n"
    "host c gpu 1 bandwidth=1e10 latency=1e-6 nic=1e9 nic-latency=1e-5\n"
    "host d gpu 1 bandwidth=1e10 latency=1e-6 nic=5e8 nic-latency=1e-5\n";
const char* const kTwoHosts =
    "kind gpu fp32=1e12\n"
    "host a gpu 3 bandwidth=1e10 latency=1e-6 nic=1e9 nic-latency=1e-5\n"
    "host b gpu 3 bandwidth=8e9 latency=1e-6 nic=1e9 nic-latency=1e-5\n";

TEST_F(SimGrid, AgreesOnRingsAtAnySize) {
  for (const auto& [name, cluster] :
       {std::pair("ring, 4 hosts on a switch, one slow", cluster_of(kSwitch)),
        std::pair("ring, 2 hosts of 3", cluster_of(kTwoHosts))}) {
    std::vector<DeviceId> devices;
    for (DeviceId d = 0; d < cluster.device_count(); ++d) devices.push_back(d);
    for (const std::int64_t bytes : {12'000, 1'200'000, 60'000'000}) {
      std::vector<Message> messages;
      add_ring(cluster, devices, bytes, {}, messages);
      compare(fmt::format("{}, {} kB", name, bytes / 1000),
              lone_seconds(cluster, all_reduce(cluster, devices, AllReduce::kRing, bytes)),
              last_of(simgrid(cluster.links, messages)));
    }
  }
}

/// A step of ours takes the longest latency and the least bandwidth of all hops. Where these are of
/// different hops, a step between unequal neighbours is as long as the slower of the two, not as
/// their worst together: our time is an upper bound, at most twice too long.
TEST_F(SimGrid, IsNeverSlowerOnRingsWhoseFarHopIsNotTheSlowOne) {
  const Cluster cluster = cluster_of(
      "kind gpu fp32=1e12\n"
      "host a gpu 1 bandwidth=1e10 latency=0 nic=1e9 nic-latency=3e-4\n"
      "host b gpu 1 bandwidth=1e10 latency=0 nic=1e9 nic-latency=1e-5\n"
      "host c gpu 1 bandwidth=1e10 latency=0 nic=1e9 nic-latency=1e-5\n"
      "host d gpu 1 bandwidth=1e10 latency=0 nic=5e8 nic-latency=1e-5\n");
  std::vector<Message> messages;
  add_ring(cluster, {0, 2, 3, 1}, 1'200'000, {}, messages);
  const double theirs = last_of(simgrid(cluster.links, messages));
  const double mine =
      lone_seconds(cluster, all_reduce(cluster, {0, 2, 3, 1}, AllReduce::kRing, 1'200'000));
  print_row("ring, 4 hosts, one far, another slow, 1200 kB", mine, theirs);
  EXPECT_GE(mine, theirs);
  EXPECT_LE(mine, 2 * theirs);
}

/// Each of the two rings has a device on either host, so that they meet on the NICs.
TEST_F(SimGrid, AgreesOnTwoRingsAtATime) {
  const Cluster cluster = cluster_of(kTwoHosts);
  std::vector<Message> steps, rings;
  for (const std::vector<DeviceId>& devices : {std::vector<DeviceId>{0, 3}, {1, 4}}) {
    add_ring(cluster, devices, 60'000'000, {}, steps);
    const Exchange exchange = all_reduce(cluster, devices, AllReduce::kRing, 60'000'000);
    rings.push_back(
        {exchange[0].flows[0].bytes, exchange[0].latency, exchange[0].flows[0].links, {}});
  }
  std::vector<Link> without_latency = cluster.links;
  for (Link& link : without_latency) link.latency = 0;  // it is in `start`
  compare("two rings at a time over two NICs", last_of(ours(without_latency, rings)),
          last_of(simgrid(cluster.links, steps)));
}

/// Pieces go down each host's chain one behind the other; the last one arrives a few pieces' time
/// later than ours, for whom pieces are small: (hops - 1) / pieces of the chain's time.
void add_chains(const Cluster& cluster, bool to_first, std::int64_t bytes,
                const std::vector<int>& after, std::vector<Message>& messages) {
  constexpr int kPieces = 200;
  for (const Host& host : cluster.hosts) {
    for (int piece = 0; piece < kPieces; ++piece) {
      for (int hop = 1; hop < host.device_count; ++hop) {
        const DeviceId far = host.first_device + (to_first ? host.device_count - hop : hop);
        const DeviceId near = far - 1;
        const int index = static_cast<int>(messages.size());
        Message m;
        m.bytes = bytes / kPieces;
        m.links = to_first ? cluster.route(far, near) : cluster.route(near, far);
        if (hop > 1) m.after.push_back(index - 1);
        if (piece > 0) m.after.push_back(index - (host.device_count - 1));
        if (hop == 1 && piece == 0) m.after = after;
        messages.push_back(m);
      }
    }
  }
}

TEST_F(SimGrid, AgreesOnHierarchicalAllReduce) {
  // Without latency inside hosts: SimGrid would pay it for every piece.
  const Cluster cluster = cluster_of(
      "kind gpu fp32=1e12\nhost a gpu 3 bandwidth=4e9 latency=0 nic=1e9 nic-latency=1e-5\n"
      "host b gpu 3 bandwidth=4e9 latency=0 nic=1e9 nic-latency=1e-5\n");
  constexpr std::int64_t kBytes = 60'000'000;
  std::vector<Message> messages;
  const auto all_so_far = [&](std::size_t from) {
    std::vector<int> all;
    for (std::size_t i = from; i < messages.size(); ++i) all.push_back(static_cast<int>(i));
    return all;
  };
  add_chains(cluster, true, kBytes, {}, messages);
  const std::size_t reduced = messages.size();
  add_ring(cluster, {0, 3}, kBytes, all_so_far(0), messages);
  add_chains(cluster, false, kBytes, all_so_far(reduced), messages);
  compare("hierarchical, 2 hosts of 3, 60 MB",
          lone_seconds(cluster,
                       all_reduce(cluster, {0, 1, 2, 3, 4, 5}, AllReduce::kHierarchical, kBytes)),
          last_of(simgrid(cluster.links, messages)));
}

/// Each piece goes up the tree when the children's have come, and down when it is there; a member's
/// pieces go one behind the other.
void add_tree(const Cluster& cluster, const std::vector<DeviceId>& devices, std::int64_t bytes,
              std::vector<Message>& messages) {
  std::vector<int> hosts;
  for (const DeviceId d : devices)
    hosts.push_back(cluster.devices[static_cast<std::size_t>(d)].host);
  const ReductionTree tree = reduction_tree(hosts);
  const std::size_t n = devices.size();
  std::vector<int> last_up(n, -1), last_down(n, -1);
  const auto add = [&](int from, int to, std::vector<int> after, int& last) {
    if (last >= 0) after.push_back(last);
    last = static_cast<int>(messages.size());
    messages.push_back({bytes / tree_pieces(bytes), 0,
                        cluster.route(devices[static_cast<std::size_t>(from)],
                                      devices[static_cast<std::size_t>(to)]),
                        after});
  };
  for (std::int64_t piece = 0; piece < tree_pieces(bytes); ++piece) {
    const auto summed = [&](int member) {
      std::vector<int> ups;
      for (const int child : tree.members[static_cast<std::size_t>(member)].children) {
        if (child >= 0) ups.push_back(last_up[static_cast<std::size_t>(child)]);
      }
      return ups;
    };
    for (auto it = tree.order.rbegin(); it + 1 != tree.order.rend(); ++it) {
      add(*it, tree.parent_of(*it), summed(*it), last_up[static_cast<std::size_t>(*it)]);
    }
    for (auto it = tree.order.begin() + 1; it != tree.order.end(); ++it) {
      const int parent = tree.parent_of(*it);
      const int above = last_down[static_cast<std::size_t>(parent)];
      add(parent, *it, above < 0 ? summed(parent) : std::vector<int>{above},
          last_down[static_cast<std::size_t>(*it)]);
    }
  }
}

TEST_F(SimGrid, AgreesOnTreeAllReduceInManyPieces) {
  // Without latency: SimGrid would pay it for every piece.
  constexpr std::int64_t kBytes = 64 << 20;
  for (const auto& [name, text, devices] :
       std::vector<std::tuple<std::string, std::string, std::vector<DeviceId>>>{
           {"tree, 2 hosts of 3, 67 MB",
            "host a gpu 3 bandwidth=4e9 latency=0 nic=1e9 nic-latency=0\n"
            "host b gpu 3 bandwidth=4e9 latency=0 nic=1e9 nic-latency=0\n",
            {0, 1, 2, 3, 4, 5}},
           {"tree, 1 host of 5, 67 MB",
            "host a gpu 5 bandwidth=4e9 latency=0\n",
            {0, 1, 2, 3, 4}}}) {
    const Cluster cluster = cluster_of("kind gpu fp32=1e12\n" + text);
    std::vector<Message> messages;
    add_tree(cluster, devices, kBytes, messages);
    compare(name, lone_seconds(cluster, all_reduce(cluster, devices, AllReduce::kTree, kBytes)),
            last_of(simgrid(cluster.links, messages)));
  }
}

TEST_F(SimGrid, AgreesOnTreeAllReduceOfOnePiece) {
  const Cluster cluster = cluster_of(kTwoHosts);
  const std::vector<DeviceId> devices = {0, 1, 2, 3, 4, 5};
  std::vector<Message> messages;
  add_tree(cluster, devices, 48'000, messages);
  compare("tree, 2 hosts of 3, 48 kB",
          lone_seconds(cluster, all_reduce(cluster, devices, AllReduce::kTree, 48'000)),
          last_of(simgrid(cluster.links, messages)));
}

/// A whole step of a pipeline whose passes take no time: two replicas a stage share the NICs.
TEST_F(SimGrid, AgreesOnThePipelinesMessages) {
  constexpr int kMicroBatches = 4;
  const Step step(chain_of(2),
                  "kind unit fp32=1e30 bandwidth=1e30 launch=0\n"
                  "host a unit 2 bandwidth=1e8 latency=1e-6 nic=1e7 nic-latency=1e-5\n"
                  "host b unit 2 bandwidth=1e8 latency=1e-6 nic=1e7 nic-latency=1e-5\n",
                  "micro-batches 4 gpipe\nstage a/0=8 a/1=8 : h1\nstage b/0=8 b/1=8 : h2\n", 64);
  std::vector<Message> messages;
  for (int m = 0; m < 2 * kMicroBatches; ++m) {  // activations, then gradients
    for (int replica = 0; replica < 2; ++replica) {
      const bool forward = m < kMicroBatches;
      Message message;
      message.bytes = 8 * 64 * 4;
      message.links = forward ? step.cluster.route(replica, 2 + replica)
                              : step.cluster.route(2 + replica, replica);
      if (m > 0) message.after = {2 * (m - 1) + replica};
      messages.push_back(message);
    }
  }
  const std::vector<double> theirs = simgrid(step.cluster.links, messages);
  const Estimate estimate = step.simulate();
  for (int m = 0; m < kMicroBatches; ++m) {
    const double sent = event_of(estimate, 2, {Opcode::kRecv, 0, m}).end;
    const double back = event_of(estimate, 0, {Opcode::kRecvGradient, 0, m}).end;
    compare(fmt::format("pipeline, activations of micro-batch {}", m), sent,
            theirs[static_cast<std::size_t>(2 * m)]);
    compare(fmt::format("pipeline, gradients of micro-batch {}", m), back,
            theirs[static_cast<std::size_t>(2 * (kMicroBatches + m))]);
  }
}

}  // namespace
}  // namespace agpcs
