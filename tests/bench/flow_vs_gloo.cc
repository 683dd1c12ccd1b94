// SPDX-License-Identifier: Apache-2.0
// What an all-reduce along a flow takes beside Gloo's own ring and beside ours, between processes
// of this machine: flow_vs_gloo [SECONDS-A-SIZE [LARGEST-MB]]. Each process is a rank; ways take
// turns, each time in another order, so that all meet the same noise.
#include "ir/rng.h"
#include "runtime/socket.h"
#include "tests/plan_flows.h"

#include <agpcs/bootstrap.h>
#include <agpcs/gloo.h>

#include <fmt/format.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

struct Way {
  std::string name;
  std::function<void(std::vector<float>&)> reduce;
};

void check(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "flow_vs_gloo: {}\n", status.message());
  std::_Exit(1);
}

/// The transport under test and, beside it, Gloo as it comes.
class Rank {
 public:
  Rank(int rank, int ranks, int port, int listen_fd, const std::string& folder) : rank_(rank) {
    BootstrapOptions options;
    options.rank = rank;
    options.size = ranks;
    options.port = port;
    options.listen_fd = listen_fd;
    options.local_only = true;
    options.token = "bench";
    options.name = fmt::format("bench/{}", rank);
    auto bootstrap = Bootstrap::join(options);
    check(bootstrap.status());
    bootstrap_ = std::move(*bootstrap);
    auto transport = connect_gloo(*bootstrap_);
    check(transport.status());
    transport_ = std::move(*transport);
    std::vector<int> all, hosts(static_cast<std::size_t>(ranks), 0);
    for (int i = 0; i < ranks; ++i) all.push_back(i);
    check(transport_->open_group(0, all, hosts));
    check(transport_->open_flow(0, 0, testing::ring_flow(ranks)));
    check(transport_->open_flow(1, 0, testing::ring_flow(ranks, 2)));
    check(transport_->open_flow(2, 0, testing::star_flow(ranks)));
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    gloo::rendezvous::FileStore store(folder);
    context->connectFullMesh(store, device);
    context_ = context;
  }

  std::vector<Way> ways() {
    return {{"gloo ring",
             [this](auto& values) {
               gloo::AllreduceOptions options(context_);
               options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
               options.setOutput(values.data(), values.size());
               options.setReduceFunction(
                   static_cast<void (*)(void*, const void*, const void*, std::size_t)>(
                       &gloo::sum<float>));
               gloo::allreduce(options);
             }},
            {"ring",
             [this](auto& values) {
               wait(transport_->all_reduce(buffer(values), 0, AllReduce::kRing));
             }},
            {"flow ring",
             [this](auto& values) { wait(transport_->all_reduce_flow(buffer(values), 0)); }},
            {"flow two rings",
             [this](auto& values) { wait(transport_->all_reduce_flow(buffer(values), 1)); }},
            {"flow star",
             [this](auto& values) { wait(transport_->all_reduce_flow(buffer(values), 2)); }}};
  }

  /// The slowest rank's, left on all.
  double slowest(double seconds, int ranks) {
    std::vector<double> all(static_cast<std::size_t>(ranks), 0);
    all[static_cast<std::size_t>(rank_)] = seconds;
    wait(transport_->all_reduce({all.data(), all.size() * sizeof(double), DType::kFp64, false}, 0,
                                AllReduce::kRing));
    return *std::max_element(all.begin(), all.end());
  }

 private:
  static Buffer buffer(std::vector<float>& values) {
    return {values.data(), values.size() * sizeof(float), DType::kFp32, false};
  }
  void wait(const Result<Ticket>& ticket) {
    check(ticket.status());
    check(transport_->wait(Stream::kCollective, *ticket, std::chrono::minutes(5)));
  }

  const int rank_;
  std::unique_ptr<Bootstrap> bootstrap_;
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(Rank& rank, int ranks, bool prints, std::int64_t megabytes, double seconds) {
  std::vector<Way> ways = rank.ways();
  std::vector<float> values(static_cast<std::size_t>(megabytes) * 1'000'000 / sizeof(float));
  std::vector<std::vector<double>> times(ways.size());
  Rng rng(5);
  double spent = 0;
  for (int round = 0; round < 4 || spent < seconds; ++round) {
    std::vector<std::size_t> order;
    for (std::size_t w = 0; w < ways.size(); ++w) {
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(rng.below(order.size() + 1)), w);
    }
    for (const std::size_t w : order) {
      std::fill(values.begin(), values.end(), 1.F);
      rank.slowest(0, ranks);  // all begin at about the same time
      const auto begin = Clock::now();
      ways[w].reduce(values);
      const std::chrono::duration<double> took = Clock::now() - begin;
      if (values.back() != static_cast<float>(ranks)) {
        check(internal_error(fmt::format("{}: the sum is {}", ways[w].name, values.back())));
      }
      const double slowest = rank.slowest(took.count(), ranks);
      spent += slowest;
      if (round > 0) times[w].push_back(slowest);  // the first warms up
    }
  }
  if (!prints) return;
  for (std::size_t w = 0; w < ways.size(); ++w) {
    // Round by round: what a round has in common cancels out.
    const auto ratio_to = [&](std::size_t other) {
      std::vector<double> ratios;
      for (std::size_t i = 0; i < times[w].size(); ++i) {
        ratios.push_back(times[w][i] / times[other][i]);
      }
      return median(ratios);
    };
    fmt::print("{:>5} {:>6} {:<15} {:>6} {:>10.2f} {:>10.2f} {:>9.3f} {:>9.3f}\n", ranks, megabytes,
               ways[w].name, times[w].size(), median(times[w]) * 1e3,
               *std::min_element(times[w].begin(), times[w].end()) * 1e3, ratio_to(0), ratio_to(1));
  }
  std::fflush(stdout);
}

void run_ranks(int ranks, double seconds, std::int64_t largest) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("flow_vs_gloo_{}_{}", getpid(), ranks))
          .string();
  std::filesystem::create_directory(folder);
  auto listening = listen_on(0, true);
  check(listening.status());
  const int port = port_of(listening->get());
  std::vector<pid_t> children;
  for (int r = 0; r < ranks; ++r) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    {
      Rank rank(r, ranks, port, r == 0 ? listening->release() : -1, folder);
      for (const std::int64_t megabytes : {1, 4, 16, 64}) {
        if (megabytes <= largest) measure(rank, ranks, r == 0, megabytes, seconds);
      }
      rank.slowest(0, ranks);
    }
    std::_Exit(0);
  }
  bool failed = false;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed = failed || status != 0;
  }
  std::filesystem::remove_all(folder);
  if (failed) std::exit(1);
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const std::int64_t largest = argc > 2 ? std::atoll(argv[2]) : 64;
  fmt::print("ranks     MB way               runs  median ms   least ms   to gloo   to ring\n");
  std::fflush(stdout);
  for (const int ranks : {2, 4}) agpcs::run_ranks(ranks, seconds, largest);
}
