// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/network/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr double kVoteEvery = 0.05;  // seconds
// A window in which fewer all-reduces than kFewestReduced end is extended up to kLongest times.
constexpr std::int64_t kFewestReduced = 5;
constexpr double kLongest = 10;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return seconds.count();
}

/// How often something was done, and in how many seconds.
struct Count {
  std::int64_t times = 0;
  double seconds = 0;
  double rate() const { return seconds > 0 ? static_cast<double>(times) / seconds : 0; }
};

/// Repeats all-reduces until every rank has seen enough of them. `run` belongs to one thread; any
/// thread may call the rest.
class ReduceLoop {
 public:
  /// The running thread calls `enough` from time to time.
  ReduceLoop(RankTeam& team, int rank, const OverlapWork& work, std::function<bool()> enough)
      : team_(team),
        place_(static_cast<std::size_t>(rank)),
        work_(work),
        enough_(std::move(enough)) {}

  void run() {
    status_ = loop();
    ended_ = true;
  }
  bool ended() const { return ended_; }
  const Status& status() const { return status_; }  ///< valid after `run`
  /// Returns the all-reduces done so far, and the time until the last of them ended.
  Count done() const {
    const std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  Status loop() {
    const auto begin = std::chrono::steady_clock::now();
    const double chunk = std::max(1.0, std::round(kVoteEvery / work_.reduce_seconds));
    while (true) {
      for (double i = 0; i < chunk; ++i) {
        AGPCS_RETURN_IF_ERROR(team_.all_reduce(work_.buffer, AllReduce::kRing));
        const std::lock_guard lock(mutex_);
        done_ = {done_.times + 1, seconds_since(begin)};
      }
      // One vote per rank: whether it has seen enough. The last entry counts ranks over the time
      // limit.
      std::vector<double> votes(team_.ranks().size() + 1);
      votes[place_] = enough_() ? 1 : 0;
      votes.back() = seconds_since(begin) < work_.limit ? 0 : 1;
      AGPCS_TRY(votes, team_.sum(std::move(votes)));
      const auto against = std::find(votes.begin(), votes.end() - 1, 0.0);
      if (against == votes.end() - 1) return {};
      if (votes.back() == 0) continue;
      return {StatusCode::kTimeout, fmt::format("rank {} is not done after {:.0f} s",
                                                against - votes.begin(), work_.limit)};
    }
  }

  RankTeam& team_;
  const std::size_t place_;
  const OverlapWork& work_;
  const std::function<bool()> enough_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  Count done_;
  Status status_;
};

/// Computes until the counted part is `enough`, then goes on without counting while `goes_on` is
/// true.
Result<Count> compute_until(const OverlapWork& work,
                            const std::function<bool(const Count&)>& enough,
                            const std::function<bool(double now)>& goes_on) {
  const auto begin = std::chrono::steady_clock::now();
  Count count;
  do {
    AGPCS_RETURN_IF_ERROR(work.compute());
    count = {count.times + 1, seconds_since(begin)};
  } while (!enough(count));
  while (goes_on(seconds_since(begin))) AGPCS_RETURN_IF_ERROR(work.compute());
  return count;
}

/// Computes on every rank until the slowest rank's window is over. That window can be too long by
/// one repetition at most, so the ranks time one beforehand.
Result<Count> compute_alone(RankTeam& team, int rank, const OverlapWork& work) {
  AGPCS_RETURN_IF_ERROR(team.sum({0}).status());
  const auto begin = std::chrono::steady_clock::now();
  AGPCS_RETURN_IF_ERROR(work.compute());
  std::vector<double> repetition(team.ranks().size());
  repetition[static_cast<std::size_t>(rank)] = seconds_since(begin);
  AGPCS_TRY(repetition, team.sum(std::move(repetition)));
  const double until = work.seconds + *std::max_element(repetition.begin(), repetition.end());
  return compute_until(
      work, [&](const Count& count) { return count.seconds >= work.seconds; },
      [&](double now) { return now < until; });
}

Result<Count> reduce_alone(RankTeam& team, int rank, const OverlapWork& work) {
  AGPCS_RETURN_IF_ERROR(team.sum({0}).status());  // no rank computes any more
  const auto begin = std::chrono::steady_clock::now();
  ReduceLoop loop(team, rank, work, [&] { return seconds_since(begin) >= work.seconds; });
  loop.run();
  AGPCS_RETURN_IF_ERROR(loop.status());
  return loop.done();
}

struct Together {
  Count computed, reduced;
};

Result<Together> both(RankTeam& team, int rank, const OverlapWork& work) {
  AGPCS_RETURN_IF_ERROR(team.sum({0}).status());
  std::atomic<bool> computed_enough{false};
  ReduceLoop loop(team, rank, work, [&] { return computed_enough.load(); });
  std::thread reducing([&] { loop.run(); });
  Count reduced;
  const auto computed = compute_until(
      work,
      [&](const Count& count) {
        reduced = loop.done();
        const bool few = reduced.times < kFewestReduced && count.seconds < kLongest * work.seconds;
        computed_enough = loop.ended() || (count.seconds >= work.seconds && !few);
        return computed_enough.load();
      },
      [&](double) { return !loop.ended(); });
  computed_enough = true;  // also after a failure
  reducing.join();
  if (!computed.ok()) return computed.status();
  AGPCS_RETURN_IF_ERROR(loop.status());
  return Together{*computed, reduced};
}

/// Returns the bytes that a rank of the ring sends and receives in one all-reduce.
double bytes_of_ring(const OverlapWork& work, std::size_t ranks) {
  const auto n = static_cast<double>(ranks);
  return 4 * (n - 1) / n * static_cast<double>(work.buffer.bytes);
}

}  // namespace

Result<Overlap> measure_overlap(RankTeam& team, int rank, const OverlapWork& work) {
  AGPCS_TRY(const Count computing, compute_alone(team, rank, work));
  AGPCS_TRY(const Count reducing, reduce_alone(team, rank, work));
  AGPCS_TRY(const Together together, both(team, rank, work));
  Overlap overlap;
  const double window = together.computed.seconds;
  const double useful = static_cast<double>(together.computed.times) / computing.rate();
  const double bytes = together.reduced.rate() * window * bytes_of_ring(work, team.ranks().size());
  if (bytes > 0) overlap.compute_seconds_per_byte = std::max(0.0, (window - useful) / bytes);
  const Count slowest{1, window};  // used if not even one has ended
  const double rate = std::max(together.reduced.rate(), slowest.rate());
  overlap.communication_factor = std::min(1.0, rate / reducing.rate());
  return overlap;
}

}  // namespace agpcs
