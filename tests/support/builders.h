// SPDX-License-Identifier: Apache-2.0
// Text in, text out: tiny graphs, clusters and strategies from a few lines. A mistake in such a
// text ends the test program with the line at fault.
#pragma once

#include "ir/base/check.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/strategy.h"
#include "tests/support/plan_flows.h"

#include <agpcs/plan.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {

/// The words of each line of `text` that is not empty and does not start with '#'.
inline std::vector<std::vector<std::string>> lines_of(const std::string& text) {
  std::vector<std::vector<std::string>> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::vector<std::string> list;
    for (std::string word; words >> word;) list.push_back(word);
    if (!list.empty() && list.front().front() != '#') lines.push_back(list);
  }
  return lines;
}

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

/// "memory=16e9" -> {"memory", "16e9"}; without '=' the value is empty.
inline std::pair<std::string, std::string> key_value(const std::string& word) {
  const std::size_t at = word.find('=');
  if (at == std::string::npos) return {word, ""};
  return {word.substr(0, at), word.substr(at + 1)};
}

/// Reads graphs: see `graph_of`.
class GraphBuilder {
 public:
  Graph run(const std::string& text) {
    graph_.name = "test";
    for (const std::vector<std::string>& words : lines_of(text)) read(words);
    link_graph(graph_);
    mark_gradients();
    const Status status = verify_graph(graph_);
    AGPCS_CHECK(status.ok(), "{}", status.message());
    return std::move(graph_);
  }

 private:
  void read(const std::vector<std::string>& words) {
    static const std::map<std::string, TensorKind> kKinds = {{"input", TensorKind::kInput},
                                                             {"parameter", TensorKind::kParameter},
                                                             {"state", TensorKind::kState},
                                                             {"constant", TensorKind::kConstant}};
    if (const auto kind = kKinds.find(words[0]); kind != kKinds.end()) {
      const TensorId id = add_tensor(words[1], words[2]);
      graph_.tensor(id).kind = kind->second;
      if (kind->second == TensorKind::kInput) graph_.inputs.push_back(id);
    } else if (words[0] == "outputs") {
      for (std::size_t i = 1; i < words.size(); ++i) graph_.outputs.push_back(find(words[i]));
    } else if (words[0] == "loss") {
      graph_.loss = find(words[1]);
    } else {
      read_op(words);
    }
  }

  /// a b = Split(x) [n,4] [n,4] axis=1
  void read_op(const std::vector<std::string>& words) {
    const auto equals = std::find(words.begin(), words.end(), "=");
    AGPCS_CHECK(equals != words.end(), "builders: no line of a graph: {} ...", words[0]);
    std::string call;
    auto it = equals + 1;
    for (; it != words.end() && (call.empty() || call.back() != ')'); ++it) call += *it;
    const std::size_t open = call.find('(');
    Op op;
    op.name = words[0];
    op.type = call.substr(0, open);
    op.version = 17;
    for (const std::string& name : split(call.substr(open + 1, call.size() - open - 2), ',')) {
      op.inputs.push_back(name.empty() ? kNone : find(name));
    }
    for (auto name = words.begin(); name != equals; ++name) {
      AGPCS_CHECK(it != words.end(), "builders: '{}' has no shape", *name);
      op.outputs.push_back(add_tensor(*name, *it++));
    }
    for (; it != words.end(); ++it) read_attribute(op, *it);
    graph_.ops.push_back(std::move(op));
  }

  static void read_attribute(Op& op, const std::string& word) {
    const auto [key, value] = key_value(word);
    std::vector<std::int64_t> ints;
    for (const std::string& item : split(value, ',')) ints.push_back(std::stoll(item));
    const bool list = value.find(',') != std::string::npos;
    op.attributes[key] = list ? Attribute(ints) : Attribute(ints.at(0));
  }

  /// [n,3,2n+1] is fp32; int64[n] says otherwise.
  TensorId add_tensor(const std::string& name, const std::string& type) {
    const std::size_t open = type.find('[');
    AGPCS_CHECK(open != std::string::npos && type.back() == ']', "builders: no type: {}", type);
    Tensor tensor;
    tensor.name = name;
    if (open > 0) tensor.type = dtype_named(type.substr(0, open)).value();
    for (const std::string& item : split(type.substr(open + 1, type.size() - open - 2), ',')) {
      const std::size_t n = item.find('n');
      const std::string fixed = n == std::string::npos ? item : item.substr(n + 1);
      Extent extent;
      if (n != std::string::npos) extent.per_sample = n == 0 ? 1 : std::stoll(item.substr(0, n));
      if (!fixed.empty()) extent.fixed = std::stoll(fixed);
      tensor.shape.push_back(extent);
    }
    graph_.tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(graph_.tensors.size()) - 1;
  }

