// SPDX-License-Identifier: Apache-2.0
// Control messages: what ranks tell each other to agree on what to reduce, in virtual time.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace agpcs {

/// Along which edges control messages go to rank 0 and back.
enum class ControlShape : std::uint8_t {
  kStar,  ///< every rank with rank 0
  kTree,  ///< binomial: rank r with r - (its lowest bit), as MPI_Bcast has it (Thakur, Rabenseifner
          ///< and Gropp, Int. J. High Perform. Comput. Appl. 19(1), 2005)
  kBinary,  ///< rank r with (r - 1) / 2, as `GradientReducer` combines its bits on one host
  kRing,    ///< rank r with r - 1
};
/// "star", "tree", "binary", "ring".
std::string_view name_of(ControlShape shape);

/// The ranks that send to `rank` on their way to rank 0, in the order in which it takes their
/// messages; the way back is in the opposite order. Needs: 0 <= rank < ranks.
std::vector<int> children_of(ControlShape shape, int rank, int ranks);

/// Seconds, as in LogGP (Alexandrov et al., J. Parallel Distrib. Comput. 44(1), 1997): a message of
/// b bytes occupies its sender for message + b x byte, then is in flight for `latency`, then
/// occupies its receiver as it did the sender. A rank handles one message at a time.
struct ControlCosts {
  double latency = 0;
  double message = 0;
  double byte = 0;
  double request = 0;  ///< of rank 0, to read and count one request
  /// Processors that all ranks share; 0: each rank has its own. What occupies ranks takes at least
  /// its sum divided by these.
  int processors = 0;
  double unit = 0;  ///< of each rank, for each request or bit that it gives and answer that it gets
};

/// What control messages were sent, and in how many parts each: a list's length goes before it.
struct ControlTraffic {
  int parts = 1;
  std::int64_t messages = 0, bytes = 0;
};

/// Each rank r sends `bytes[r]` towards rank 0 from `ready[r]` on; inner ranks of tree and ring
/// pass on what came, in one message, in front of their own. Returns when rank 0 has it all.
/// Needs: a rank; as many bytes as times. Cost: O(ranks).
double gather_to_first(ControlShape shape, const ControlCosts& costs, std::span<const double> ready,
                       std::span<const std::int64_t> bytes, ControlTraffic& traffic);

/// The same with `bytes` on every edge, as what comes is combined with one's own (bitwise AND).
double combine_to_first(ControlShape shape, const ControlCosts& costs,
                        std::span<const double> ready, std::int64_t bytes, ControlTraffic& traffic);

/// Rank 0 sends `bytes` to all from `begin` on; a rank of a tree sends to its largest subtree
/// first. Sets when each rank has them and has passed them on. Needs: a rank. Cost: O(ranks).
void spread_from_first(ControlShape shape, const ControlCosts& costs, double begin,
                       std::int64_t bytes, std::span<double> done, ControlTraffic& traffic);

}  // namespace agpcs
