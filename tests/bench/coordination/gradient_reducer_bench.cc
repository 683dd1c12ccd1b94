// SPDX-License-Identifier: Apache-2.0
// What each way of coordination takes beside one all-reduce by Gloo of one buffer as long as all
// gradients, between processes of this machine: Gloo neither gathers gradients nor hands out sums.
// Gradients that do not lie in their groups' memory lie apart from one another.
//   gradient_reducer_bench steps [RANKS [SET [SECONDS]]]   a JSON line a way; SET: resnet50,
//                                                          bert, small
//   gradient_reducer_bench sizes SET                       the elements of its gradients
//   gradient_reducer_bench and [RANKS]                     three ways to combine bits of all ranks
#include "ir/base/median.h"
#include "ir/base/rng.h"
#include "ir/plan/reduction_tree.h"
#include "tests/bench/support/gloo_ranks.h"

#include <agpcs/gradient_reducer.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::int64_t> resnet50() {
  std::vector<std::int64_t> sizes = {64 * 3 * 49, 64, 64};
  std::int64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int layer = 0; layer < 4; ++layer) {
    const std::int64_t width = std::int64_t{64} << layer, out = 4 * width;
    for (int block = 0; block < blocks[layer]; ++block) {
      const auto conv = [&](std::int64_t from, std::int64_t to, std::int64_t kernel) {
        sizes.insert(sizes.end(), {from * to * kernel, to, to});
      };
      conv(in, width, 1);
      conv(width, width, 9);
      conv(width, out, 1);
      if (block == 0) conv(in, out, 1);
      in = out;
    }
  }
  sizes.insert(sizes.end(), {2048 * 1000, 1000});
  return sizes;
}

std::vector<std::int64_t> bert_base() {
  const std::int64_t d = 768, inner = 3072;
  std::vector<std::int64_t> sizes = {30522 * d, 512 * d, 2 * d, d, d};
  for (int layer = 0; layer < 12; ++layer) {
    for (int projection = 0; projection < 4; ++projection) sizes.insert(sizes.end(), {d * d, d});
    sizes.insert(sizes.end(), {d, d, inner * d, inner, d * inner, d, d, d});
  }
  sizes.insert(sizes.end(), {d * d, d});
  return sizes;
}

std::vector<std::int64_t> sizes_of(const std::string& set) {
  if (set == "resnet50") return resnet50();
  if (set == "bert") return bert_base();
  if (set == "small") return std::vector<std::int64_t>(2000, 256);
  check(invalid_input(fmt::format("no set '{}'\n  hint: resnet50, bert, small", set)));
  return {};
}

/// In the order of a backward pass, in groups of at most `bytes`.
GradientSet set_of(const std::vector<std::int64_t>& sizes, std::int64_t bytes) {
  GradientSet set;
  std::int64_t filled = 0;
  for (std::size_t g = sizes.size(); g-- > 0;) {
    if (set.groups.empty() || filled + 4 * sizes[g] > bytes) {
      set.groups.push_back({fmt::format("b{}", set.groups.size()), {}});
      filled = 0;
    }
    set.groups.back().gradients.push_back(static_cast<int>(set.gradients.size()));
    set.gradients.push_back({fmt::format("g{}", g), DType::kFp32, sizes[g]});
    filled += 4 * sizes[g];
  }
  return set;
}

/// About the order of a backward pass, another one on each rank and in each step: each gradient is
/// up to sixteen places from where it belongs.
std::vector<int> arrival(std::size_t count, Rng& rng) {
  std::vector<std::pair<std::uint64_t, int>> keys;
  for (std::size_t g = 0; g < count; ++g) keys.emplace_back(g + rng.below(16), static_cast<int>(g));
  std::stable_sort(keys.begin(), keys.end());
  std::vector<int> order;
  for (const auto& key : keys) order.push_back(key.second);
  return order;
}

struct Way {
  std::string name;
  std::unique_ptr<GradientReducer> reducer;  // none: Gloo as it comes
  bool in_place = false;                     // else gradients lie apart
  std::vector<double> seconds;
  ReducerStats before;
};

