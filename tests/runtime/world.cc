// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/world.h"

#include "runtime/bootstrap/socket.h"
#include "tests/support/job_token.h"

#include <agpcs/bootstrap.h>
#include <agpcs/loopback.h>
#include <agpcs/tcp.h>
#ifdef AGPCS_TEST_GLOO
#include <agpcs/gloo.h>
#endif

#include <gtest/gtest.h>

#include <barrier>
#include <csignal>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

// tests/runtime/emulated_*.cc are linked in the place of CUDA and NCCL.
#ifdef AGPCS_TEST_EMULATED_GPU
constexpr const char* kNcclName = "nccl_emulated";
#else
constexpr const char* kNcclName = "nccl";
#endif

std::string no_obstacle() { return {}; }

#ifdef AGPCS_TEST_GLOO
/// Gloo writes to connections that peers have closed: an error, not a death, as in the commands.
void ignore_closed_pipes() { std::signal(SIGPIPE, SIG_IGN); }
#endif

void on_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

using Connect = std::function<Result<std::unique_ptr<Transport>>(Bootstrap&)>;

void run_bootstrapped(int ranks, const Connect& connect,
                      const std::function<void(Transport&)>& body, bool tls = false) {
  auto listening = listen_at("127.0.0.1");
  ASSERT_TRUE(listening.ok()) << listening.status().message();
  const int port = port_of(listening->get());
  const int listen_fd = listening->release();
  std::barrier connected(ranks);
  on_threads(ranks, [&](int rank) {
    BootstrapOptions options;
    options.rank = rank;
    options.size = ranks;
    options.port = port;
    options.listen_fd = rank == 0 ? listen_fd : -1;
    options.token = kJobToken;
    options.tls = tls;
    options.name = "test/" + std::to_string(rank);
    auto bootstrap = Bootstrap::join(options);
    ASSERT_TRUE(bootstrap.ok()) << bootstrap.status().message();
    auto transport = connect(**bootstrap);
    ASSERT_TRUE(transport.ok()) << transport.status().message();
    connected.arrive_and_wait();  // so that no body ends, or fails, while others connect
    body(**transport);
    transport->reset();
  });
}

}  // namespace

std::vector<WorldKind> worlds() {
#ifdef AGPCS_TEST_EMULATED_GPU
  return {nccl_world()};
#else
  return {loopback_world(), tcp_world(), tls_world(), gloo_world(), nccl_world()};
#endif
}

WorldKind loopback_world() {
  return {"loopback", no_obstacle, [](int ranks, const std::function<void(Transport&)>& body) {
            LoopbackHub hub(ranks);
            on_threads(ranks, [&](int rank) { body(*hub.join(rank)); });
          }};
}

WorldKind tcp_world() {
  return {"tcp", no_obstacle, [](int ranks, const std::function<void(Transport&)>& body) {
            run_bootstrapped(
                ranks, [](Bootstrap& bootstrap) { return connect_tcp(bootstrap); }, body);
          }};
}

WorldKind tls_world() {
  return {"tls", no_obstacle, [](int ranks, const std::function<void(Transport&)>& body) {
            run_bootstrapped(
                ranks, [](Bootstrap& bootstrap) { return connect_tcp(bootstrap); }, body, true);
          }};
}

WorldKind gloo_world() {
#ifdef AGPCS_TEST_GLOO
  return {"gloo", no_obstacle, [](int ranks, const std::function<void(Transport&)>& body) {
            ignore_closed_pipes();
            run_bootstrapped(
                ranks, [](Bootstrap& bootstrap) { return connect_gloo(bootstrap); }, body);
          }};
#else
  return {"gloo", [] { return std::string("built without Gloo"); }, nullptr};
#endif
}

#ifdef AGPCS_TEST_NCCL
void run_nccl(int ranks, const std::function<NcclOptions(int rank)>& options_of,
              const std::function<void(Transport&)>& body) {
  const std::string obstacle = nccl_obstacle(ranks);
  if (!obstacle.empty()) GTEST_SKIP() << "nccl: " << obstacle;
  run_bootstrapped(
      ranks,
      [&](Bootstrap& bootstrap) { return connect_nccl(bootstrap, options_of(bootstrap.rank())); },
      body);
}
#endif

WorldKind nccl_world() {
#ifdef AGPCS_TEST_NCCL
  const auto run = [](int ranks, const std::function<void(Transport&)>& body) {
    const auto options_of = [ranks](int rank) {
      NcclOptions options;
      options.device = nccl_device(rank);
      if (ranks > 1) options.links = {{0, 1}};  // the others connect when they are used
      return options;
    };
    run_nccl(ranks, options_of, body);
  };
  return {kNcclName, [] { return nccl_obstacle(); }, run, true};
#else
  return {kNcclName, [] { return std::string("built without NCCL"); }, nullptr};
#endif
}

}  // namespace agpcs
