// SPDX-License-Identifier: Apache-2.0
// RenumberedGroups: lets plans follow one another on one transport, each with groups and flows of
// its own.
#pragma once

#include "ir/plan/body/groups.h"
#include "runtime/support/recording.h"

#include <agpcs/plan.h>
#include <agpcs/transport.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {

/// Returns how many numbers a plan's groups and flows take, from 0 on.
inline int numbers_of(const Plan& plan) {
  return std::max(group_count(plan), static_cast<int>(plan.flows.size()));
}

/// Adds `first` to the number of each group and flow. `transport` must outlive it.
class RenumberedGroups final : public Transport, public RecordingTransport {
 public:
  RenumberedGroups(Transport& transport, int first) : transport_(transport), first_(first) {}
  int rank() const override { return transport_.rank(); }
  int size() const override { return transport_.size(); }
  Status open_group(int group, const std::vector<int>& ranks,
                    const std::vector<int>& host_of_rank) override {
    return transport_.open_group(first_ + group, ranks, host_of_rank);
  }
  Status open_flow(int flow, int group, const PlanFlow& schedule) override {
    return transport_.open_flow(first_ + flow, first_ + group, schedule);
  }
  Status close_groups(int first, int end) override {
    return transport_.close_groups(first_ + first, first_ + end);
  }
  Result<Ticket> send(const Buffer& buffer, int peer, std::uint64_t tag) override {
    return transport_.send(buffer, peer, tag);
  }
  Result<Ticket> recv(const Buffer& buffer, int peer, std::uint64_t tag) override {
    return transport_.recv(buffer, peer, tag);
  }
  Result<Ticket> all_reduce(const Buffer& buffer, int group, AllReduce algorithm) override {
    return transport_.all_reduce(buffer, first_ + group, algorithm);
  }
  Result<Ticket> all_reduce_areas(const std::vector<Buffer>& areas, int group,
                                  AllReduce algorithm) override {
    return transport_.all_reduce_areas(areas, first_ + group, algorithm);
  }
  bool joins_areas() const override { return transport_.joins_areas(); }
  Result<Ticket> reduce_scatter(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                                int group, AllReduce algorithm) override {
    return transport_.reduce_scatter(buffer, parts, first_ + group, algorithm);
  }
  Result<Ticket> all_gather(const Buffer& buffer, const std::vector<std::int64_t>& parts, int group,
                            AllReduce algorithm) override {
    return transport_.all_gather(buffer, parts, first_ + group, algorithm);
  }
  Result<Ticket> all_to_all(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                            int group) override {
    return transport_.all_to_all(buffer, parts, first_ + group);
  }
  Result<Ticket> all_reduce_flow(const Buffer& buffer, int flow) override {
    return transport_.all_reduce_flow(buffer, first_ + flow);
  }
  Status wait(Stream stream, Ticket ticket, std::chrono::milliseconds limit) override {
    return transport_.wait(stream, ticket, limit);
  }
  Status order_after(Stream stream, Ticket ticket, std::chrono::milliseconds limit) override {
    return transport_.order_after(stream, ticket, limit);
  }
  OperationTime time_of(Stream stream, Ticket ticket) const override {
    return transport_.time_of(stream, ticket);
  }
  std::string recording_obstacle() const override { return agpcs::recording_obstacle(transport_); }
  /// Recording needs: no `recording_obstacle`.
  Status begin_recording() override {
    return dynamic_cast<RecordingTransport&>(transport_).begin_recording();
  }
  Result<std::unique_ptr<StepGraph>> end_recording(std::chrono::milliseconds limit) override {
    return dynamic_cast<RecordingTransport&>(transport_).end_recording(limit);
  }
  void abort(const Status& reason) override { transport_.abort(reason); }

 private:
  Transport& transport_;
  const int first_;
};

}  // namespace agpcs
