// SPDX-License-Identifier: Apache-2.0
// Gate: a listening socket that lets those through who prove the job's token (proof.h), and who
// have then begun TLS if the job has that. Everybody else is closed, and it goes on.
#pragma once

#include "runtime/bootstrap/connection.h"
#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/refusals.h"
#include "runtime/bootstrap/socket.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <poll.h>
#include <string>
#include <vector>

namespace agpcs {

class Gate {
 public:
  /// A connection whose other end has proved the token, as `rank`, which may be any number.
  struct Guest {
    Connection connection;
    int rank = -1;
    std::string address;
  };
  /// `on_refused` gets a line for each address that was refused (`Refusals`).
  Gate(Fd listening, ProofTerms terms, std::function<void(const std::string&)> on_refused);

  /// Appends what to wait for.
  void watch(std::vector<pollfd>& fds) const;
  /// Goes on where `polled`, which `watch` appended, says so, and returns who came through. Call it
  /// at least every few hundred milliseconds: it also closes those who are late.
  std::vector<Guest> turn(const pollfd* polled);

  std::int64_t refused() const { return refusals_.count(); }
  /// Those among them that spoke the protocol and had another token.
  std::int64_t wrong_proofs() const { return wrong_proofs_; }
  /// The last among them that knows the token, but wants TLS where this end does not, or the other
  /// way round; -1: none.
  int other_rank() const { return other_rank_; }

  /// How long a proof may take, and TLS after it; and how many connections may be without a proof.
  static constexpr std::chrono::milliseconds kPatience{5000};
  static constexpr std::size_t kMostStrangers = 128;

 private:
  using Clock = std::chrono::steady_clock;
  struct Stranger {
    Fd fd;
    std::string address, in;   // what it has said
    ProofTalk talk;            // without nonces before its greeting has come
    Clock::time_point since;   // it came, or proved the token
    std::unique_ptr<Tls> tls;  // once it has proved the token, if TLS follows
  };

  void read_from(Stranger& stranger, std::vector<Guest>& guests);
  void greet(Stranger& stranger);
  void judge(Stranger& stranger, std::vector<Guest>& guests);
  void shake_hands(Stranger& stranger, std::vector<Guest>& guests);
  void refuse(Stranger& stranger, std::string_view why);
  void take_callers();
  void make_room();
  std::size_t unproven() const;

  Fd listening_;
  ProofTerms terms_;
  Refusals refusals_;
  std::int64_t wrong_proofs_ = 0;
  int other_rank_ = -1;
  std::list<Stranger> strangers_;  // the oldest first
};

}  // namespace agpcs
