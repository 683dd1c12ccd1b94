// SPDX-License-Identifier: Apache-2.0
// Bootstrap: how the ranks of a job find each other, and how they hear of a failure.
//
// Rank 0 serves a small key-value store over TCP to ranks that know the job's token. Over it the
// transports exchange their addresses. The connections stay open for the length of the job: a rank
// that dies, stalls or reports an error is made known to all others at once.
#pragma once

#include <agpcs/status.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

struct BootstrapOptions {
  int rank = 0;
  int size = 1;
  std::string address = "127.0.0.1";  ///< of rank 0: a name or an IP address
  int port = 0;                       ///< of rank 0's service; 0 needs `listen_fd` (rank 0)
  int listen_fd = -1;                 ///< rank 0: a socket that listens already; it is taken over
  bool local_only = false;            ///< rank 0 listens on 127.0.0.1 alone
  std::string token;                  ///< the job's secret, not empty, the same on every rank
  std::string identity;               ///< what all ranks must agree on: the plan's digest
  /// What else they must agree on, (what, value): {"AGPCS version", "0.2.0"}. All of it, in order.
  std::vector<std::pair<std::string, std::string>> agreed;
  std::string name;  ///< of this rank in messages: "volta/0"
  std::string host;  ///< its machine: "rank 0 (volta/0 on node7)"; may be empty
  std::chrono::milliseconds join_limit{60000};  ///< until all ranks have joined
  std::chrono::milliseconds stall_limit{6000};  ///< silence after which a rank counts as failed
  /// Once all have joined: the loss of a rank (not of rank 0) ends nothing, but is an event, which
  /// the others can act upon. The same on every rank.
  bool outlives_ranks = false;
};

/// With `outlives_ranks`.
struct BootstrapEvent {
  int rank = 0;
  bool lost = false;  ///< it went away, or stalled, and is let in no more; else it said something
  std::string text;   ///< why: "rank 2 (volta/2) went away: ..."; or what it said
};

class Bootstrap {
 public:
  /// Serves (rank 0), connects, and waits until every rank has joined. Errors: kUnavailable (port
  /// taken, no answer, ranks that did not join are named), kInvalidInput (the token, size, rank,
  /// identity or something agreed is refused; both values are named). A mismatch ends the join of
  /// all ranks; once all have joined, a stranger's mistake is the stranger's alone.
  static Result<std::unique_ptr<Bootstrap>> join(const BootstrapOptions& options);

  /// Says goodbye: leaving is no failure, unless an exception is what destroys it. Rank 0 serves on
  /// until the others have left, for at most a few seconds.
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The address by which this rank reaches rank 0, hence one by which others may reach it.
  virtual std::string local_address() const = 0;

  /// Values are bytes, at most 64 KiB; a key is set once.
  virtual Status set(const std::string& key, const std::string& value) = 0;
  /// Waits until `key` is set. kTimeout names the key; a failure of the job ends the wait.
  virtual Result<std::string> get(const std::string& key, std::chrono::milliseconds limit) = 0;
  /// Waits until every rank has called it with `name`, a new one each time.
  virtual Status barrier(const std::string& name, std::chrono::milliseconds limit) = 0;

  /// Event `number` (0, 1, ...) of a job that outlives ranks: all ranks see the same events in the
  /// same order. kTimeout when there was none within `limit`.
  virtual Result<BootstrapEvent> event(std::int64_t number, std::chrono::milliseconds limit) = 0;

  /// Makes `text`, at most 64 KiB, an event of such a job. What one rank says keeps its order, also
  /// with what it sets.
  virtual Status say(const std::string& text) = 0;

  /// Tells all ranks that this one failed. The job's first failure is the one that everybody hears.
  virtual void report(const Status& failure) = 0;
  /// The job's first failure as this rank was told: "rank 2 (volta/2) ...". Ok while there is none.
  virtual Status failure() const = 0;
  /// Waits for the job's first failure, which may be on its way when a peer seems gone. Ok when
  /// none came within `limit`.
  virtual Status wait_for_failure(std::chrono::milliseconds limit) = 0;
  /// Calls `listener`, on a thread of its own, once, when the job fails (or at once if it has).
  /// An empty one detaches, and waits for a running call. One listener at a time.
  virtual void on_failure(std::function<void(const Status&)> listener) = 0;
};

}  // namespace agpcs
