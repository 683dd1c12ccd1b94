// SPDX-License-Identifier: Apache-2.0
// `kCoordinator` and `kCached`: a thread runs cycles as long as something is pending. A cycle is a
// negotiation (negotiation.h), then the all-reduces that it decided.
#include "runtime/reduce/negotiation.h"
#include "runtime/reduce/reducer_base.h"
#include "runtime/support/caught.h"
#include "runtime/support/gradient_copy.h"
#include "runtime/support/message_tags.h"
#include "runtime/support/operation_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

namespace agpcs {
namespace {

NegotiationSetup setup_of(const GradientSet& set, const Transport& transport,
                          const ReducerOptions& options) {
  NegotiationSetup setup;
  setup.ranks = set.ranks;
  const auto me = std::lower_bound(set.ranks.begin(), set.ranks.end(), transport.rank());
  setup.member = static_cast<int>(me - set.ranks.begin());
  for (const int rank : set.ranks) {
    setup.hosts.push_back(set.host_of_rank[static_cast<std::size_t>(rank)]);
  }
  std::vector<char> grouped(set.gradients.size(), 0);
  for (const GradientGroup& group : set.groups) {
    setup.units.push_back(group.gradients);
    for (const int g : group.gradients) grouped[static_cast<std::size_t>(g)] = 1;
  }
  for (std::size_t g = 0; g < set.gradients.size(); ++g) {
    setup.names.push_back(set.gradients[g].name);
    setup.shapes.push_back({set.gradients[g].type, set.gradients[g].elements});
    if (grouped[g] == 0) setup.units.push_back({static_cast<int>(g)});
  }
  setup.cached = options.coordination == Coordination::kCached;
  setup.capacity = static_cast<std::size_t>(options.cache_capacity);
  setup.fusion_bytes = options.fusion_bytes;
  setup.alone_bytes = options.alone_bytes;
  return setup;
}

class NegotiatedReducer final : public ReducerBase {
 public:
  NegotiatedReducer(const GradientSet& set, Transport& transport, const ReducerOptions& options)
      : ReducerBase(set, transport, options),
        setup_(setup_of(set, transport, options)),
        negotiation_(setup_),
        worker_([this] { run(); }) {}
  ~NegotiatedReducer() override;
  NegotiatedReducer(const NegotiatedReducer&) = delete;
  NegotiatedReducer& operator=(const NegotiatedReducer&) = delete;

  using GradientReducer::submit;
  Status submit(int gradient, const Buffer& buffer) override;
  Result<Buffer> place_of(int gradient) override;
  Status wait_all() override;
  std::vector<std::int64_t> delays() const override { return {}; }

 private:
  /// An all-reduce under way.
  struct Reduction {
    FusedTensors tensors;
    std::vector<Buffer> areas;  // one each where gradients lie, or one that they are copied to
    Ticket ticket = 0;
  };
  void run();
  bool next_cycle(Clock::time_point not_before);
  Status cycle();
  Status negotiate();
  Status exchange();
  Status reduce(std::vector<FusedTensors> decided);
  bool stay_in_place(const FusedTensors& tensors) const;
  std::vector<Buffer> gather(const FusedTensors& tensors, std::vector<char>& staging);
  void scatter(const Reduction& reduction);
  Status late(const Status& status) const;
  double scale(DType type, double factor) const { return is_floating(type) ? factor : 1; }

  // Only the worker uses these.
  const NegotiationSetup setup_;
  Negotiation negotiation_;
  std::deque<Negotiation::Message> sent_;
  std::vector<char> incoming_;
  std::vector<Reduction> under_way_;
  std::vector<std::vector<char>> stagings_;
  std::int64_t messages_ = 0, message_bytes_ = 0, copied_ = 0;

  // The mutex guards these.
  std::vector<int> inbox_;   // submitted since the last cycle began
  std::size_t reduced_ = 0;  // gradients summed in this step
  bool stopping_ = false;
  bool ended_ = false;  // the worker is done