/// Sums over all ranks.
std::vector<double> summed(GlooRank& rank, int group, std::vector<double> values) {
  const Buffer buffer{values.data(), values.size() * sizeof(double), DType::kFp64, false};
  const auto ticket = rank.transport().all_reduce(buffer, group, AllReduce::kRing);
  check(ticket.status());
  check(rank.transport().wait(Stream::kCollective, *ticket, std::chrono::minutes(5)));
  return values;
}

class Steps {
 public:
  Steps(GlooRank& rank, const std::string& set)
      : rank_(rank), set_name_(set), sizes_(sizes_of(set)), order_(rank.rank() + 1) {
    const std::int64_t all = std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
    flat_.assign(static_cast<std::size_t>(all), 1.F);
    apart_.assign(static_cast<std::size_t>(all) + sizes_.size() * kGap, 1.F);
    ways_.push_back({"gloo", nullptr, true, {}, {}});
    ways_.push_back({"gloo, copied", nullptr, false, {}, {}});
    // PyTorch's default size of a bucket, and no more than about sixteen.
    const std::int64_t bucket = std::max<std::int64_t>(std::int64_t{25} << 20, all * 4 / 16);
    add("planned", Coordination::kPlanned, bucket, true);
    add("planned, one group", Coordination::kPlanned, all * 4, true);
    add("planned, copied", Coordination::kPlanned, bucket, false);
    add("cached", Coordination::kCached, 0, false);
    add("cached, 5 groups", Coordination::kCached, all * 4 / 5 + 1, false);
    add("coordinator", Coordination::kCoordinator, 0, false);
    std::vector<int> ranks(static_cast<std::size_t>(rank.ranks()));
    std::iota(ranks.begin(), ranks.end(), 0);
    check(rank_.transport().open_group(kSums, ranks, std::vector<int>(ranks.size(), 0)));
  }

  void run(double seconds) {
    Rng rng(7);
    double spent = 0;
    for (int round = 0; round < 6 || spent < seconds; ++round) {
      std::vector<std::size_t> turns;
      for (std::size_t w = 0; w < ways_.size(); ++w) {
        turns.insert(turns.begin() + static_cast<std::ptrdiff_t>(rng.below(w + 1)), w);
      }
      for (const std::size_t w : turns) {
        if (round == 3 && ways_[w].reducer) ways_[w].before = ways_[w].reducer->stats();
        const double took = step(ways_[w]);
        if (round >= 3) ways_[w].seconds.push_back(took);
        spent += took;
      }
    }
    for (Way& way : ways_) print(way);
  }

 private:
  static constexpr int kSums = 100;
  static constexpr std::size_t kGap = 16;  // elements between gradients that lie apart

  void add(const std::string& name, Coordination coordination, std::int64_t group, bool in_place) {
    GradientSet set = set_of(sizes_, group);
    if (group == 0) set.groups.clear();
    ReducerOptions options;
    options.coordination = coordination;
    options.group = static_cast<int>(ways_.size());
    options.cache_capacity = 4096;  // all of the largest set
    auto reducer = GradientReducer::create(set, rank_.transport(), options);
    check(reducer.status());
    ways_.push_back({name, std::move(*reducer), in_place, {}, {}});
    if (in_place || !buffers_.empty()) return;
    float* at = apart_.data();
    float* place = flat_.data();
    for (const Gradient& gradient : set.gradients) {
      const auto elements = static_cast<std::size_t>(gradient.elements);
      buffers_.push_back({at, elements * sizeof(float), DType::kFp32, false});
      places_.push_back(place);
      at += elements + kGap;
      place += elements;
    }
  }

  /// Where the gradients of a step by `way` lie.
  std::vector<Buffer> buffers_of(const Way& way) {
    if (!way.in_place) return buffers_;
    if (!way.reducer) return {{flat_.data(), flat_.size() * sizeof(float), DType::kFp32, false}};
    std::vector<Buffer> buffers;
    for (std::size_t g = 0; g < buffers_.size(); ++g) {
      buffers.push_back(way.reducer->place_of(static_cast<int>(g)).value());
    }
    return buffers;
  }

