// SPDX-License-Identifier: Apache-2.0
// A world of ranks, over any transport. They are threads of the test; over NCCL, processes.
#pragma once

#ifdef AGPCS_TEST_NCCL
#include <agpcs/nccl.h>
#endif
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace agpcs {

/// One kind of transport under test.
struct WorldKind {
  std::string name;
  /// Why this machine cannot run it; empty when it can.
  std::function<std::string()> obstacle;
  /// Runs `body` on each of `ranks` threads (over NCCL: processes, which share no variable) with
  /// that rank's transport. The transport lives until `body` returns; those of other ranks do not
  /// wait for it.
  std::function<void(int ranks, const std::function<void(Transport&)>& body)> run;
  /// Messages of a pair must be received in the order sent, whatever their tags.
  bool ordered_pairs = false;
};

inline void PrintTo(const WorldKind& kind, std::ostream* out) { *out << kind.name; }  // NOLINT

/// Tests over each of several transports. One that cannot run here is skipped with the reason.
class OverWorld : public ::testing::TestWithParam<WorldKind> {
 protected:
  void SetUp() override {
    const std::string obstacle = GetParam().obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << GetParam().name << ": " << obstacle;
  }
};

/// All that this binary tests.
std::vector<WorldKind> worlds();
WorldKind loopback_world();
WorldKind tcp_world();
WorldKind tls_world();  ///< over TCP with TLS
WorldKind gloo_world();
WorldKind nccl_world();

#ifdef AGPCS_TEST_NCCL
/// As the `run` of `nccl_world`, with options of one's own.
void run_nccl(int ranks, const std::function<NcclOptions(int rank)>& options_of,
              const std::function<void(Transport&)>& body);
#endif

}  // namespace agpcs
