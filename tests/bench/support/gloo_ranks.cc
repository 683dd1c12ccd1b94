// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/gloo_ranks.h"

#include "runtime/bootstrap/socket.h"
#include "tests/support/job_token.h"

#include <agpcs/gloo.h>
#include <agpcs/tcp.h>

#include <fmt/format.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace agpcs {
namespace {

using GlooReduce = void (*)(void*, const void*, const void*, std::size_t);

void become_rank(int rank, const GlooMeeting& meeting, Fd listening, Fd tls_listening,
                 const std::function<void(GlooRank&)>& work) {
  {
    GlooRank here(rank, meeting, std::move(listening), std::move(tls_listening));
    work(here);
    here.slowest(0);  // nobody closes a connection that another rank still reads from
  }
  std::fflush(stdout);
  std::_Exit(0);
}

}  // namespace

void check(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "error: {}\n", status.message());
  std::_Exit(1);
}

namespace {

std::unique_ptr<Bootstrap> join(int rank, int ranks, int port, Fd listening, bool tls) {
  BootstrapOptions options;
  options.rank = rank;
  options.size = ranks;
  options.port = port;
  options.listen_fd = rank == 0 ? listening.release() : -1;
  options.tls = tls;
  options.token = kJobToken;
  options.name = fmt::format("bench/{}", rank);
  auto bootstrap = Bootstrap::join(options);
  check(bootstrap.status());
  return std::move(*bootstrap);
}

}  // namespace

GlooRank::GlooRank(int rank, const GlooMeeting& meeting, Fd listening, Fd tls_listening)
    : rank_(rank),
      ranks_(meeting.ranks),
      tls_port_(meeting.tls_port),
      tls_listening_(std::move(tls_listening)),
      bootstrap_(join(rank, meeting.ranks, meeting.port, std::move(listening), false)) {
  auto transport = connect_tcp(*bootstrap_);
  check(transport.status());
  transport_ = std::move(*transport);
  auto over_gloo = connect_gloo(*bootstrap_);
  check(over_gloo.status());
  over_gloo_ = std::move(*over_gloo);
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, meeting.ranks);
  gloo::rendezvous::FileStore store(meeting.folder);
  context->connectFullMesh(store, device);
  context_ = std::move(context);
}

Transport& GlooRank::over_tls() {
  if (!over_tls_) {
    tls_bootstrap_ = join(rank_, ranks_, tls_port_, std::move(tls_listening_), true);
    auto transport = connect_tcp(*tls_bootstrap_);
    check(transport.status());
    over_tls_ = std::move(*transport);
  }
  return *over_tls_;
}

void GlooRank::gloo_ring(std::vector<float>& values) {
  gloo::AllreduceOptions options(context_);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(values.data(), values.size());
  options.setReduceFunction(static_cast<GlooReduce>(&gloo::sum<float>));
  gloo::allreduce(options);
}

double GlooRank::slowest(double seconds) {
  double most = seconds;
  gloo::AllreduceOptions options(context_);
  options.setOutput(&most, 1);
  options.setReduceFunction(static_cast<GlooReduce>(&gloo::max<double>));
  gloo::allreduce(options);
  return most;
}

void run_gloo_ranks(int ranks, const std::function<void(GlooRank&)>& work) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("agpcs_bench_{}", getpid())).string();
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  auto listening = listen_at("127.0.0.1"), tls_listening = listen_at("127.0.0.1");
  check(listening.status());
  check(tls_listening.status());
  const GlooMeeting meeting = {ranks, port_of(listening->get()), port_of(tls_listening->get()),
                               folder};
  std::fflush(stdout);  // what is not yet out would come once more from each child
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      if (rank == 0)
        become_rank(0, meeting, std::move(*listening), std::move(*tls_listening), work);
      listening->reset();
      tls_listening->reset();
      become_rank(rank, meeting, Fd(), Fd(), work);
    }
    children.push_back(child);
  }
  bool failed = false;
  for (const pid_t child : children) {
    int status = 0;
    failed = waitpid(child, &status, 0) < 0 || status != 0 || failed;
  }
  std::filesystem::remove_all(folder);
  if (failed) std::exit(1);
}

}  // namespace agpcs