  TensorId find(const std::string& name) const {
    const TensorId id = graph_.find_tensor(name);
    AGPCS_CHECK(id != kNone, "builders: no tensor '{}'", name);
    return id;
  }

  /// Every floating tensor that depends on a parameter.
  void mark_gradients() {
    for (Tensor& tensor : graph_.tensors) {
      tensor.needs_gradient = tensor.kind == TensorKind::kParameter && !tensor.consumers.empty();
    }
    for (const Op& op : graph_.ops) {
      const bool any = std::any_of(op.inputs.begin(), op.inputs.end(), [&](TensorId id) {
        return id != kNone && graph_.tensor(id).needs_gradient;
      });
      for (const TensorId id : op.outputs) {
        if (id != kNone)
          graph_.tensor(id).needs_gradient = any && is_floating(graph_.tensor(id).type);
      }
    }
  }

  Graph graph_;
};

/// A training graph. An operator is named like its first output:
///
///     input x [n,8]
///     parameter w [8,16]
///     h = MatMul(x, w) [n,16]
///     y = Relu(h) [n,16]
///     l = ReduceMean(y) []
///     outputs y
///     loss l
inline Graph graph_of(const std::string& text) { return GraphBuilder().run(text); }

/// Reads clusters: see `cluster_of`.
class ClusterBuilder {
 public:
  Cluster run(const std::string& text) {
    cluster_.name = "test";
    cluster_.topology = "switch";
    for (const std::vector<std::string>& words : lines_of(text)) {
      AGPCS_CHECK(words[0] == "kind" || words[0] == "host",
                  "builders: no line of a cluster: {} ...", words[0]);
      words[0] == "kind" ? add_kind(words) : add_host(words);
    }
    add_routes();
    const Status status = verify_cluster(cluster_);
    AGPCS_CHECK(status.ok(), "{}", status.message());
    return std::move(cluster_);
  }

 private:
  /// The value of `key`=... among `words`.
  static double figure_of(const std::vector<std::string>& words, const std::string& key,
                          double otherwise) {
    for (const std::string& word : words) {
      if (key_value(word).first == key) return std::stod(key_value(word).second);
    }
    return otherwise;
  }

  LinkId add_link(std::string name, const char* kind, double bandwidth, double latency) {
    cluster_.links.push_back({std::move(name), kind, bandwidth, latency, {}});
    return static_cast<LinkId>(cluster_.links.size()) - 1;
  }

  void add_kind(const std::vector<std::string>& words) {
    DeviceKind kind;
    kind.name = words[1];
    kind.memory_bytes = static_cast<std::int64_t>(figure_of(words, "memory", 16e9));
    kind.memory_bandwidth = figure_of(words, "bandwidth", 50e9);
    kind.launch_overhead = figure_of(words, "launch", 5e-6);
    for (const Precision precision : {Precision::kFp32, Precision::kFp16}) {
      const double peak = figure_of(words, std::string(name_of(precision)), 0);
      if (peak > 0) kind.peak_flops[precision] = peak;
    }
    cluster_.kinds.push_back(kind);
  }

  void add_host(const std::vector<std::string>& words) {
    int kind = 0;
    while (cluster_.kinds.at(static_cast<std::size_t>(kind)).name != words[2]) ++kind;
    const int host = static_cast<int>(cluster_.hosts.size());
    const int count = std::stoi(words[3]);
    cluster_.hosts.push_back({words[1], cluster_.device_count(), count});
    const double bandwidth = figure_of(words, "bandwidth", 50e9);
    const double latency = figure_of(words, "latency", 3e-6);
    for (int i = 0; i < count; ++i) {
      const std::string name = words[1] + "/" + std::to_string(i);
      const LinkId out = add_link(name + " out", "nvlink", bandwidth, latency);
      const LinkId in = add_link(name + " in", "nvlink", bandwidth, latency);
      cluster_.devices.push_back({host, i, kind, out, in});
    }
    const double nic = figure_of(words, "nic", 3e9);
    const double nic_latency = figure_of(words, "nic-latency", 15e-6);
    const LinkId out = add_link(words[1] + " nic out", "ethernet", nic, nic_latency);
    nics_.emplace_back(out, add_link(words[1] + " nic in", "ethernet", nic, nic_latency));
  }

