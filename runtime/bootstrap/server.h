// SPDX-License-Identifier: Apache-2.0
// BootstrapServer: rank 0's key-value service, with one thread and one poll loop.
#pragma once

#include "runtime/bootstrap/frame.h"
#include "runtime/bootstrap/gate.h"
#include "runtime/bootstrap/socket.h"

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace agpcs {

/// What the service and its clients know before they connect.
inline ProofTerms bootstrap_terms(const BootstrapOptions& options) {
  return {options.token, "bootstrap", 0, options.tls};
}

/// Says that rank `rank` uses TLS and rank 0 does not, or the other way round, as `tls` of rank 0
/// tells.
std::string other_tls(int rank, bool tls);

class BootstrapServer {
 public:
  /// Serves on `listening` until `stop`. It uses size, token, identity and limits from `options`.
  BootstrapServer(Fd listening, const BootstrapOptions& options);
  ~BootstrapServer();
  /// Starts the thread. kUnavailable: the system has no more descriptors.
  Status start();
  /// Goes on serving until every rank has left, for at most `limit`; then ends the thread.
  void stop(std::chrono::milliseconds limit);

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    Connection connection;
    FrameReader in;
    std::string out;       // not sent yet
    int proved = -1;       // the rank that it has proved to be
    int rank = -1;         // the same once it is admitted; -1 before
    bool waits = false;    // what its connection took waits for room
    bool closing = false;  // the connection ends once `out` is sent
    Clock::time_point since, heard;
    std::set<std::string> wanted;
  };
  struct Member {
    std::string name, host;
    bool joined = false, left = false, stalled = false, lost = false;
    std::size_t stored = 0;  // bytes that this rank stored
  };

  void run();
  bool finished() const;
  void poll_once();
  void take_guest(Gate::Guest guest);
  void read_from(Peer& peer);
  /// Returns false if there was nothing to read, or the connection ended.
  bool read_some(Peer& peer);
  void write_to(Peer& peer);
  void handle(Peer& peer, const Frame& frame);
  void handle_hello(Peer& peer, const Frame& frame);
  /// Returns why rank `rank`, which knows the token, cannot join, or an empty string if it can.
  std::string objection(int rank, const Frame& hello) const;
  void admit(Peer& peer, int rank, const Frame& hello);
  void handle_set(Peer& peer, const Frame& frame);
  /// Makes the message an event if the job outlives ranks; otherwise ends the job.
  void handle_fail(Peer& peer, const std::string& message);
  /// Returns whether `bytes` more of this rank may be stored. If not, the rank is lost, so that the
  /// others can store.
  bool has_room(Peer& peer, std::size_t bytes);
  void store(int rank, const std::string& key, const std::string& value);
  void handle_get(Peer& peer, const std::string& key);
  /// Returns what `rank` reported, with its host added if it names only its device.
  std::string placed(int rank, const std::string& message) const;
  void close_peer(Peer& peer);
  /// Ends a connection that broke the protocol.
  void drop(Peer& peer);
  void check_clocks();
  void refuse(Peer& peer, const std::string& reason, FrameKind kind = FrameKind::kRefused);
  bool outlives_ranks() const { return options_.outlives_ranks && joined_ == options_.size; }
  void add_event(const BootstrapEvent& event);
  /// Gives up a rank: the job fails, or goes on without it.
  void lose(Peer& peer, const std::string& why);
  /// Records the job's first failure and tells every rank.
  void fail(const std::string& message);
  void broadcast(const Frame& frame);
  static void queue(Peer& peer, const Frame& frame);
  std::string describe(int rank) const;
  static std::string describe(int rank, const std::string& name, const std::string& host);

  /// Names the ranks that are missing at the end of the join, and says what may keep them away.
  std::string missing_ranks() const;

  const std::string place_;  // where it listens
  Gate gate_;
  Fd wake_read_, wake_write_;
  BootstrapOptions options_;
  Clock::time_point join_deadline_;
  std::list<Peer> peers_;
  std::vector<Member> members_;
  int joined_ = 0;
  std::map<std::string, std::string> values_;
  std::size_t value_bytes_ = 0;
  std::int64_t events_ = 0;
  Clock::time_point looked_ = Clock::now();  // when it last looked at the clocks
  std::string failure_;
  std::atomic<bool> stopping_{false};
  std::atomic<Clock::time_point> stop_deadline_{Clock::time_point::max()};
  std::thread thread_;
};

}  // namespace agpcs
