// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/offload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {
namespace {

/// Plays all pieces one after the other: a copy in, an update, a copy out, each in the order of
/// pieces, and a piece comes in when there is room in the window.
double played(double update, std::int64_t elements, std::int64_t bytes, const HostLink& link) {
  const auto pieces = static_cast<std::size_t>((elements + kOffloadPiece - 1) / kOffloadPiece);
  const auto part = static_cast<double>(pieces);
  const double copy = link.latency + static_cast<double>(elements) / part *
                                         static_cast<double>(bytes) / link.bandwidth;
  double in = 0, updated = 0;
  std::vector<double> out;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const double room = piece < kOffloadWindow ? 0 : out[piece - kOffloadWindow];
    in = std::max(in, room) + copy;
    updated = std::max(in, updated) + update / part;
    out.push_back(std::max(updated, out.empty() ? 0 : out.back()) + copy);
  }
  return out.back();
}

TEST(Offload, TakesWhatItsPiecesTake) {
  for (const double update : {0.0, 1e-5, 1e-3, 0.1, 2.0}) {
    for (const std::int64_t elements :
         {std::int64_t{1}, kOffloadPiece, kOffloadPiece + 1, 2 * kOffloadPiece, 77 * kOffloadPiece,
          300 * kOffloadPiece + 12345}) {
      for (const HostLink& link : {HostLink{"pcie", 12e9, 5e-6}, HostLink{"pcie", 1e9, 0}}) {
        const double expected = played(update, elements, 8, link);
        EXPECT_NEAR(offloaded_seconds(update, elements, 8, link), expected, 1e-12 + 1e-9 * expected)
            << update << " s, " << elements << " elements";
      }
    }
  }
}

TEST(Offload, NeverShortensAnUpdate) {
  const HostLink link = {"pcie", 64e9, 0};
  for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{7}, 9 * kOffloadPiece}) {
    EXPECT_GE(offloaded_seconds(0.25, elements, 8, link), 0.25);
  }
  EXPECT_EQ(offloaded_seconds(0, 0, 8, link), 0);
}

TEST(Offload, LeavesTheWindowOnTheDevice) {
  Training training;
  training.optimizer.kind = OptimizerKind::kAdam;
  constexpr std::int64_t kWindow = 3 * (std::int64_t{1} << 20) * 8;
  StageMemory memory;
  memory.optimizer = 100 * kWindow;
  move_state_to_host(training, memory);
  EXPECT_EQ(memory.host, 100 * kWindow);
  EXPECT_EQ(memory.optimizer, kWindow);
  memory.optimizer = 800;
  move_state_to_host(training, memory);
  EXPECT_EQ(memory.host, 800);
  EXPECT_EQ(memory.optimizer, 800);
}

/// Plays a forward pass with its copies: a segment begins when the one before it has ended, and
/// when what the second before it keeps has left; copies are in the order of segments.
double played_forward(const std::vector<double>& seconds, const std::vector<double>& copies) {
  double ended = 0;
  std::vector<double> left;
  for (std::size_t s = 0; s < seconds.size(); ++s) {
    const double room = s < 2 || s - 2 >= left.size() ? 0 : left[s - 2];
    ended = std::max(ended, room) + seconds[s];
    if (s < copies.size())
      left.push_back(std::max(ended, left.empty() ? 0 : left.back()) + copies[s]);
  }
  return std::max(ended, left.empty() ? 0 : left.back());
}

/// The same of a backward pass: what a segment keeps begins to come when the second behind it has
/// ended.
double played_backward(const std::vector<double>& seconds, const std::vector<double>& copies) {
  const std::size_t count = seconds.size();
  std::vector<double> ended(count + 2, 0);
  double came = 0;
  for (std::size_t s = count; s-- > 0;) {
    if (s < copies.size()) came = std::max(came, ended[s + 2]) + copies[s];
    ended[s] = std::max(ended[s + 1], s < copies.size() ? came : 0) + seconds[s];
  }
  return ended[0];
}

TEST(Activations, TakeAsLongAsTheSlowerOfCopiesAndSegments) {
  const std::vector<double> seconds = {3, 1, 4, 1, 5, 9, 2, 6};
  const std::vector<std::size_t> ends = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto seconds_of = [&](std::size_t i) { return seconds[i]; };
  for (const double factor : {0.0, 0.1, 1.0, 7.0}) {
    for (std::size_t kept = 0; kept < seconds.size(); ++kept) {
      std::vector<double> copies;
      for (std::size_t s = 0; s + kept < seconds.size(); ++s)
        copies.push_back(factor * (s % 3 + 1));
      // What is kept is one segment.
      std::vector<double> turns(seconds.begin(), seconds.begin() + copies.size());
      double rest = 0;
      for (std::size_t s = copies.size(); s < seconds.size(); ++s) rest += seconds[s];
      if (kept > 0) turns.push_back(rest);
      EXPECT_DOUBLE_EQ(forward_seconds(seconds.size(), ends, copies, seconds_of),
                       played_forward(turns, copies));
      double elapsed = 0;
      BackwardTurns back(copies);
      for (std::size_t s = seconds.size(); s-- > 0;) {
        if (s < copies.size()) back.next(elapsed);
        elapsed += seconds[s];
      }
      EXPECT_DOUBLE_EQ(elapsed, played_backward(turns, copies));
    }
  }
}

TEST(Activations, TakeNoLongerIfNothingIsCopied) {
  EXPECT_EQ(copy_seconds(0, {}), 0);
  EXPECT_EQ(copy_seconds(12'000'000, {"pcie", 12e9, 5e-6}), 5e-6 + 1e-3);
  const double third = 1.0 / 3;
  EXPECT_EQ(forward_seconds(3, {1, 2}, {}, [&](std::size_t) { return third; }),
            third + third + third);
}

}  // namespace
}  // namespace agpcs