  void add_routes() {
    for (std::size_t a = 0; a < nics_.size(); ++a) {
      for (std::size_t b = 0; b < nics_.size(); ++b) {
        std::vector<LinkId> route;
        if (a != b) route = {nics_[a].first, nics_[b].second};
        cluster_.host_routes.push_back(route);
      }
    }
  }

  Cluster cluster_;
  std::vector<std::pair<LinkId, LinkId>> nics_;  // out, in; by host
};

/// A cluster of hosts behind one switch:
///
///     kind gpu memory=16e9 bandwidth=900e9 fp32=15e12
///     host a gpu 2 bandwidth=50e9 latency=3e-6 nic=3e9
inline Cluster cluster_of(const std::string& text) { return ClusterBuilder().run(text); }

/// Gives all links but those named in `without` protocols like NCCL's over NVLink.
inline Cluster with_protocols(Cluster cluster, const std::string& without = "") {
  NetworkProtocols protocols;
  protocols.name = "nccl";
  protocols.of = {{{10e-6, 0.15, 0.25}, {17e-6, 0.55, 0.65}, {15e-6, 1, 1}}};
  protocols.step = 1e-6;
  protocols.expected = 0.9;
  cluster.protocols.push_back(protocols);
  for (Link& link : cluster.links) {
    if (without.empty() || link.name.find(without) == std::string::npos) link.protocols = 0;
  }
  return cluster;
}

/// Reads strategies: see `strategy_of`.
class StrategyBuilder {
 public:
  StrategyBuilder(const Graph& graph, const Cluster& cluster) : graph_(graph), cluster_(cluster) {
    strategy_.stage_of.assign(graph.ops.size(), -1);
  }

  Strategy run(const std::string& text) {
    for (const std::vector<std::string>& words : lines_of(text)) {
      if (words[0] == "micro-batches") {
        strategy_.micro_batches = std::stoll(words[1]);
        if (words.size() > 2) strategy_.schedule = schedule_named(words[2]).value();
      } else if (words[0] == "stage") {
        add_stage(words);
      } else {
        AGPCS_CHECK(words[0] == "bucket", "builders: no line of a strategy: {} ...", words[0]);
        add_bucket(words);
      }
    }
    if (strategy_.buckets.empty()) add_default_buckets();
    return std::move(strategy_);
  }

 private:
  /// Reads "5/8", the recomputed segments of all, or nothing, which is the whole stage.
  static Recomputation recomputation(const std::string& text) {
    if (text.empty()) return kWholeStage;
    const std::size_t slash = text.find('/');
    const int segments = std::stoi(text.substr(slash + 1));
    return {segments, segments - std::stoi(text)};
  }

  void add_stage(const std::vector<std::string>& words) {
    StageSpec spec;
    const auto colon = std::find(words.begin(), words.end(), ":");
    AGPCS_CHECK(colon != words.end(), "builders: a stage without ' : '");
    for (auto word = words.begin() + 1; word != colon; ++word) {
      const auto [device, share] = key_value(*word);
      if (device == "in-flight") {
        spec.in_flight = std::stoll(share);
        continue;
      }
      if (device == "recompute") {
        spec.recompute = recomputation(share);
        continue;
      }
      if (device == "state") {
        spec.state = dividing_level_named(share).value_or(StateLevel::kOptimizer);
        continue;
      }
      const std::vector<std::string> members = split(device, '+');
      spec.devices.push_back(cluster_.find_device(members.front()));
      spec.shares.push_back(std::stoll(share));
      std::vector<DeviceId>& further = spec.further.emplace_back();
      for (std::size_t m = 1; m < members.size(); ++m) {
        further.push_back(cluster_.find_device(members[m]));
      }
    }
    const auto alone = [](const std::vector<DeviceId>& more) { return more.empty(); };
    if (std::all_of(spec.further.begin(), spec.further.end(), alone)) spec.further.clear();
    const int stage = static_cast<int>(strategy_.stages.size());
    for (auto word = colon + 1; word < words.end(); ++word) assign(*word, stage);
    strategy_.stages.push_back(spec);
  }