  /// Gloo's ring; gradients that lie apart are copied to its buffer and back.
  void gloo_step(const Way& way, const std::vector<int>& order) {
    for (std::size_t i = 0; i < order.size() && !way.in_place; ++i) {
      const auto g = static_cast<std::size_t>(order[i]);
      std::memcpy(places_[g], buffers_[g].data, buffers_[g].bytes);
    }
    rank_.gloo_ring(flat_);
    for (std::size_t g = 0; g < buffers_.size() && !way.in_place; ++g) {
      std::memcpy(buffers_[g].data, places_[g], buffers_[g].bytes);
    }
  }

  double step(Way& way) {
    const std::vector<int> order = arrival(sizes_.size(), order_);
    const std::vector<Buffer> buffers = buffers_of(way);
    for (const Buffer& buffer : buffers) {
      std::fill_n(static_cast<float*>(buffer.data), buffer.bytes / sizeof(float), 1.F);
    }
    rank_.slowest(0);  // all begin at about the same time
    const auto begin = Clock::now();
    if (way.reducer) {
      for (const int g : order) {
        check(way.reducer->submit(g, buffers[static_cast<std::size_t>(g)]));
      }
      check(way.reducer->wait_all());
    } else {
      gloo_step(way, order);
    }
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    const float sum = *static_cast<const float*>(buffers.back().data);
    if (sum != static_cast<float>(rank_.ranks())) {
      check(internal_error(fmt::format("{}: the sum is {}", way.name, sum)));
    }
    return rank_.slowest(took);
  }

  void print(const Way& way) {
    const auto steps = static_cast<double>(way.seconds.size());
    std::vector<double> ratios;
    for (std::size_t i = 0; i < way.seconds.size(); ++i) {
      ratios.push_back(way.seconds[i] / ways_.front().seconds[i]);
    }
    std::vector<double> counts(6, 0);
    if (way.reducer) {
      const ReducerStats now = way.reducer->stats(), &then = way.before;
      counts = {static_cast<double>(now.control_messages - then.control_messages),
                static_cast<double>(now.control_bytes - then.control_bytes),
                static_cast<double>(now.cycles - then.cycles),
                static_cast<double>(now.control_ns - then.control_ns) * 1e-9,
                static_cast<double>(now.all_reduces - then.all_reduces),
                static_cast<double>(now.delay_ns - then.delay_ns) * 1e-9};
    }
    const std::vector<double> all = summed(rank_, kSums, counts);
    if (rank_.rank() != 0) return;
    fmt::print(
        "{{\"ranks\": {}, \"set\": \"{}\", \"way\": \"{}\", \"steps\": {}, \"median_ms\": {:.3f}, "
        "\"to_gloo\": {:.3f}, \"messages\": {:.1f}, \"message_bytes\": {:.0f}, \"cycles\": {:.2f}, "
        "\"control_ms\": {:.3f}, \"all_reduces\": {:.1f}, \"delay_ms\": {:.3f}}}\n",
        rank_.ranks(), set_name_, way.name, way.seconds.size(), median(way.seconds) * 1e3,
        median(ratios), all[0] / steps, all[1] / steps, counts[2] / steps, counts[3] / steps * 1e3,
        counts[4] / steps, counts[5] / steps * 1e3);
    std::fflush(stdout);
  }

  GlooRank& rank_;
  const std::string set_name_;
  const std::vector<std::int64_t> sizes_;
  Rng order_;
  std::vector<float> flat_;      // Gloo's buffer
  std::vector<float> apart_;     // gradients that lie apart
  std::vector<Buffer> buffers_;  // these, by gradient
  std::vector<float*> places_;   // by gradient: its place in Gloo's buffer
  std::vector<Way> ways_;
};

