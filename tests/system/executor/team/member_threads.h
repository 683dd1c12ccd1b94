// SPDX-License-Identifier: Apache-2.0
// Members of a team that are threads of a test.
#pragma once

#include "ir/base/check.h"
#include "runtime/torch/team/link.h"

#include <agpcs/loopback.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace agpcs::testing {

/// Takes a seat of a team whose members are all ranks of `transport`.
inline TeamSeat take_seat(const TeamBody* body, Transport& transport) {
  TeamSeat seat;
  seat.body = body;
  seat.member = static_cast<std::size_t>(transport.rank());
  seat.ranks.resize(static_cast<std::size_t>(transport.size()));
  std::iota(seat.ranks.begin(), seat.ranks.end(), 0);
  seat.over.transport = &transport;
  const Status opened =
      transport.open_group(seat.over.group, seat.ranks, std::vector<int>(seat.ranks.size(), 0));
  AGPCS_CHECK(opened.ok(), "{}", opened.message());
  return seat;
}

class MemberThreads {
 public:
  explicit MemberThreads(std::size_t members, const TeamBody* body = nullptr)
      : hub_(static_cast<int>(members)) {
    for (int m = 0; m < hub_.size(); ++m) {
      transports_.push_back(hub_.join(m));
      seats_.push_back(take_seat(body, *transports_.back()));
    }
  }

  const TeamSeat& seat(std::size_t member) const { return seats_[member]; }

  /// Calls `work` for each member, on a thread each. Throws what one of them throws first.
  void run(const std::function<void(std::size_t member)>& work) {
    std::vector<std::exception_ptr> failures(seats_.size());
    std::vector<std::thread> threads;
    for (std::size_t m = 0; m < seats_.size(); ++m) {
      threads.emplace_back([&, m] {
        try {
          work(m);
        } catch (const std::exception& error) {
          failures[m] = std::current_exception();
          transports_[m]->abort(Status(StatusCode::kInternal, error.what()));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }

 private:
  LoopbackHub hub_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<TeamSeat> seats_;
};

}  // namespace agpcs::testing
