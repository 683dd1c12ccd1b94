// SPDX-License-Identifier: Apache-2.0
// Benchmarks between processes of this machine, each a rank: our transport over TCP and, beside it,
// the same with TLS and over Gloo, and Gloo as it comes.
#pragma once

#include "ir/base/fd.h"

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gloo {
class Context;
}

namespace agpcs {

/// Says what is wrong and ends the process, where something is.
void check(const Status& status);

/// Where the ranks of a benchmark meet.
struct GlooMeeting {
  int ranks = 0, port = 0, tls_port = 0;
  std::string folder;  ///< of Gloo's own store
};

class GlooRank {
 public:
  /// The sockets that rank 0 listens on; closed for others.
  GlooRank(int rank, const GlooMeeting& meeting, Fd listening, Fd tls_listening);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  Transport& transport() { return *transport_; }
  Transport& over_gloo() { return *over_gloo_; }
  /// As `transport`, with TLS. All ranks call it at the same time; the first call connects.
  Transport& over_tls();
  /// Gloo's own ring, in place.
  void gloo_ring(std::vector<float>& values);
  /// The slowest rank's; also a barrier, over Gloo.
  double slowest(double seconds);

 private:
  const int rank_, ranks_, tls_port_;
  Fd tls_listening_;
  std::unique_ptr<Bootstrap> bootstrap_, tls_bootstrap_;
  std::unique_ptr<Transport> transport_, over_gloo_, over_tls_;
  std::shared_ptr<gloo::Context> context_;
};

/// `work` with a process a rank, so that nothing of one call is left for the next. Waits for all;
/// ends the process where one of them failed.
void run_gloo_ranks(int ranks, const std::function<void(GlooRank&)>& work);

}  // namespace agpcs