/// Bits of all ranks combined up a tree of messages and back, as a cycle does it, and as a sum of a
/// count a bit, which needs no more than an all-reduce.
class Combining {
 public:
  explicit Combining(GlooRank& rank) : rank_(rank) {
    std::vector<int> ranks(static_cast<std::size_t>(rank.ranks()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const std::vector<int> hosts(ranks.size(), 0);
    check(rank.transport().open_group(0, ranks, hosts));
    tree_ = reduction_tree(hosts);
  }

  void run(std::size_t bits) {
    std::vector<double> messages, ring, tree;
    constexpr int kRounds = 400;
    for (int i = 0; i < kRounds; ++i) {
      messages.push_back(timed([&] { exchange(2 * ((bits + 7) / 8) + 1); }));
      ring.push_back(timed([&] { count(bits, AllReduce::kRing); }));
      tree.push_back(timed([&] { count(bits, AllReduce::kTree); }));
    }
    if (rank_.rank() != 0) return;
    fmt::print("{:>5} {:>6} {:>20.1f} {:>20.1f} {:>20.1f}\n", rank_.ranks(), bits,
               median(messages) * 1e6, median(ring) * 1e6, median(tree) * 1e6);
  }

 private:
  template <typename Work>
  double timed(const Work& work) {
    rank_.slowest(0);
    const auto begin = Clock::now();
    work();
    return rank_.slowest(std::chrono::duration<double>(Clock::now() - begin).count());
  }

  void exchange(std::size_t bytes) {
    const ReductionTree::Member& me = tree_.members[static_cast<std::size_t>(rank_.rank())];
    std::vector<char> own(bytes, 1), other(bytes);
    Transport& transport = rank_.transport();
    const auto take = [&](int peer) {
      const auto ticket = transport.recv({other.data(), bytes, DType::kUint8, false}, peer, 1);
      check(ticket.status());
      check(transport.wait(Stream::kRecv, *ticket, std::chrono::minutes(1)));
      for (std::size_t i = 0; i < bytes; ++i) own[i] = static_cast<char>(own[i] & other[i]);
    };
    Ticket last = 0;
    const auto give = [&](int peer) {
      const auto ticket = transport.send({own.data(), bytes, DType::kUint8, false}, peer, 1);
      check(ticket.status());
      last = *ticket;
    };
    for (const int child : me.children) {
      if (child >= 0) take(child);
    }
    if (me.parent >= 0) {
      give(me.parent);
      take(me.parent);
    }
    for (const int child : me.children) {
      if (child >= 0) give(child);
    }
    if (last != 0) check(transport.wait(Stream::kSend, last, std::chrono::minutes(1)));
  }

  void count(std::size_t bits, AllReduce algorithm) {
    std::vector<std::int32_t> counts(bits, 1);
    const Buffer buffer{counts.data(), bits * sizeof(std::int32_t), DType::kInt32, false};
    const auto ticket = rank_.transport().all_reduce(buffer, 0, algorithm);
    check(ticket.status());
    check(rank_.transport().wait(Stream::kCollective, *ticket, std::chrono::minutes(1)));
  }

  GlooRank& rank_;
  ReductionTree tree_;
};

int run(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "steps";
  if (what == "sizes") {
    for (const std::int64_t size : sizes_of(argc > 2 ? argv[2] : "resnet50")) {
      fmt::print("{}\n", size);
    }
    return 0;
  }
  std::vector<int> worlds = {2, 4};
  if (argc > 2) worlds = {std::atoi(argv[2])};
  if (what == "and")
    fmt::print("ranks   bits  tree of messages, us  ring of counts, us  tree of counts, us\n");
  for (const int ranks : worlds) {
    if (what == "and") {
      run_gloo_ranks(ranks, [](GlooRank& rank) {
        Combining combining(rank);
        for (const std::size_t bits : {161, 2000}) combining.run(bits);
      });
      continue;
    }
    for (const std::string set : {"resnet50", "bert", "small"}) {
      if (argc > 3 && set != argv[3]) continue;
      const double seconds = argc > 4 ? std::atof(argv[4]) : 10;
      run_gloo_ranks(ranks, [&](GlooRank& rank) { Steps(rank, set).run(seconds); });
    }
  }
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { return agpcs::run(argc, argv); }
