// SPDX-License-Identifier: Apache-2.0
// Bootstrap: the ranks of a job find each other through it, and hear of failures through it.
//
// Rank 0 serves a small key-value store over TCP to ranks that prove that they know the job's
// token. It proves the same to them, and nobody sends the token. The transports exchange their
// addresses over the store. The connections stay open as long as the job: when a rank dies, stalls
// or reports an error, all others learn it at once.
#pragma once

#include <agpcs/status.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

struct BootstrapOptions {
  int rank = 0;
  int size = 1;
  std::string address = "127.0.0.1";  ///< rank 0's name or IP address
  int port = 0;                       ///< port of rank 0's service; 0 needs `listen_fd` (rank 0)
  int listen_fd = -1;  ///< rank 0: a socket that listens already; the bootstrap takes it over
  /// Rank 0: the interface ("eth0") or address of its machine at which it listens; "0.0.0.0" and
  /// "::" are all addresses. Empty: what `address` is there, or all addresses and a warning if that
  /// is none that others reach.
  std::string bind;
  /// Rank 0: whether all ranks run on its machine, so that a loopback address is enough; empty if
  /// that is not known.
  std::optional<bool> one_machine;
  /// Encrypts all that goes through the bootstrap's connections, and those of the TCP transport
  /// over it, by TLS 1.3. All ranks set it, or none.
  bool tls = false;
  std::string token;     ///< the job's secret, of 128 random bits; the same on every rank
  std::string identity;  ///< the plan's digest, on which all ranks must agree
  /// Further (what, value) pairs on which all ranks must agree, in this order: {"AGPCS version",
  /// "0.2.0"}.
  std::vector<std::pair<std::string, std::string>> agreed;
  std::string name;  ///< this rank's name in messages: "volta/0"
  std::string host;  ///< its machine: "rank 0 (volta/0 on node7)"; may be empty
  std::chrono::milliseconds join_limit{60000};  ///< time for all ranks to join
  std::chrono::milliseconds stall_limit{6000};  ///< silence after which a rank counts as failed
  /// Once all ranks have joined, the loss of a rank other than rank 0 does not end the job; it is
  /// an event on which the others can act. All ranks set the same value.
  bool outlives_ranks = false;
  /// Gets a line when rank 0 listens at all addresses unasked, and when it has refused a connection
  /// that did not prove the token: one for each address, ten a minute at most, and the number in
  /// the end. Called on a thread of the service.
  std::function<void(const std::string&)> on_warning;
};

/// Something that happened in a job with `outlives_ranks`.
struct BootstrapEvent {
  int rank = 0;
  bool lost = false;  ///< it went away or stalled and may not return; else it said something
  std::string text;   ///< why it was lost ("rank 2 (volta/2) went away: ..."), or what it said
};

class Bootstrap {
 public:
  /// Starts the service (on rank 0), connects, and waits until every rank has joined. Errors:
  /// kUnavailable (the port is taken, nobody answers, or ranks did not join; the message names
  /// them) and kInvalidInput (token, size, rank, identity or an agreed value differs; the message
  /// names both values). Until all have joined, a mismatch ends the join of all ranks; afterwards,
  /// it concerns the newcomer alone.
  static Result<std::unique_ptr<Bootstrap>> join(const BootstrapOptions& options);

  /// Says goodbye, so that leaving is not a failure, unless an exception destroys the bootstrap.
  /// Rank 0 goes on serving until the others have left, for at most a few seconds.
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Tells whether the job's connections are encrypted: `BootstrapOptions::tls`.
  virtual bool tls() const = 0;
  /// Returns the address by which this rank reaches rank 0, so that others may reach it there, too.
  virtual std::string local_address() const = 0;

  /// Returns a key that only ranks of this job can make, for connections of their own: it follows
  /// from the token and from `purpose`.
  virtual std::string key_for(const std::string& purpose) const = 0;

  /// Sets `key` to `value`: any bytes, at most 64 KiB. Each key is set once.
  virtual Status set(const std::string& key, const std::string& value) = 0;
  /// Waits until `key` is set and returns its value. kTimeout names the key; a failure of the job
  /// ends the wait.
  virtual Result<std::string> get(const std::string& key, std::chrono::milliseconds limit) = 0;
  /// Waits until every rank has called it with `name`. Each barrier needs a new name.
  virtual Status barrier(const std::string& name, std::chrono::milliseconds limit) = 0;

  /// Waits for event `number` (0, 1, ...) of a job with `outlives_ranks`. All ranks see the same
  /// events in the same order. kTimeout: the event did not come within `limit`.
  virtual Result<BootstrapEvent> event(std::int64_t number, std::chrono::milliseconds limit) = 0;

  /// Makes `text`, at most 64 KiB, an event of a job with `outlives_ranks`. The order of what one
  /// rank says and sets is kept.
  virtual Status say(const std::string& text) = 0;

  /// Tells all ranks that this one failed. All ranks hear only the job's first failure.
  virtual void report(const Status& failure) = 0;
  /// Returns the job's first failure as this rank learned it, "rank 2 (volta/2) ...", or Ok if
  /// there is none.
  virtual Status failure() const = 0;
  /// Waits for the job's first failure, which may be on its way when a peer seems gone. Returns Ok
  /// if none came within `limit`.
  virtual Status wait_for_failure(std::chrono::milliseconds limit) = 0;
  /// Calls `listener` once when the job fails, or at once if it has failed, on a thread of its own.
  /// There is one listener at a time. An empty one detaches the present one, and waits for its
  /// running call.
  virtual void on_failure(std::function<void(const Status&)> listener) = 0;
};

}  // namespace agpcs
