// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/message_line.h"

#include "runtime/support/caught.h"
#include "runtime/transport/awaited_peer.h"

#include <fmt/format.h>

#include <utility>

namespace agpcs {

MessageLine::MessageLine(const char* direction)
    : direction_(direction), worker_([this] { run(); }) {}

MessageLine::~MessageLine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_changed_.notify_all();
  worker_.join();
}

Result<Ticket> MessageLine::push(std::unique_ptr<WireMessage> message, int peer,
                                 std::size_t bytes) {
  Ticket ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    posted_.push_back({std::move(message), peer, bytes, steady_nanoseconds()});
    ticket = ++enqueued_;
  }
  posted_changed_.notify_one();
  return ticket;
}

Status MessageLine::wait(Ticket ticket, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (ticket > enqueued_) {
    return internal_error(fmt::format("ticket {} of {} was never given", ticket, enqueued_));
  }
  done_changed_.wait_for(lock, ticket, limit,
                         [&] { return failure_.ok() ? done_ >= ticket : posted_.empty(); });
  if (done_ >= ticket) return {};
  if (!failure_.ok()) return failure_;
  return {StatusCode::kTimeout,
          fmt::format("{}: timed out after {} ms", describe(posted_.front()), limit.count())};
}

void MessageLine::fail(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = reason;
}

OperationTime MessageLine::time_of(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  return times_.of(ticket);
}

void MessageLine::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    posted_changed_.wait(lock, [&] { return stopping_ || !posted_.empty(); });
    if (posted_.empty()) return;
    // Adding messages does not move this one, and only this thread removes messages.
    Posted& front = posted_.front();
    lock.unlock();
    const Status status = caught([&] { return wait_until_cancelled(*front.message); });
    lock.lock();
    if (status.ok()) {
      times_.done(done_ + 1, front.enqueued);
      posted_.pop_front();
      done_changed_.done(++done_);
    } else {
      if (failure_.ok()) {
        failure_ = Status(status.code(), fmt::format("{}: {}", describe(front), status.message()));
      }
      posted_.clear();  // withdraws them
      done_changed_.failed();
    }
  }
}

std::string MessageLine::describe(const Posted& posted) const {
  return fmt::format("{} rank {}, {} bytes", direction_, posted.peer, posted.bytes);
}

}  // namespace agpcs
