// SPDX-License-Identifier: Apache-2.0
// `kPlanned`: each group has memory of its own, but a ring reduces gradients where they lie. The
// thread that brings the last missing gradient posts the groups whose turn it is. `wait_all` waits
// for the groups in order.
#include "runtime/reduce/planned_step.h"
#include "runtime/reduce/reducer_base.h"
#include "runtime/support/gradient_copy.h"
#include "runtime/support/operation_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace agpcs {
namespace {

struct Group {
  const GradientGroup* declared = nullptr;
  DType wire = DType::kFp32;
  std::size_t bytes = 0;
  std::unique_ptr<char[]> memory;
  bool in_place = false;      // gradients are reduced where they lie, which is known in a step
  std::vector<Buffer> areas;  // that are reduced: of each gradient, or the memory
  // State of the running step.
  std::int64_t ready = 0;  // when its last gradient came
  std::int64_t delay = 0;
  Ticket ticket = 0;
};

class PlannedReducer final : public ReducerBase {
 public:
  PlannedReducer(const GradientSet& set, Transport& transport, const ReducerOptions& options);
  ~PlannedReducer() override;
  PlannedReducer(const PlannedReducer&) = delete;
  PlannedReducer& operator=(const PlannedReducer&) = delete;

  using GradientReducer::submit;
  Status submit(int gradient, const Buffer& buffer) override;
  Result<Buffer> place_of(int gradient) override;
  Status wait_all() override;
  std::vector<std::int64_t> delays() const override;

 private:
  Group& group_of(int gradient) { return groups_[step_.group_of(gradient)]; }
  char* memory_of(int gradient) const {
    return groups_[step_.group_of(gradient)].memory.get() +
           offsets_[static_cast<std::size_t>(gradient)];
  }
  /// Returns where a gradient that lies in `buffer` is reduced.
  void* place_in_step(int gradient, const Buffer& buffer) {
    return group_of(gradient).in_place ? buffer.data : memory_of(gradient);
  }
  bool stays_in_place(const Group& group) const;
  void post_ready(std::int64_t now);
  Status post(Group& group);
  Status wait_for_groups();
  Result<Ticket> all_reduce(Group& group);
  Status finish(Group& group, Clock::time_point deadline);

