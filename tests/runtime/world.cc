// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/world.h"

#include "runtime/bootstrap/socket.h"
#include "tests/support/fork_shared.h"
#include "tests/support/job_token.h"

#include <agpcs/bootstrap.h>
#include <agpcs/loopback.h>
#include <agpcs/tcp.h>
#ifdef AGPCS_TEST_GLOO
#include <agpcs/gloo.h>
#endif

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
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

#ifdef AGPCS_TEST_NCCL
#ifndef AGPCS_TEST_EMULATED_GPU
// Ranks that share a GPU must not share a process: in one CUDA context, memory that a rank asks for
// may wait for kernels of another rank, which wait for the first one. This process must not have
// used CUDA before, nor may it afterwards.
void on_processes(int ranks, const std::function<void(int)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    std::fflush(nullptr);
    const pid_t child = fork();
    EXPECT_GE(child, 0) << std::strerror(errno);
    if (child < 0) break;  // the others end by their limits
    if (child == 0) {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    while (waitpid(children[rank], &status, 0) < 0 && errno == EINTR) {
    }
    EXPECT_EQ(status, 0) << "rank " << rank << " failed (above), or was killed";
  }
}

std::string obstacle_of_nccl(int ranks) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return std::strerror(errno);
  const pid_t child = fork();
  if (child == 0) {
    const std::string said = nccl_obstacle(ranks);
    _exit(write(ends[1], said.data(), said.size()) < 0 ? 1 : 0);
  }
  close(ends[1]);
  std::string said(4096, ' ');
  const ssize_t length = read(ends[0], said.data(), said.size());
  close(ends[0]);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0 || length < 0) {
    return "a process that asks NCCL failed";
  }
  said.resize(static_cast<std::size_t>(length));
  return said;
}
constexpr bool kForks = true;
#else
void on_processes(int ranks, const std::function<void(int)>& body) { on_threads(ranks, body); }
std::string obstacle_of_nccl(int ranks) { return nccl_obstacle(ranks); }
constexpr bool kForks = false;  // emulated GPUs are of this process
#endif
#endif

using Connect = std::function<Result<std::unique_ptr<Transport>>(Bootstrap&)>;

void run_bootstrapped(int ranks, const Connect& connect,
                      const std::function<void(Transport&)>& body, bool tls = false,
                      bool forks = false) {
  auto listening = listen_at("127.0.0.1");
  ASSERT_TRUE(listening.ok()) << listening.status().message();
  const int port = port_of(listening->get());
  const int listen_fd = forks ? listening->get() : listening->release();
  const ForkShared<SharedBarrier> connected(ranks);
  const auto as_rank = [&](int rank) {
    // A process of its own has a descriptor of its own: the first rank's is used and closed there.
    if (forks && rank == 0) static_cast<void>(listening->release());
    if (forks && rank != 0) listening->reset();
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
    connected->meet();  // so that no body ends, or fails, while others connect
    body(**transport);
    transport->reset();
  };
#ifdef AGPCS_TEST_NCCL
  if (forks) return on_processes(ranks, as_rank);
#endif
  on_threads(ranks, as_rank);
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
  const std::string obstacle = obstacle_of_nccl(ranks);
  if (!obstacle.empty()) GTEST_SKIP() << "nccl: " << obstacle;
  run_bootstrapped(
      ranks,
      [&](Bootstrap& bootstrap) { return connect_nccl(bootstrap, options_of(bootstrap.rank())); },
      body, false, kForks);
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
  return {kNcclName, [] { return obstacle_of_nccl(1); }, run, true};
#else
  return {kNcclName, [] { return std::string("built without NCCL"); }, nullptr};
#endif
}

}  // namespace agpcs
