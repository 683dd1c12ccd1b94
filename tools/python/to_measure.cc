// SPDX-License-Identifier: Apache-2.0
#include "tools/python/to_measure.h"

#include "ir/base/diagnostics.h"
#include "ir/cluster/profile.h"
#include "ir/graph/op_signature.h"
#include "ir/graph/op_table.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace agpcs {
namespace {

/// With more devices, the paths between all of them take too long to measure.
constexpr std::size_t kAllPairsUpTo = 4;

std::vector<std::string> names_of(const Cluster& cluster) {
  std::vector<std::string> names;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) names.push_back(cluster.device_name(id));
  return names;
}

Result<std::vector<DeviceId>> devices_named(const Cluster& cluster,
                                            const std::vector<std::string>& names) {
  std::vector<DeviceId> devices;
  for (const std::string& name : names) {
    devices.push_back(cluster.find_device(name));
    if (devices.back() != kNone) continue;
    return Status(StatusCode::kUsage,
                  fmt::format("unknown device '{}'\n  hint: {}", name,
                              did_you_mean(name, names_of(cluster), "devices")));
  }
  return devices;
}

Json paths_between(const Cluster& cluster, const std::vector<DeviceId>& devices) {
  Json paths = Json::array();
  const std::size_t count = devices.size();
  for (std::size_t from = 0; from < count; ++from) {
    for (std::size_t to = 0; to < count; ++to) {
      if (from == to || (count > kAllPairsUpTo && to != (from + 1) % count)) continue;
      const Json links = json_array(cluster.route(devices[from], devices[to]), [&](LinkId link) {
        return cluster.links[static_cast<std::size_t>(link)].name;
      });
      paths.push_back({{"from", from}, {"to", to}, {"links", links}});
    }
  }
  return paths;
}

std::vector<std::int64_t> samples_up_to(std::int64_t batch) {
  std::vector<std::int64_t> samples = {1, 2};
  while (samples.back() * 2 <= batch) samples.push_back(samples.back() * 2);
  return samples;
}

Json operator_json(const TrainedModel& model, OpId id, const std::vector<std::int64_t>& samples) {
  const Op& op = model.graph.op(id);
  Json outputs = Json::array();
  for (const TensorId output : op.outputs) {
    if (output != kNone) outputs.push_back(model.graph.tensor(output).name);
  }
  const Json work = json_array(samples, [&](std::int64_t n) -> Json {
    const OpCost cost = op_cost(model.graph, id, n, model.training.precision);
    return {cost.forward_flops, cost.backward_flops, cost.forward_bytes, cost.backward_bytes};
  });
  return {{"name", op.name},
          {"outputs", outputs},
          {"signature", op_signature(model.graph, id)},
          {"class", name_of(class_of(op))},
          {"work", work}};
}

}  // namespace

Result<Json> to_measure(const TrainedModel& model, const std::vector<std::string>& devices) {
  const Cluster& cluster = model.cluster;
  if (model.training.batch < 1) {
    return invalid_input(
        "no batch to measure for\n  hint: give batch, or training.batch in the cluster file");
  }
  AGPCS_TRY(const std::vector<DeviceId> ids,
            devices_named(cluster, devices.empty() ? names_of(cluster) : devices));
  const std::vector<std::int64_t> samples = samples_up_to(model.training.batch);
  Json operators = Json::array();
  for (OpId id = 0; id < static_cast<OpId>(model.graph.ops.size()); ++id) {
    operators.push_back(operator_json(model, id, samples));
  }
  return Json{
      {"model", model.graph.called()},
      {"precision", name_of(model.training.precision)},
      {"optimizer", optimizer_name(model.training.optimizer)},
      {"batch", model.training.batch},
      {"ignore_index", json_or_null(model.training.loss.ignore_index)},
      {"devices",
       json_array(ids,
                  [&](DeviceId id) -> Json {
                    return {{"name", cluster.device_name(id)}, {"kind", cluster.kind_of(id).name}};
                  })},
      {"paths", paths_between(cluster, ids)},
      {"samples", samples},
      {"operators", std::move(operators)}};
}

}  // namespace agpcs
