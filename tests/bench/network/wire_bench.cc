// SPDX-License-Identifier: Apache-2.0
// What messages and all-reduces take over our TCP beside what they take over Gloo, between
// processes of this machine: wire_bench [SECONDS-A-ROW [LARGEST-MB]]. Both are driven by the same
// code above the wire; they take turns, each time in another order, so that both meet the same
// noise.
#include "ir/base/median.h"
#include "ir/base/rng.h"
#include "tests/bench/support/gloo_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::minutes kLimit{5};
constexpr std::size_t kWindow = 8;  // messages of a stream under way

/// What is measured: `work` over a transport, with buffers of `bytes` bytes, `times` times in one
/// round, of which each moves `moved` bytes (0: the time of one is the figure).
struct Row {
  std::string name;
  std::size_t bytes, times, moved;
  std::function<void(Transport&, std::vector<float>&, std::size_t times)> work;
};

Buffer buffer_of(std::vector<float>& values) {
  return {values.data(), values.size() * sizeof(float), DType::kFp32, false};
}

void wait(Transport& transport, Stream stream, const Result<Ticket>& ticket) {
  check(ticket.status());
  check(transport.wait(stream, *ticket, kLimit));
}

// There and back.
void ping_pong(Transport& transport, std::vector<float>& values, std::size_t times) {
  const Buffer buffer = buffer_of(values);
  const int other = 1 - transport.rank();
  for (std::size_t i = 0; i < times; ++i) {
    if (transport.rank() == 0) wait(transport, Stream::kSend, transport.send(buffer, other, 1));
    wait(transport, Stream::kRecv, transport.recv(buffer, other, 1));
    if (transport.rank() == 1) wait(transport, Stream::kSend, transport.send(buffer, other, 1));
  }
}

// From rank 0 to rank 1, `kWindow` messages at a time.
void stream(Transport& transport, std::vector<float>& values, std::size_t times) {
  const Buffer buffer = buffer_of(values);
  const bool sends = transport.rank() == 0;
  std::vector<Ticket> posted;
  for (std::size_t i = 0; i < times + kWindow; ++i) {
    if (i < times) {
      const auto ticket = sends ? transport.send(buffer, 1, 2) : transport.recv(buffer, 0, 2);
      check(ticket.status());
      posted.push_back(*ticket);
    }
    if (i >= kWindow) {
      check(transport.wait(sends ? Stream::kSend : Stream::kRecv, posted[i - kWindow], kLimit));
    }
  }
}

void reduce(Transport& transport, std::vector<float>& values, std::size_t times) {
  for (std::size_t i = 0; i < times; ++i) {
    wait(transport, Stream::kCollective,
         transport.all_reduce(buffer_of(values), 0, AllReduce::kRing));
  }
}

// What an all-reduce is made of, and as many bytes: each rank has an equal part, or rank 1 has all.
void scatter_and_gather(Transport& transport, std::vector<float>& values, std::size_t times,
                        bool one_owner) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  const auto elements = static_cast<std::int64_t>(values.size());
  std::vector<std::int64_t> parts(ranks, one_owner ? 0 : elements / transport.size());
  parts[1] += elements - std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  for (std::size_t i = 0; i < times; ++i) {
    const Buffer buffer = buffer_of(values);
    wait(transport, Stream::kCollective,
         transport.reduce_scatter(buffer, parts, 0, AllReduce::kRing));
    wait(transport, Stream::kCollective, transport.all_gather(buffer, parts, 0, AllReduce::kRing));
  }
}

std::vector<Row> rows_of(int ranks, std::size_t largest) {
  std::vector<Row> rows;
  if (ranks == 2) {
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{4096}, std::size_t{65536}}) {
      rows.push_back({"there and back", bytes, 200, 0, ping_pong});
    }
    for (const std::size_t bytes : {std::size_t{4096}, std::size_t{1} << 20}) {
      const std::size_t times = bytes < 65536 ? 4000 : 128;
      rows.push_back({"stream", bytes, times, bytes, stream});
    }
  }
  for (std::size_t megabytes = 1; megabytes <= largest; megabytes *= 4) {
    const std::size_t bytes = megabytes << 20;
    const std::size_t times = std::max<std::size_t>(1, 32 / megabytes);
    rows.push_back({"ring", bytes, times, 0, reduce});
    for (const bool one_owner : {false, true}) {
      rows.push_back({one_owner ? "of one owner" : "in two halves", bytes, times, 0,
                      [one_owner](Transport& transport, std::vector<float>& values, std::size_t n) {
                        scatter_and_gather(transport, values, n, one_owner);
                      }});
    }
  }
  rows.push_back({"ring", 4096, 200, 0, reduce});
  return rows;
}

void measure(GlooRank& rank, const Row& row, double seconds) {
  const std::array<Transport*, 2> over = {&rank.transport(), &rank.over_gloo()};
  std::vector<float> values(row.bytes / sizeof(float));
  std::array<std::vector<double>, 2> took;
  Rng rng(5);
  double spent = 0;
  for (int round = 0; round < 6 || spent < seconds; ++round) {
    const std::size_t first = rng.below(2);
    for (const std::size_t which : {first, 1 - first}) {
      std::fill(values.begin(), values.end(), 0.F);
      rank.slowest(0);  // all begin at about the same time
      const auto begin = Clock::now();
      row.work(*over[which], values, row.times);
      const std::chrono::duration<double> time = Clock::now() - begin;
      const double slowest = rank.slowest(time.count());
      spent += slowest;
      if (round > 0) took[which].push_back(slowest / static_cast<double>(row.times));
    }
  }
  if (rank.rank() != 0) return;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < took[0].size(); ++i) ratios.push_back(took[0][i] / took[1][i]);
  const auto figure = [&](const std::vector<double>& times) {
    return row.moved > 0
               ? fmt::format("{:.2f} GB/s", static_cast<double>(row.moved) / median(times) / 1e9)
               : fmt::format("{:.1f} us", median(times) * 1e6);
  };
  fmt::print("{:>5}  {:<15} {:>9} {:>7} {:>14} {:>14} {:>9.3f}\n", rank.ranks(), row.name,
             row.bytes, ratios.size(), figure(took[0]), figure(took[1]), median(ratios));
  std::fflush(stdout);
}

void run_ranks(int ranks, double seconds, std::size_t largest) {
  run_gloo_ranks(ranks, [&](GlooRank& rank) {
    std::vector<int> all, hosts(static_cast<std::size_t>(ranks), 0);
    for (int i = 0; i < ranks; ++i) all.push_back(i);
    check(rank.transport().open_group(0, all, hosts));
    check(rank.over_gloo().open_group(0, all, hosts));
    for (const Row& row : rows_of(ranks, largest)) measure(rank, row, seconds);
  });
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const auto largest = static_cast<std::size_t>(argc > 2 ? std::atoll(argv[2]) : 16);
  fmt::print("ranks  what                bytes  rounds           tcp           gloo  tcp/gloo\n");
  for (const int ranks : {2, 4}) agpcs::run_ranks(ranks, seconds, largest);
}
