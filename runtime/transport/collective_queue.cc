// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/collective_queue.h"

#include "runtime/support/caught.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace agpcs {

CollectiveQueue::CollectiveQueue(Wire& wire, int rank)
    : rank_(rank), collectives_(wire, rank), flow_reducer_(wire), worker_([this] { run(); }) {}

CollectiveQueue::~CollectiveQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_changed_.notify_all();
  worker_.join();
}

Status CollectiveQueue::open(RankGroup group) {
  const int id = group.id;
  const std::lock_guard lock(mutex_);
  if (!groups_.emplace(id, std::move(group)).second) {
    return invalid_input(fmt::format("group {} is open already", id));
  }
  return {};
}

Status CollectiveQueue::open_flow(int flow, int group, const PlanFlow& schedule) {
  AGPCS_RETURN_IF_ERROR(check_flow_number(flow));
  const std::lock_guard lock(mutex_);
  const auto it = groups_.find(group);
  if (it == groups_.end()) return invalid_input(fmt::format("group {} is not open", group));
  const RankGroup& members = it->second;
  AGPCS_RETURN_IF_ERROR(verify_flow(schedule, static_cast<int>(members.ranks.size())));
  const auto me = std::lower_bound(members.ranks.begin(), members.ranks.end(), rank_);
  const auto member = static_cast<int>(me - members.ranks.begin());
  const bool added =
      flows_.try_emplace(flow, Flow{&members, flow_program(schedule, members.ranks, member)})
          .second;
  return added ? Status() : invalid_input(fmt::format("flow {} is open already", flow));
}

Result<Ticket> CollectiveQueue::enqueue(const WireCollective& call, int group) {
  const std::lock_guard lock(mutex_);
  const auto it = groups_.find(group);
  if (it == groups_.end()) return invalid_input(fmt::format("group {} is not open", group));
  AGPCS_RETURN_IF_ERROR(
      check_collective(call.kind, call.buffer, call.algorithm, call.parts, it->second));
  return push({call, &it->second, nullptr, steady_nanoseconds()});
}

Result<Ticket> CollectiveQueue::enqueue_flow(const Buffer& buffer, int flow) {
  const std::lock_guard lock(mutex_);
  const auto it = flows_.find(flow);
  if (it == flows_.end()) return invalid_input(fmt::format("flow {} is not open", flow));
  const WireCollective call = {Collective::kAllReduce, AllReduce::kFlow, buffer, nullptr, nullptr};
  AGPCS_RETURN_IF_ERROR(check_type(call.kind, buffer.type));
  return push({call, it->second.group, &it->second.program, steady_nanoseconds()});
}

Result<Ticket> CollectiveQueue::push(const Job& job) {
  if (!failure_.ok()) return failure_;
  jobs_.push_back(job);
  posted_changed_.notify_one();
  return ++enqueued_;
}

Status CollectiveQueue::wait(Ticket ticket, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (ticket > enqueued_) {
    return internal_error(
        fmt::format("collective ticket {} of {} was never given", ticket, enqueued_));
  }
  done_changed_.wait_for(lock, ticket, limit,
                         [&] { return failure_.ok() ? done_ >= ticket : !running_; });
  if (done_ >= ticket) return {};
  if (!failure_.ok()) return failure_;
  return {StatusCode::kTimeout,
          fmt::format("{}: timed out after {} ms", describe(jobs_.front()), limit.count())};
}

void CollectiveQueue::fail(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = reason;
  done_changed_.failed();
}

OperationTime CollectiveQueue::time_of(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  return times_.of(ticket);
}

void CollectiveQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    posted_changed_.wait(lock, [&] { return stopping_ || (!jobs_.empty() && failure_.ok()); });
    if (stopping_) return;
    const Job job = jobs_.front();
    running_ = true;
    lock.unlock();
    const Status status = caught([&] { return carry_out(job); });
    lock.lock();
    running_ = false;
    if (status.ok()) {
      jobs_.pop_front();
      times_.done(++done_, job.enqueued);
      done_changed_.done(done_);
    } else if (failure_.ok()) {
      failure_ = Status(status.code(), fmt::format("{}: {}", describe(job), status.message()));
    }
    if (!failure_.ok()) done_changed_.failed();
  }
}

Status CollectiveQueue::carry_out(const Job& job) {
  if (job.flow == nullptr) return collectives_.run(*job.group, job.call);
  return flow_reducer_.all_reduce(*job.flow, job.call.buffer, flow_slot(job.group->id));
}

std::string CollectiveQueue::describe(const Job& job) const {
  std::string text = fmt::format("{} of {} bytes over ranks {}", name_of(job.call.kind),
                                 job.call.buffer.bytes, fmt::join(job.group->ranks, ","));
  const int peer = job.flow == nullptr ? collectives_.waiting_for() : flow_reducer_.waiting_for();
  if (peer >= 0) text += fmt::format(", waiting for rank {}", peer);
  return text;
}

}  // namespace agpcs