  /// Operators "a", "a..b" or "*", as far as no stage has them.
  void assign(const std::string& item, int stage) {
    const std::size_t dots = item.find("..");
    const OpId first = item == "*" ? 0 : graph_.find_op(item.substr(0, dots));
    OpId last = dots == std::string::npos ? first : graph_.find_op(item.substr(dots + 2));
    if (item == "*") last = static_cast<OpId>(graph_.ops.size()) - 1;
    AGPCS_CHECK(first >= 0 && last >= first, "builders: no operators '{}'", item);
    for (OpId op = first; op <= last; ++op) {
      int& place = strategy_.stage_of[static_cast<std::size_t>(op)];
      if (place < 0) place = stage;
    }
  }

  void add_bucket(const std::vector<std::string>& words) {
    Bucket bucket;
    bucket.stage = std::stoi(words[1]);
    for (std::size_t plus = words[1].find('+'); plus != std::string::npos;
         plus = words[1].find('+', plus + 1)) {
      bucket.shared_with.push_back(std::stoi(words[1].substr(plus + 1)));
    }
    if (words[2].rfind("flow:", 0) == 0) {
      bucket.algorithm = AllReduce::kFlow;
      bucket.flow = static_cast<int>(strategy_.flows.size());
      strategy_.flows.push_back(flow_of(words[2].substr(5), bucket.stage));
    } else {
      bucket.algorithm = all_reduce_named(words[2]).value();
    }
    for (std::size_t i = 3; i < words.size(); ++i) {
      bucket.parameters.push_back(graph_.find_tensor(words[i]));
    }
    strategy_.buckets.push_back(bucket);
  }

  /// "ring", "rings" (both ways round) or "star" over the devices of a stage.
  PlanFlow flow_of(const std::string& kind, int stage) const {
    const auto members =
        static_cast<int>(strategy_.stages[static_cast<std::size_t>(stage)].devices.size());
    PlanFlow flow =
        kind == "star" ? star_flow(members) : ring_flow(members, kind == "rings" ? 2 : 1);
    flow.stage = stage;
    return flow;
  }

  void add_default_buckets() {
    std::map<std::pair<bool, std::vector<int>>, std::vector<TensorId>> buckets;  // shared ones last
    for (const TensorId id : graph_.parameters()) {
      std::vector<int> stages = stages_reading(graph_, strategy_.stage_of, id);
      buckets[{stages.size() > 1, std::move(stages)}].push_back(id);
    }
    for (auto& [key, parameters] : buckets) {
      const std::vector<int>& stages = key.second;
      std::reverse(parameters.begin(), parameters.end());
      strategy_.buckets.push_back({stages.front(), AllReduce::kRing, std::move(parameters)});
      strategy_.buckets.back().shared_with.assign(stages.begin() + 1, stages.end());
    }
  }

  const Graph& graph_;
  const Cluster& cluster_;
  Strategy strategy_;
};

/// A strategy for `graph` and `cluster`; operators by name, as ranges `a..b`, or `*`, as far as no
/// stage before has them. Without `bucket` lines, one bucket a stage, in backward order, then one
/// for each set of stages that share parameters:
///
///     micro-batches 4 gpipe                      or zero-bubble
///     stage a/0=3 a/1=1 recompute : h..y         or with recompute=5/8 or state=optimizer; teams
///                                                (a/0+a/1=3) need a body besides
///     stage b/0=4 : *
///     bucket 0 ring w
///     bucket 0 flow:star v
///     bucket 0+1 ring shared
inline Strategy strategy_of(const std::string& text, const Graph& graph, const Cluster& cluster) {
  return StrategyBuilder(graph, cluster).run(text);
}

/// `batch` samples a step, SGD, the first output of `graph` as the loss's.
inline Training training_of(const Graph& graph, std::int64_t batch) {
  Training training;
  training.batch = batch;
  if (!graph.outputs.empty()) {
    training.loss.outputs = {{graph.tensor(graph.outputs.front()).name, 1.0}};
  }
  return training;
}

}  // namespace agpcs::testing
