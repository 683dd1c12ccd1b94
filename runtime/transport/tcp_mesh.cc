// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/tcp_mesh.h"

#include "runtime/bootstrap/gate.h"
#include "runtime/bootstrap/listen_place.h"
#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/socket.h"
#include "runtime/transport/bootstrapped.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <poll.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kMeshTick{100};

std::string key_of_rank(int rank) { return fmt::format("tcp/{}", rank); }

class TcpMesh {
 public:
  TcpMesh(Bootstrap& bootstrap, const TcpOptions& options)
      : bootstrap_(bootstrap),
        options_(options),
        address_(options.address.empty() ? bootstrap.local_address() : options.address),
        deadline_(Clock::now() + options.connect_limit),
        links_(static_cast<std::size_t>(bootstrap.size())) {}

  Result<std::vector<TcpLink>> connect();

 private:
  Status listen();
  Status connect_lower();
  Status connect_to_rank(int rank);
  Result<bool> connect_once(int rank, const std::string& host, int port);
  void admit_higher();
  void admit(Gate::Guest guest);
  std::vector<int> missing() const;
  Status no_mesh(const std::string& why) const;
  milliseconds left() const {
    return std::max(std::chrono::ceil<milliseconds>(deadline_ - Clock::now()), milliseconds(0));
  }
  ProofTerms terms(int listener) const {
    return {bootstrap_.key_for("tcp"), "tcp/" + job_, listener, bootstrap_.tls()};
  }

  Bootstrap& bootstrap_;
  const TcpOptions& options_;
  std::string address_;  // which the others are told of
  const Clock::time_point deadline_;
  std::string job_;
  int port_ = 0;
  Fd listening_, wake_read_, wake_write_;
  std::int64_t refused_ = 0;
  std::vector<TcpLink> links_;  // the two threads write to different ones
};

Result<std::vector<TcpLink>> TcpMesh::connect() {
  AGPCS_RETURN_IF_ERROR(listen());
  std::thread gate([this] { admit_higher(); });
  Status connected = connect_lower();
  if (!connected.ok()) wake_write_.reset();  // ends the gate
  gate.join();
  AGPCS_RETURN_IF_ERROR(connected);
  if (missing().empty()) return std::move(links_);
  AGPCS_RETURN_IF_ERROR(bootstrap_.failure());
  return no_mesh(fmt::format(
      "{} {} did not connect to {} within {} ms{}", missing().size() == 1 ? "rank" : "ranks",
      fmt::join(missing(), ","), endpoint(address_, port_), options_.connect_limit.count(),
      refused_ == 0 ? "" : fmt::format(" ({} connections of others were refused)", refused_)));
}

// Listens, and tells the others where. Rank 0 names the job, so that a proof is worth nothing in
// another one with the same token.
Status TcpMesh::listen() {
  AGPCS_RETURN_IF_ERROR(make_pipe(wake_read_, wake_write_));
  std::string place;
  if (!options_.bind.empty()) {
    AGPCS_TRY(place, address_of_bind(options_.bind, address_));
    if (options_.address.empty() && !is_every_address(place)) address_ = place;
  }
  if (const std::string why = unreachable(address_); !why.empty()) return no_mesh(why);
  auto listening = listen_at(place.empty() ? address_ : place);
  if (!listening.ok()) return no_mesh(listening.status().message());
  listening_ = std::move(*listening);
  port_ = port_of(listening_.get());
  if (bootstrap_.rank() == 0) {
    AGPCS_TRY(const std::string name, random_bytes(16));
    AGPCS_RETURN_IF_ERROR(bootstrap_.set("tcp/job", name));
  }
  AGPCS_TRY(job_, bootstrap_.get("tcp/job", left()));
  return bootstrap_.set(key_of_rank(bootstrap_.rank()), fmt::format("{} {}", port_, address_));
}

Status TcpMesh::connect_lower() {
  for (int rank = 0; rank < bootstrap_.rank(); ++rank) {
    AGPCS_RETURN_IF_ERROR(connect_to_rank(rank));
  }
  return {};
}

