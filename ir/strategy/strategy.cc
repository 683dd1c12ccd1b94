// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/strategy.h"

#include "ir/plan/lookup.h"
#include "ir/strategy/interleaved.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/teams.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

class StrategyVerifier {
 public:
  StrategyVerifier(const Strategy& strategy, const Graph& graph, const Cluster& cluster,
                   std::int64_t batch)
      : s_(strategy),
        graph_(graph),
        cluster_(cluster),
        batch_(batch),
        can_cross_(can_cross(graph)) {}

  Status run() {
    AGPCS_RETURN_IF_ERROR(check_groups());
    AGPCS_RETURN_IF_ERROR(check_in_flight());
    AGPCS_RETURN_IF_ERROR(check_assignment());
    AGPCS_RETURN_IF_ERROR(check_teams(s_, graph_));
    AGPCS_RETURN_IF_ERROR(check_interleaved(s_, graph_));
    AGPCS_RETURN_IF_ERROR(check_offload(s_, cluster_));
    for (TensorId id = 0; id < static_cast<TensorId>(graph_.tensors.size()); ++id) {
      AGPCS_RETURN_IF_ERROR(check_tensor(id));
    }
    return s_.buckets.empty() ? Status() : check_buckets();
  }

 private:
  template <typename... Args>
  static Status fail(fmt::format_string<Args...> format, Args&&... args) {
    return internal_error("strategy: " + fmt::format(format, std::forward<Args>(args)...));
  }
  int stage_count() const { return static_cast<int>(s_.stages.size()); }
  int stage(OpId op) const { return s_.stage_of[static_cast<std::size_t>(op)]; }

  Status check_groups() const {
    if (s_.micro_batches < 1 || batch_ < s_.micro_batches) {
      return fail("a batch of {} does not make {} micro-batches", batch_, s_.micro_batches);
    }
    std::set<DeviceId> used;
    const int round = round_size(s_);  // further stages are on the same devices again
    for (int i = 0; i < stage_count(); ++i) {
      const StageSpec& spec = s_.stages[static_cast<std::size_t>(i)];
      if (spec.devices.empty() || spec.devices.size() != spec.shares.size()) {
        return fail("stage {} has {} devices and {} shares", i, spec.devices.size(),
                    spec.shares.size());
      }
      for (const DeviceId device : all_devices(spec)) {
        if (device < 0 || device >= cluster_.device_count() ||
            !(used.insert(device).second || i >= round)) {
          return fail("stage {}: device {} does not exist or serves another stage", i, device);
        }
      }
      AGPCS_RETURN_IF_ERROR(check_shares(i, spec));
    }
    return {};
  }

  Status check_in_flight() const {
    if (s_.schedule == Schedule::kZeroBubble && !may_part_backward(s_)) {
      return fail("the schedule is {}, but a stage recomputes, or divides gradients or parameters",
                  name_of(s_.schedule));
    }
    for (int i = 0; i < stage_count(); ++i) {
      const std::optional<std::int64_t>& own = s_.stages[static_cast<std::size_t>(i)].in_flight;
      if (!own) continue;
      if (s_.schedule == Schedule::kGPipe) {
        return fail("stage {} has {} micro-batches in flight, but the schedule is {}", i, *own,
                    name_of(s_.schedule));
      }
      if (*own < 1 || *own > s_.micro_batches) {
        return fail("stage {} has {} of {} micro-batches in flight", i, *own, s_.micro_batches);
      }
    }
    return {};
  }

  Status check_shares(int index, const StageSpec& spec) const {
    if (std::ranges::adjacent_find(spec.devices, std::greater_equal()) != spec.devices.end()) {
      return fail("stage {}: devices not ascending", index);
    }
    for (const std::int64_t share : spec.shares) {
      if (share < 1) return fail("stage {} has a share of {} samples", index, share);
    }
    const std::int64_t sum =
        std::accumulate(spec.shares.begin(), spec.shares.end(), std::int64_t{0});
    const std::int64_t largest = largest_micro_batch(batch_, s_.micro_batches);
    if (sum != largest) {
      return fail("stage {}: shares sum to {}, micro-batch has {} samples", index, sum, largest);
    }
    if (covers(spec, batch_, s_.micro_batches)) return {};
    return fail("stage {}: {} devices, but a micro-batch of {} samples", index, spec.devices.size(),
                largest - 1);
  }