  std::vector<Group> groups_;
  std::vector<std::size_t> offsets_;  // by gradient: offset in its group's memory
  PlannedStep step_;                  // guarded by the mutex
  std::vector<std::int64_t> delays_;
};

PlannedReducer::PlannedReducer(const GradientSet& set, Transport& transport,
                               const ReducerOptions& options)
    : ReducerBase(set, transport, options), offsets_(set.gradients.size()), step_(set_) {
  for (const GradientGroup& declared : set_.groups) {
    Group& group = groups_.emplace_back();
    group.declared = &declared;
    group.wire = wire_of(gradient(declared.gradients.front()).type);
    group.in_place = stays_in_place(group);
    for (const int g : declared.gradients) {
      const auto bytes = static_cast<std::size_t>(gradient(g).elements) * size_of(group.wire);
      if (group.in_place) group.areas.push_back({nullptr, bytes, group.wire, false});
      offsets_[static_cast<std::size_t>(g)] = group.bytes;
      group.bytes += bytes;
    }
    group.memory = std::make_unique_for_overwrite<char[]>(group.bytes);
    if (!group.in_place) group.areas = {{group.memory.get(), group.bytes, group.wire, false}};
  }
}

bool PlannedReducer::stays_in_place(const Group& group) const {
  const GradientGroup& declared = *group.declared;
  if (group.wire != gradient(declared.gradients.front()).type) return false;
  if (declared.gradients.size() == 1) return true;
  return declared.algorithm == AllReduce::kRing && transport_.joins_areas();
}

PlannedReducer::~PlannedReducer() {
  if (came_.count() > 0 && failure_.ok()) {
    [[maybe_unused]] const Status known =
        fail({StatusCode::kCancelled,
              fmt::format("rank {} left in the middle of a step", transport_.rank())});
  }
  if (!failure_.ok()) let_go();
}

Status PlannedReducer::submit(int index, const Buffer& buffer) {
  AGPCS_RETURN_IF_ERROR(admit(index, buffer, true));
  Group& group = group_of(index);
  void* to = place_in_step(index, buffer);
  const DType type = buffer.type;
  copy_in(to, group.wire, buffer, is_floating(type) ? options_.scale_in : 1);
  Status status;
  {
    const std::lock_guard lock(mutex_);
    if (to != buffer.data) stats_.copied_bytes += static_cast<std::int64_t>(buffer.bytes);
    if (!step_.bring(index)) return {};
    group.ready = steady_nanoseconds();
    post_ready(group.ready);
    status = failure_;
  }
  if (!status.ok()) return fail(status);
  changed_.notify_all();
  return {};
}

// Posts the groups whose turn it is. Needs the mutex held. If a group cannot be posted, the
// step fails.
void PlannedReducer::post_ready(std::int64_t now) {
  if (!failure_.ok()) return;
  failure_ = step_.advance([&](std::size_t i) {
    groups_[i].delay = now - groups_[i].ready;
    return post(groups_[i]);
  });
}

Status PlannedReducer::post(Group& group) {
  const auto ticket = all_reduce(group);
  if (!ticket.ok()) {
    return {ticket.status().code(),
            fmt::format("group '{}': {}", group.declared->name, ticket.status().message())};
  }
  group.ticket = *ticket;
  ++stats_.all_reduces;
  stats_.payload_bytes += static_cast<std::int64_t>(group.bytes);
  stats_.delay_ns += group.delay;
  return {};
}

Result<Ticket> PlannedReducer::all_reduce(Group& group) {
  const std::vector<int>& gradients = group.declared->gradients;
  for (std::size_t i = 0; i < gradients.size() && group.in_place; ++i) {
    group.areas[i].data = buffers_[static_cast<std::size_t>(gradients[i])].data;
  }
  if (group.declared->algorithm == AllReduce::kFlow) {
    return transport_.all_reduce_flow(group.areas.front(),
                                      options_.first_flow + group.declared->flow);
  }
  return transport_.all_reduce_areas(group.areas, options_.group, group.declared->algorithm);
}

Result<Buffer> PlannedReducer::place_of(int index) {
  if (index < 0 || index >= static_cast<int>(offsets_.size())) {
    return invalid_input(fmt::format("gradient {} of {}: there is none", index, offsets_.size()));
  }
  const Gradient& declared = gradient(index);
  const DType wire = group_of(index).wire;
  if (wire != declared.type) {
    return invalid_input(fmt::format("gradient '{}' of {} travels as {}: it has no place",
                                     declared.name, name_of(declared.type), name_of(wire)));
  }
  const auto bytes = static_cast<std::size_t>(declared.elements) * size_of(declared.type);
  return Buffer{memory_of(index), bytes, declared.type, false};
}

// After an error nothing touches the caller's gradients any more.
Status PlannedReducer::wait_all() {
  Status status = wait_for_groups();
  if (!status.ok()) {
    [[maybe_unused]] const Status known = transport_.wait(Stream::kCollective, 0, options_.limit);
  }
  return status;
}

Status PlannedReducer::wait_for_groups() {
  const auto begin = Clock::now();
  {
    Lock lock(mutex_);
    AGPCS_RETURN_IF_ERROR(wait_until(
        lock, [&] { return step_.all_posted(); },
        [] { return std::string("a call of submit did not return"); }));
  }
  for (Group& group : groups_) {
    const Status status = finish(group, begin + options_.limit);
    if (!status.ok()) return fail(status);
  }
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;  // a call failed while the last groups were reduced
  delays_.clear();
  for (const Group& group : groups_) delays_.push_back(group.delay);
  step_.begin_step();
  begin_step();
  return {};
}

Status PlannedReducer::finish(Group& group, Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  const Status status = transport_.wait(Stream::kCollective, group.ticket,
                                        std::max(left, std::chrono::milliseconds(0)));
  const std::vector<int>& gradients = group.declared->gradients;
  if (!status.ok()) {
    return {status.code(),
            fmt::format("group '{}' of {} gradients from '{}': {}", group.declared->name,
                        gradients.size(), gradient(gradients.front()).name, status.message())};
  }
  for (const int index : gradients) {
    const Buffer& to = buffers_[static_cast<std::size_t>(index)];
    copy_out(to, place_in_step(index, to), group.wire,
             is_floating(to.type) ? options_.scale_out : 1);
  }
  return {};
}

std::vector<std::int64_t> PlannedReducer::delays() const {
  const std::lock_guard lock(mutex_);
  return delays_;
}

}  // namespace

std::unique_ptr<GradientReducer> make_planned_reducer(const GradientSet& set, Transport& transport,
                                                      const ReducerOptions& options) {
  return std::make_unique<PlannedReducer>(set, transport, options);
}

}  // namespace agpcs
