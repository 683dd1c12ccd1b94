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

}  // namespace
}  // namespace agpcs