  Status check_assignment() const {
    if (s_.stage_of.size() != graph_.ops.size()) {
      return fail("{} assignments for {} operators", s_.stage_of.size(), graph_.ops.size());
    }
    std::vector<int> sizes(s_.stages.size());
    for (OpId op = 0; op < static_cast<OpId>(graph_.ops.size()); ++op) {
      if (stage(op) < 0 || stage(op) >= stage_count()) {
        return fail("operator '{}' is in stage {} of {}", graph_.op(op).name, stage(op),
                    stage_count());
      }
      ++sizes[static_cast<std::size_t>(stage(op))];
    }
    const auto none = std::ranges::find(sizes, 0);
    return none == sizes.end() ? Status() : fail("stage {} has no operator", none - sizes.begin());
  }

  Status check_tensor(TensorId id) const {
    const Tensor& t = graph_.tensor(id);
    if (t.kind == TensorKind::kState) return check_owner(t);
    if (t.producer == kNone) return {};
    for (const OpId consumer : t.consumers) {
      if (stage(consumer) < stage(t.producer)) {
        return fail("'{}' goes back from stage {} to stage {}", t.name, stage(t.producer),
                    stage(consumer));
      }
      if (stage(consumer) != stage(t.producer) && !can_cross_[static_cast<std::size_t>(id)]) {
        return fail("'{}' crosses from stage {} to stage {} but cannot be split by samples", t.name,
                    stage(t.producer), stage(consumer));
      }
      AGPCS_RETURN_IF_ERROR(check_waits(t, stage(t.producer), stage(consumer)));
    }
    return {};
  }

  /// Checks that two stages do not wait for each other.
  Status check_waits(const Tensor& t, int from, int to) const {
    const std::int64_t first = most_in_flight(s_, static_cast<std::size_t>(from));
    const std::int64_t second = most_in_flight(s_, static_cast<std::size_t>(to));
    if (!t.needs_gradient || first >= second) return {};
    return fail(
        "stage {} has {} micro-batches in flight, and stage {}, which sends it '{}', has {}: "
        "they would wait for each other",
        to, second, from, t.name, first);
  }

  Status check_owner(const Tensor& t) const {
    for (const OpId consumer : t.consumers) {
      if (stage(consumer) != stage(t.consumers.front())) {
        return fail("state '{}' is used in stages {} and {}", t.name, stage(t.consumers.front()),
                    stage(consumer));
      }
    }
    return {};
  }

  Status check_flows() const {
    for (std::size_t i = 0; i < s_.flows.size(); ++i) {
      const PlanFlow& flow = s_.flows[i];
      if (flow.stage < 0 || flow.stage >= stage_count()) {
        return fail("flow {} is of stage {}", i, flow.stage);
      }
      const std::size_t members = s_.stages[static_cast<std::size_t>(flow.stage)].devices.size();
      const Status sums = verify_flow(flow, static_cast<int>(members));
      if (!sums.ok()) return fail("flow {}: {}", i, sums.message());
      const bool used = std::any_of(s_.buckets.begin(), s_.buckets.end(),
                                    [&](const Bucket& b) { return b.flow == static_cast<int>(i); });
      if (!used) return fail("flow {} serves no bucket", i);
    }
    return {};
  }

  Status check_algorithm(std::size_t index) const {
    const Bucket& bucket = s_.buckets[index];
    const bool flow = bucket.flow >= 0 && bucket.flow < static_cast<int>(s_.flows.size());
    if ((bucket.algorithm == AllReduce::kFlow) != flow || (!flow && bucket.flow != -1)) {
      return fail("bucket {} has algorithm {} and flow {} of {}", index, name_of(bucket.algorithm),
                  bucket.flow, s_.flows.size());
    }
    if (!flow) return {};
    if (bucket.is_shared()) return fail("bucket {} of several stages names a flow", index);
    if (s_.stages[static_cast<std::size_t>(bucket.stage)].state != StateLevel::kWhole) {
      return fail("bucket {} of stage {}, which divides its state, names a flow", index,
                  bucket.stage);
    }
    const int stage = s_.flows[static_cast<std::size_t>(bucket.flow)].stage;
    if (stage == bucket.stage) return {};
    return fail("bucket {} of stage {} names a flow of stage {}", index, bucket.stage, stage);
  }

