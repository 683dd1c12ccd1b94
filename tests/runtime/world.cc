// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/world.h"

#include "runtime/socket.h"

#include <agpcs/bootstrap.h>
#include <agpcs/loopback.h>
#ifdef AGPCS_TEST_GLOO
#include <agpcs/gloo.h>
#endif
#ifdef AGPCS_TEST_NCCL
#include <agpcs/nccl.h>
#endif

#include <gtest/gtest.h>

#include <barrier>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

std::string no_obstacle() { return {}; }

void on_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

#if defined(AGPCS_TEST_GLOO) || defined(AGPCS_TEST_NCCL)
using Connect = std::function<Result<std::unique_ptr<Transport>>(Bootstrap&)>;

void run_bootstrapped(int ranks, const Connect& connect,
                      const std::function<void(Transport&)>& body) {
  auto listening = listen_on(0, true);
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
    options.local_only = true;
    options.token = "secret";
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
#endif

}  // namespace

WorldKind loopback_world() {
  return {"loopback", no_obstacle, [](int ranks, const std::function<void(Transport&)>& body) {
            LoopbackHub hub(ranks);
            on_threads(ranks, [&](int rank) { body(*hub.join(rank)); });
          }};
}

WorldKind gloo_world() {
#ifdef AGPCS_TEST_GLOO
  return {"gloo", no_obstacle, [](int ranks, const std::function<void(Transport&)>& body) {
            run_bootstrapped(
                ranks, [](Bootstrap& bootstrap) { return connect_gloo(bootstrap); }, body);
          }};
#else
  return {"gloo", [] { return std::string("built without Gloo"); }, nullptr};
#endif
}

WorldKind nccl_world() {
#ifdef AGPCS_TEST_NCCL
  return {"nccl", [] { return nccl_obstacle(); },
          [](int ranks, const std::function<void(Transport&)>& body) {
            const std::string obstacle = nccl_obstacle(ranks);
            if (!obstacle.empty()) GTEST_SKIP() << "nccl: " << obstacle;
            run_bootstrapped(
                ranks,
                [](Bootstrap& bootstrap) {
                  NcclOptions options;
                  options.device = bootstrap.rank();
                  return connect_nccl(bootstrap, options);
                },
                body);
          },
          true};
#else
  return {"nccl", [] { return std::string("built without NCCL"); }, nullptr};
#endif
}

}  // namespace agpcs