  std::thread worker_;
};

NegotiatedReducer::~NegotiatedReducer() {
  bool leaves = false;
  {
    const std::lock_guard lock(mutex_);
    leaves = came_.count() > 0 && failure_.ok();
    stopping_ = true;
  }
  changed_.notify_all();
  if (leaves) {
    [[maybe_unused]] const Status known =
        fail({StatusCode::kCancelled,
              fmt::format("rank {} left in the middle of a step", transport_.rank())});
  }
  worker_.join();
}

Status NegotiatedReducer::submit(int index, const Buffer& buffer) {
  AGPCS_RETURN_IF_ERROR(admit(index, buffer, false));
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = inbox_.empty();
    inbox_.push_back(index);
  }
  if (first) changed_.notify_all();  // the worker sleeps only while the inbox is empty
  return {};
}

Result<Buffer> NegotiatedReducer::place_of(int /*gradient*/) {
  return invalid_input("only planned reductions have a place for each gradient");
}

// After an error nothing touches the caller's gradients any more.
Status NegotiatedReducer::wait_all() {
  Lock lock(mutex_);
  const Status status = wait_until(
      lock, [&] { return reduced_ == set_.gradients.size(); },
      [&] {
        return fmt::format(
            "{} of {} gradients were not summed within {} ms, though all came on rank {}: other "
            "ranks are late",
            set_.gradients.size() - reduced_, set_.gradients.size(), options_.limit.count(),
            transport_.rank());
      });
  if (!status.ok()) {
    if (!lock.owns_lock()) lock.lock();
    changed_.wait(lock, [&] { return ended_; });
    return status;
  }
  reduced_ = 0;
  begin_step();
  return {};
}

void NegotiatedReducer::run() {
  auto not_before = Clock::now();
  while (next_cycle(not_before)) {
    not_before = Clock::now() + options_.cycle;
    const Status status = caught([&] { return cycle(); });
    if (!status.ok()) {
      [[maybe_unused]] const Status known = fail(status);
      break;
    }
  }
  if (!failure().ok()) let_go();
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
}

// Waits until there is something to negotiate and the cycle may begin, then takes in what came.
bool NegotiatedReducer::next_cycle(Clock::time_point not_before) {
  Lock lock(mutex_);
  const auto ended = [&] { return stopping_ || !failure_.ok(); };
  changed_.wait(lock, [&] { return ended() || !inbox_.empty() || negotiation_.pending(); });
  changed_.wait_until(lock, not_before, ended);
  if (ended()) return false;
  for (const int index : inbox_) {
    const Buffer& buffer = buffers_[static_cast<std::size_t>(index)];
    const auto elements = static_cast<std::int64_t>(buffer.bytes / size_of(buffer.type));
    negotiation_.submit(index, {buffer.type, elements});
  }
  inbox_.clear();
  return true;
}

Status NegotiatedReducer::cycle() {
  if (!negotiation_.pending()) return {};  // no group has all its gradients
  const std::int64_t begin = steady_nanoseconds();
  AGPCS_RETURN_IF_ERROR(negotiate());
  const std::int64_t took = steady_nanoseconds() - begin;
  {
    const std::lock_guard lock(mutex_);
    const Negotiation::Counts& counts = negotiation_.counts();
    stats_.control_ns += took;
    stats_.control_messages = messages_;
    stats_.control_bytes = message_bytes_;
    stats_.cycles = counts.cycles;
    stats_.coordinated = counts.coordinated;
    stats_.hits = counts.hits;
    stats_.evictions = counts.evictions;
    stats_.invalidations = counts.invalidations;
  }
  AGPCS_RETURN_IF_ERROR(negotiation_.failure());
  return reduce(negotiation_.take_decided());
}

Status NegotiatedReducer::negotiate() {
  const Status status = exchange();
  if (!status.ok()) return late(status);
  return {};
}

Status NegotiatedReducer::exchange() {
  const std::uint64_t tag = kNegotiationTag + static_cast<std::uint64_t>(options_.group);
  Ticket last = 0;
  negotiation_.begin_cycle();
  while (true) {
    for (Negotiation::Message& message : negotiation_.take_messages()) {
      Negotiation::Message& kept = sent_.emplace_back(std::move(message));
      const Buffer buffer{kept.bytes.data(), kept.bytes.size(), DType::kUint8, false};
      const int peer = set_.ranks[static_cast<std::size_t>(kept.member)];
      AGPCS_TRY(last, transport_.send(buffer, peer, tag));
      ++messages_;
      message_bytes_ += static_cast<std::int64_t>(kept.bytes.size());
    }
    const Negotiation::Awaited awaited = negotiation_.awaited();
    if (awaited.member < 0) break;
    incoming_.resize(awaited.bytes);
    const Buffer buffer{incoming_.data(), incoming_.size(), DType::kUint8, false};
    const int peer = set_.ranks[static_cast<std::size_t>(awaited.member)];
    AGPCS_TRY(const Ticket ticket, transport_.recv(buffer, peer, tag));
    AGPCS_RETURN_IF_ERROR(transport_.wait(Stream::kRecv, ticket, options_.limit));
    negotiation_.deliver(incoming_);
  }
  if (last != 0) AGPCS_RETURN_IF_ERROR(transport_.wait(Stream::kSend, last, options_.limit));
  sent_.clear();
  return {};
}

// Adds to a timeout what this rank had when another rank did not go on.
Status NegotiatedReducer::late(const Status& status) const {
  if (status.code() != StatusCode::kTimeout) return status;
  const std::lock_guard lock(mutex_);
  std::string first;
  for (std::size_t g = 0; g < set_.gradients.size() && first.empty(); ++g) {
    if (came_.came(g)) first = set_.gradients[g].name;
  }
  return {status.code(),
          fmt::format("{} of {} gradients, first '{}', came on rank {}, which then waited: {}",
                      came_.count(), set_.gradients.size(), first, transport_.rank(),
                      status.message())};
}

Status NegotiatedReducer::reduce(std::vector<FusedTensors> decided) {
  stagings_.resize(std::max(stagings_.size(), decided.size()));
  under_way_.clear();
  under_way_.reserve(decided.size());  // areas stay where they are
  std::int64_t bytes = 0;
  copied_ = 0;
  for (FusedTensors& tensors : decided) {
    std::vector<char>& staging = stagings_[under_way_.size()];
    Reduction& next = under_way_.emplace_back(Reduction{std::move(tensors), {}, 0});
    next.areas = gather(next.tensors, staging);
    AGPCS_TRY(next.ticket,
              transport_.all_reduce_areas(next.areas, options_.group, options_.algorithm));
    for (const Buffer& area : next.areas) bytes += static_cast<std::int64_t>(area.bytes);
  }
  {
    const std::lock_guard lock(mutex_);
    stats_.all_reduces += static_cast<std::int64_t>(under_way_.size());
    stats_.payload_bytes += bytes;
    stats_.copied_bytes += copied_;
  }
  for (const Reduction& reduction : under_way_) {
    AGPCS_RETURN_IF_ERROR(transport_.wait(Stream::kCollective, reduction.ticket, options_.limit));
    scatter(reduction);
  }
  return {};
}

// Returns whether gradients are reduced where they lie.
bool NegotiatedReducer::stay_in_place(const FusedTensors& tensors) const {
  if (wire_of(tensors.type) != tensors.type) return false;
  if (tensors.gradients.size() == 1) return true;
  return options_.algorithm == AllReduce::kRing && transport_.joins_areas();
}

// Returns what is reduced: the gradients where they lie, or one buffer that they are copied to.
std::vector<Buffer> NegotiatedReducer::gather(const FusedTensors& tensors,
                                              std::vector<char>& staging) {
  const DType wire = wire_of(tensors.type);
  const double factor = scale(tensors.type, options_.scale_in);
  if (stay_in_place(tensors)) {
    std::vector<Buffer> areas;
    for (const int index : tensors.gradients) {
      areas.push_back(buffers_[static_cast<std::size_t>(index)]);
      copy_in(areas.back().data, wire, areas.back(), factor);
    }
    return areas;
  }
  const std::size_t width = size_of(wire);
  const std::size_t bytes = static_cast<std::size_t>(tensors.elements) * width;
  if (staging.size() < bytes) staging.resize(bytes);
  char* to = staging.data();
  for (const int index : tensors.gradients) {
    const Buffer& from = buffers_[static_cast<std::size_t>(index)];
    copy_in(to, wire, from, factor);
    to += from.bytes / size_of(from.type) * width;
    copied_ += static_cast<std::int64_t>(from.bytes);
  }
  return {{staging.data(), bytes, wire, false}};
}

void NegotiatedReducer::scatter(const Reduction& reduction) {
  const DType wire = wire_of(reduction.tensors.type);
  const double factor = scale(reduction.tensors.type, options_.scale_out);
  const std::vector<int>& gradients = reduction.tensors.gradients;
  const char* from = nullptr;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Buffer& to = buffers_[static_cast<std::size_t>(gradients[i])];
    if (i < reduction.areas.size()) from = static_cast<const char*>(reduction.areas[i].data);
    copy_out(to, from, wire, factor);
    from += to.bytes / size_of(to.type) * size_of(wire);
  }
  {
    const std::lock_guard lock(mutex_);
    reduced_ += reduction.tensors.gradients.size();
  }
  changed_.notify_all();
}

}  // namespace

std::unique_ptr<GradientReducer> make_negotiated_reducer(const GradientSet& set,
                                                         Transport& transport,
                                                         const ReducerOptions& options) {
  return std::make_unique<NegotiatedReducer>(set, transport, options);
}

}  // namespace agpcs