  Status check_parts(std::size_t index) const {
    const Bucket& bucket = s_.buckets[index];
    if (bucket.parts.empty() != (bucket.state == StateLevel::kWhole)) {
      return fail("bucket {} has {} parts of what is {}", index, bucket.parts.size(),
                  name_of(bucket.state));
    }
    if (bucket.parts.empty()) return {};
    if (bucket.state >= StateLevel::kGradients && bucket.is_shared()) {
      return fail("bucket {} of several stages divides its gradients", index);
    }
    std::size_t devices = 0;
    bool divides = false;
    for (int i = 0; i < stage_count(); ++i) {
      if (!bucket.is_of(i)) continue;
      devices += s_.stages[static_cast<std::size_t>(i)].devices.size();
      divides = divides || s_.stages[static_cast<std::size_t>(i)].state != StateLevel::kWhole;
    }
    if (!divides) return fail("bucket {} has parts, but its stage keeps its state whole", index);
    if (bucket.parts.size() != devices || devices < 2) {
      return fail("bucket {} has {} parts for {} devices", index, bucket.parts.size(), devices);
    }
    std::int64_t elements = 0;
    for (const TensorId id : bucket.parameters) elements += elements_at(graph_.tensor(id).shape, 1);
    const std::int64_t sum =
        std::accumulate(bucket.parts.begin(), bucket.parts.end(), std::int64_t{0});
    const bool below =
        std::any_of(bucket.parts.begin(), bucket.parts.end(), [](auto part) { return part < 0; });
    if (sum == elements && !below) return {};
    return fail("bucket {}: parts {} for {} elements", index, fmt::join(bucket.parts, ","),
                elements);
  }

  Status check_buckets() const {
    AGPCS_RETURN_IF_ERROR(check_flows());
    std::set<TensorId> placed;
    for (std::size_t i = 0; i < s_.buckets.size(); ++i) {
      AGPCS_RETURN_IF_ERROR(check_algorithm(i));
      AGPCS_RETURN_IF_ERROR(check_parts(i));
      for (const TensorId id : s_.buckets[i].parameters) {
        const Tensor& t = graph_.tensor(id);
        std::vector<int> stages = s_.buckets[i].shared_with;
        stages.insert(stages.begin(), s_.buckets[i].stage);
        const std::vector<int> readers = stages_reading(graph_, s_.stage_of, id);
        if (readers != stages) {
          return fail("bucket {} of stage {} holds '{}' of stage {}", i, fmt::join(stages, " and "),
                      t.name, fmt::join(readers, " and "));
        }
        if (!placed.insert(id).second) return fail("'{}' is in two buckets", t.name);
      }
    }
    for (const TensorId id : graph_.parameters()) {
      if (graph_.tensor(id).needs_gradient && !placed.contains(id)) {
        return fail("'{}' is in no bucket", graph_.tensor(id).name);
      }
    }
    return {};
  }

  const Strategy& s_;
  const Graph& graph_;
  const Cluster& cluster_;
  std::int64_t batch_;
  std::vector<bool> can_cross_;  // by TensorId
};

/// Returns true when each row belongs to one sample.
bool has_rows(const Shape& shape) {
  return !shape.empty() && shape.front() == Extent{0, 1} &&
         !depends_on_batch(Shape(shape.begin() + 1, shape.end()));
}

}  // namespace

Status verify_strategy(const Strategy& strategy, const Graph& graph, const Cluster& cluster,
                       std::int64_t batch) {
  return StrategyVerifier(strategy, graph, cluster, batch).run();
}

std::size_t odd_replica(const StageSpec& spec) {
  const auto wish = std::find(spec.devices.begin(), spec.devices.end(), spec.odd);
  const auto at = static_cast<std::size_t>(wish - spec.devices.begin());
  if (wish != spec.devices.end() && spec.shares[at] > 1) return at;
  const auto most = std::max_element(spec.shares.begin(), spec.shares.end());
  return static_cast<std::size_t>(most - spec.shares.begin());
}

void set_group(StageSpec& spec, StageSpec group) {
  spec.devices = std::move(group.devices);
  spec.shares = std::move(group.shares);
  spec.odd = group.odd;
  spec.body = group.body;
  spec.further = std::move(group.further);
  spec.bodies = std::move(group.bodies);
}

