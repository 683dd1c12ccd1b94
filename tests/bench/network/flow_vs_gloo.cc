// SPDX-License-Identifier: Apache-2.0
// What an all-reduce along a flow takes beside Gloo's own ring and beside ours, between processes
// of this machine: flow_vs_gloo [SECONDS-A-SIZE [LARGEST-MB]]. Each process is a rank; ways take
// turns, each time in another order, so that all meet the same noise.
#include "ir/base/median.h"
#include "ir/base/rng.h"
#include "tests/bench/support/gloo_ranks.h"
#include "tests/support/plan_flows.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

struct Way {
  std::string name;
  std::function<void(std::vector<float>&)> reduce;
};

/// The transport under test and, beside it, Gloo's ring.
class Ways {
 public:
  explicit Ways(GlooRank& rank) : rank_(rank) {
    const int ranks = rank.ranks();
    Transport& transport = rank.transport();
    std::vector<int> all, hosts(static_cast<std::size_t>(ranks), 0);
    for (int i = 0; i < ranks; ++i) all.push_back(i);
    check(transport.open_group(0, all, hosts));
    check(transport.open_flow(0, 0, testing::ring_flow(ranks)));
    check(transport.open_flow(1, 0, testing::ring_flow(ranks, 2)));
    check(transport.open_flow(2, 0, testing::star_flow(ranks)));
  }

  std::vector<Way> all() {
    return {{"gloo ring", [this](auto& values) { rank_.gloo_ring(values); }},
            {"ring",
             [this](auto& values) {
               wait(rank_.transport().all_reduce(buffer(values), 0, AllReduce::kRing));
             }},
            {"flow ring", [this](auto& values) { along(0, values); }},
            {"flow two rings", [this](auto& values) { along(1, values); }},
            {"flow star", [this](auto& values) { along(2, values); }}};
  }

 private:
  static Buffer buffer(std::vector<float>& values) {
    return {values.data(), values.size() * sizeof(float), DType::kFp32, false};
  }
  void along(int flow, std::vector<float>& values) {
    wait(rank_.transport().all_reduce_flow(buffer(values), flow));
  }
  void wait(const Result<Ticket>& ticket) {
    check(ticket.status());
    check(rank_.transport().wait(Stream::kCollective, *ticket, std::chrono::minutes(5)));
  }

  GlooRank& rank_;
};

void measure(GlooRank& rank, const std::vector<Way>& ways, std::int64_t megabytes, double seconds) {
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
      rank.slowest(0);  // all begin at about the same time
      const auto begin = Clock::now();
      ways[w].reduce(values);
      const std::chrono::duration<double> took = Clock::now() - begin;
      if (values.back() != static_cast<float>(rank.ranks())) {
        check(internal_error(fmt::format("{}: the sum is {}", ways[w].name, values.back())));
      }
      const double slowest = rank.slowest(took.count());
      spent += slowest;
      if (round > 0) times[w].push_back(slowest);  // the first warms up
    }
  }
  if (rank.rank() != 0) return;
  for (std::size_t w = 0; w < ways.size(); ++w) {
    // Round by round: what a round has in common cancels out.
    const auto ratio_to = [&](std::size_t other) {
      std::vector<double> ratios;
      for (std::size_t i = 0; i < times[w].size(); ++i) {
        ratios.push_back(times[w][i] / times[other][i]);
      }
      return median(ratios);
    };
    fmt::print("{:>5} {:>6} {:<15} {:>6} {:>10.2f} {:>10.2f} {:>9.3f} {:>9.3f}\n", rank.ranks(),
               megabytes, ways[w].name, times[w].size(), median(times[w]) * 1e3,
               *std::min_element(times[w].begin(), times[w].end()) * 1e3, ratio_to(0), ratio_to(1));
  }
  std::fflush(stdout);
}

void run_ranks(int ranks, double seconds, std::int64_t largest) {
  run_gloo_ranks(ranks, [&](GlooRank& rank) {
    Ways ways(rank);
    const std::vector<Way> all = ways.all();
    for (const std::int64_t megabytes : {1, 4, 16, 64}) {
      if (megabytes <= largest) measure(rank, all, megabytes, seconds);
    }
  });
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const std::int64_t largest = argc > 2 ? std::atoll(argv[2]) : 64;
  fmt::print("ranks     MB way               runs  median ms   least ms   to gloo   to ring\n");
  for (const int ranks : {2, 4}) agpcs::run_ranks(ranks, seconds, largest);
}