Status TcpMesh::connect_to_rank(int rank) {
  AGPCS_TRY(const std::string place, bootstrap_.get(key_of_rank(rank), left()));
  int port = 0;
  const auto [end, error] = std::from_chars(place.data(), place.data() + place.size(), port);
  if (error != std::errc() || *end != ' ') {
    return internal_error(fmt::format("'{}' is no place of rank {}", place, rank));
  }
  const std::string host = place.substr(static_cast<std::size_t>(end + 1 - place.data()));
  while (true) {
    AGPCS_TRY(const bool connected, connect_once(rank, host, port));
    if (connected) return {};
    pollfd pause{wake_read_.get(), POLLIN, 0};
    poll(&pause, 1, 50);
  }
}

// Returns false if it is worth another attempt.
Result<bool> TcpMesh::connect_once(int rank, const std::string& host, int port) {
  const auto cannot = [&](const std::string& why) {
    return no_mesh(fmt::format("rank {} at {}: {}", rank, endpoint(host, port), why));
  };
  auto fd = connect_to(host, port, std::min(deadline_, Clock::now() + std::chrono::seconds(1)));
  AGPCS_RETURN_IF_ERROR(bootstrap_.failure());
  if (!fd.ok()) {
    if (Clock::now() >= deadline_) return cannot(fd.status().message());
    return false;
  }
  Connection connection(std::move(*fd));
  AGPCS_TRY(const ProofEnd end, prove(connection, terms(rank), bootstrap_.rank(), deadline_));
  switch (end) {
    case ProofEnd::kProved:
      links_[static_cast<std::size_t>(rank)] = {std::move(connection), endpoint(host, port)};
      return true;
    case ProofEnd::kClosed:
      AGPCS_RETURN_IF_ERROR(bootstrap_.failure());
      if (Clock::now() < deadline_) return false;
      return cannot("it closed the connection before it had proved the job token");
    case ProofEnd::kLate:
      return cannot(fmt::format("it did not answer within {} ms", options_.connect_limit.count()));
    case ProofEnd::kRefused:
    case ProofEnd::kOther:
    case ProofEnd::kImpostor:
      break;
  }
  return cannot("what listens there does not know the job token: it is no rank of this job");
}

// Lets higher ranks in until all are there, the time is over, the job failed, or `wake_write_` is
// closed.
void TcpMesh::admit_higher() {
  Gate gate(std::move(listening_), terms(bootstrap_.rank()), options_.on_refused);
  const auto all = [this] {
    const auto first = links_.begin() + bootstrap_.rank() + 1;
    return std::all_of(first, links_.end(),
                       [](const TcpLink& l) { return l.connection.is_open(); });
  };
  while (!all() && Clock::now() < deadline_ && bootstrap_.failure().ok()) {
    std::vector<pollfd> fds{{wake_read_.get(), POLLIN, 0}};
    gate.watch(fds);
    poll(fds.data(), fds.size(), static_cast<int>(std::min(left(), kMeshTick).count()));
    if (fds[0].revents != 0) break;
    for (Gate::Guest& guest : gate.turn(&fds[1])) admit(std::move(guest));
  }
  refused_ = gate.refused();
}

void TcpMesh::admit(Gate::Guest guest) {
  if (guest.rank <= bootstrap_.rank() || guest.rank >= bootstrap_.size()) return;
  TcpLink& link = links_[static_cast<std::size_t>(guest.rank)];
  if (!link.connection.is_open()) link = {std::move(guest.connection), std::move(guest.address)};
}

std::vector<int> TcpMesh::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < bootstrap_.size(); ++rank) {
    const bool there = links_[static_cast<std::size_t>(rank)].connection.is_open();
    if (rank != bootstrap_.rank() && !there) ranks.push_back(rank);
  }
  return ranks;
}

Status TcpMesh::no_mesh(const std::string& why) const {
  return {StatusCode::kUnavailable,
          fmt::format("rank {} at {} cannot connect with the other ranks: {}\n"
                      "  hint: every rank must be reachable by the address it gives out; choose "
                      "another with --address, and with --bind where it listens, if that is at "
                      "another one",
                      bootstrap_.rank(), address_, why)};
}

}  // namespace

Result<std::vector<TcpLink>> connect_mesh(Bootstrap& bootstrap, const TcpOptions& options) {
  return TcpMesh(bootstrap, options).connect();
}

}  // namespace agpcs