std::vector<DeviceId> all_devices(const StageSpec& spec) {
  std::vector<DeviceId> devices = spec.devices;
  for (const std::vector<DeviceId>& more : spec.further) {
    devices.insert(devices.end(), more.begin(), more.end());
  }
  std::sort(devices.begin(), devices.end());
  return devices;
}

std::vector<DeviceId> members_of(const StageSpec& spec, std::size_t replica) {
  std::vector<DeviceId> members = {spec.devices[replica]};
  if (!spec.has_teams()) return members;
  const std::vector<DeviceId>& further = spec.further[replica];
  members.insert(members.end(), further.begin(), further.end());
  return members;
}

bool covers(const StageSpec& spec, std::int64_t batch, std::int64_t micro_batches) {
  const std::int64_t sum = std::accumulate(spec.shares.begin(), spec.shares.end(), std::int64_t{0});
  if (sum != largest_micro_batch(batch, micro_batches)) return false;
  if (batch % micro_batches == 0) return true;
  return std::any_of(spec.shares.begin(), spec.shares.end(), [](auto share) { return share > 1; });
}

std::vector<bool> can_cross(const Graph& graph) {
  std::vector<bool> of_samples, result;  // its shape or its value depends on the samples
  for (const Tensor& tensor : graph.tensors) {
    const std::vector<std::int64_t>& slopes = tensor.constant.per_sample;
    const bool grows = std::any_of(slopes.begin(), slopes.end(), [](auto s) { return s != 0; });
    of_samples.push_back(grows || depends_on_batch(tensor.shape));
  }
  const auto is_of_samples = [&](TensorId id) {
    return id != kNone && of_samples[static_cast<std::size_t>(id)];
  };
  for (const std::vector<Op>* ops : {&graph.prologue, &graph.ops}) {  // in topological order
    for (const Op& op : *ops) {
      if (std::none_of(op.inputs.begin(), op.inputs.end(), is_of_samples)) continue;
      for (const TensorId id : op.outputs) {
        if (id != kNone) of_samples[static_cast<std::size_t>(id)] = true;
      }
    }
  }
  for (std::size_t id = 0; id < graph.tensors.size(); ++id) {
    result.push_back(!of_samples[id] || has_rows(graph.tensors[id].shape));
  }
  return result;
}

bool Bucket::is_of(int of_stage) const {
  return stage == of_stage ||
         std::find(shared_with.begin(), shared_with.end(), of_stage) != shared_with.end();
}

bool has_own_parts(const Strategy& strategy, int stage) {
  return std::any_of(strategy.buckets.begin(), strategy.buckets.end(), [&](const Bucket& bucket) {
    return bucket.is_of(stage) && !bucket.parts.empty();
  });
}

void forget_parts(Strategy& strategy, int stage) {
  for (Bucket& bucket : strategy.buckets) {
    if (!bucket.is_of(stage)) continue;
    bucket.parts.clear();
    bucket.state = StateLevel::kWhole;
  }
}

void fit_flows(Strategy& strategy) {
  std::vector<PlanFlow> kept;
  std::vector<int> place(strategy.flows.size(), -1);
  for (Bucket& bucket : strategy.buckets) {
    const int flow = bucket.flow;
    bucket.flow = -1;
    if (bucket.algorithm != AllReduce::kFlow) continue;
    bucket.algorithm = AllReduce::kRing;
    if (flow < 0 || flow >= static_cast<int>(strategy.flows.size())) continue;
    const PlanFlow& named = strategy.flows[static_cast<std::size_t>(flow)];
    const StageSpec& spec = strategy.stages[static_cast<std::size_t>(bucket.stage)];
    int& at = place[static_cast<std::size_t>(flow)];
    if (at < 0) {
      if (named.stage != bucket.stage || spec.state != StateLevel::kWhole ||
          !verify_flow(named, static_cast<int>(spec.devices.size())).ok()) {
        continue;
      }
      at = static_cast<int>(kept.size());
      kept.push_back(named);
    }
    bucket.algorithm = AllReduce::kFlow;
    bucket.flow = at;
  }
  strategy.flows = std::move(kept);
}

std::int64_t most_in_flight(const Strategy& strategy, std::size_t stage) {
  if (strategy.schedule == Schedule::kGPipe || strategy.schedule == Schedule::kInterleaved) {
    return strategy.micro_batches;
  }
  const std::optional<std::int64_t>& own = strategy.stages[stage].in_flight;
  return own ? *own
             : textbook_in_flight(static_cast<std::int64_t>(strategy.stages.size()),
                                  static_cast<std::int64_t>(stage), strategy.micro_batches);
}

