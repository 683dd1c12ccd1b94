// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/collective_queue.h"

#include "runtime/support/caught.h"
#include "runtime/support/sum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace agpcs {

CollectiveQueue::CollectiveQueue(Wire& wire, int rank)
    : rank_(rank), reducer_(wire, rank), flow_reducer_(wire), worker_([this] { run(); }) {}

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

Result<Ticket> CollectiveQueue::enqueue(const Buffer& buffer, int group, AllReduce algorithm) {
  if (algorithm == AllReduce::kFlow) {
    return invalid_input("all_reduce: a flow is opened first, and named to all_reduce_flow");
  }
  const std::lock_guard lock(mutex_);
  const auto it = groups_.find(group);
  if (it == groups_.end()) return invalid_input(fmt::format("group {} is not open", group));
  return push({buffer, &it->second, algorithm, nullptr, steady_nanoseconds()});
}

Result<Ticket> CollectiveQueue::enqueue_flow(const Buffer& buffer, int flow) {
  const std::lock_guard lock(mutex_);
  const auto it = flows_.find(flow);
  if (it == flows_.end()) return invalid_input(fmt::format("flow {} is not open", flow));
  return push(
      {buffer, it->second.group, AllReduce::kFlow, &it->second.program, steady_nanoseconds()});
}

Result<Ticket> CollectiveQueue::push(const Job& job) {
  if (!can_sum(job.buffer.type)) {
    return invalid_input(fmt::format("all_reduce: no sum of {} values", name_of(job.buffer.type)));
  }
  if (!failure_.ok()) return failure_;
  jobs_.push_back(job);
  posted_changed_.notify_one();
  return ++enqueued_;
}

Status CollectiveQueue::wait(Ticket ticket, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (ticket > enqueued_) {
    return internal_error(
        fmt::format("all_reduce ticket {} of {} was never given", ticket, enqueued_));
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
    const Status status = caught([&] { return reduce(job); });
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

Status CollectiveQueue::reduce(const Job& job) {
  if (job.flow == nullptr) return reducer_.all_reduce(*job.group, job.algorithm, job.buffer);
  return flow_reducer_.all_reduce(*job.flow, job.buffer, flow_slot(job.group->id));
}

std::string CollectiveQueue::describe(const Job& job) const {
  std::string text = fmt::format("all_reduce of {} bytes over ranks {}", job.buffer.bytes,
                                 fmt::join(job.group->ranks, ","));
  const int peer = job.flow == nullptr ? reducer_.waiting_for() : flow_reducer_.waiting_for();
  if (peer >= 0) text += fmt::format(", waiting for rank {}", peer);
  return text;
}

}  // namespace agpcs