std::vector<std::int64_t> in_flight_by_stage(const Strategy& strategy) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(strategy.stages.size());
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    numbers.push_back(most_in_flight(strategy, s));
  }
  return numbers;
}

std::int64_t weight_lag(const std::vector<std::int64_t>& in_flight, std::size_t stage) {
  return *std::max_element(in_flight.begin(), in_flight.end()) - in_flight[stage];
}

bool may_part_backward(const Strategy& strategy) {
  return std::none_of(strategy.stages.begin(), strategy.stages.end(), [](const StageSpec& spec) {
    return spec.recompute || spec.state >= StateLevel::kGradients;
  });
}

void fit_in_flight(Strategy& strategy) {
  if (strategy.schedule == Schedule::kZeroBubble && !may_part_backward(strategy)) {
    strategy.schedule = Schedule::k1F1B;
  }
  const auto stages = static_cast<std::int64_t>(strategy.stages.size());
  std::int64_t most = strategy.micro_batches;
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const std::int64_t textbook =
        textbook_in_flight(stages, static_cast<std::int64_t>(s), strategy.micro_batches);
    std::optional<std::int64_t>& own = strategy.stages[s].in_flight;
    const bool has_none = strategy.schedule == Schedule::kGPipe ||
                          strategy.schedule == Schedule::kInterleaved || stages == 1;
    if (has_none) own.reset();
    most = std::min(most, own.value_or(textbook));
    own = most == textbook ? std::nullopt : std::optional(most);
  }
}

std::string print_strategy(const Strategy& strategy, const Graph& graph, const Cluster& cluster) {
  std::string text = fmt::format("strategy micro-batches={} schedule={}\n", strategy.micro_batches,
                                 name_of(strategy.schedule));
  for (std::size_t i = 0; i < strategy.stages.size(); ++i) {
    const StageSpec& spec = strategy.stages[i];
    fmt::format_to(Out(text), "stage {}{}{}", i, spec.recompute ? " " : "",
                   print_recomputation(spec.recompute));
    if (spec.state != StateLevel::kWhole) {
      fmt::format_to(Out(text), " state={}", name_of(spec.state));
    }
    if (spec.state_in_host) text += " state-in=host";
    if (spec.in_flight) fmt::format_to(Out(text), " in-flight={}", *spec.in_flight);
    if (spec.has_unlike_teams()) {
      fmt::format_to(Out(text), " body={}", fmt::join(spec.bodies, ","));
    } else if (spec.has_teams()) {
      fmt::format_to(Out(text), " body={}", spec.body);
    }
    text += ':';
    for (std::size_t d = 0; d < spec.devices.size(); ++d) {
      const char* separator = " ";
      for (const DeviceId device : members_of(spec, d)) {
        fmt::format_to(Out(text), "{}{}", separator, cluster.device_name(device));
        separator = "+";
      }
      fmt::format_to(Out(text), "={}", spec.shares[d]);
    }
    text += '\n';
    for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
      if (strategy.stage_of[static_cast<std::size_t>(op)] != static_cast<int>(i)) continue;
      fmt::format_to(Out(text), "  {}\n", graph.op(op).name);
    }
  }
  for (const Bucket& bucket : strategy.buckets) {
    fmt::format_to(Out(text), "bucket stage={}", bucket.stage);
    if (bucket.is_shared()) {
      fmt::format_to(Out(text), " shared-with={}", fmt::join(bucket.shared_with, ","));
    }
    fmt::format_to(Out(text), " algorithm={}", name_of(bucket.algorithm));
    if (bucket.flow >= 0) fmt::format_to(Out(text), ":f{}", bucket.flow);
    if (!bucket.parts.empty()) {
      fmt::format_to(Out(text), " state={} parts={}", name_of(bucket.state),
                     fmt::join(bucket.parts, ","));
    }
    text += ':';
    for (const TensorId id : bucket.parameters) text += " " + graph.tensor(id).name;
    text += '\n';
  }
  for (std::size_t b = 0; b < strategy.bodies.size(); ++b) {  // bytes are those of one sample
    fmt::format_to(Out(text), "body {}\n{}", b,
                   print_team_body(graph, strategy.bodies[b], 1, Precision::kFp32));
  }
  return text;
}

}  // namespace agpcs
