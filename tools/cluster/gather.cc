// SPDX-License-Identifier: Apache-2.0
#include "tools/cluster/gather.h"

#include "tools/common/json.h"

#include <agpcs/bootstrap.h>
#include <agpcs/version.h>

#include <fmt/format.h>

#include <memory>

namespace agpcs {
namespace {

Json json_of(const FoundGpu& gpu) {
  Json links = json_array(gpu.links, [](const FoundLink& link) {
    return Json{{"switch", link.to == FoundLink::To::kSwitch},
                {"target", link.target},
                {"count", link.count}};
  });
  return {{"bus", gpu.bus},           {"index", gpu.index},
          {"vendor", gpu.vendor},     {"device", gpu.device},
          {"name", gpu.name},         {"sm", gpu.sm},
          {"gfx", gpu.gfx},           {"processors", gpu.processors},
          {"memory", gpu.memory},     {"pcie", gpu.pcie},
          {"links", std::move(links)}};
}

FoundGpu gpu_of(const Json& json) {
  FoundGpu gpu;
  gpu.bus = json.at("bus").get<std::string>();
  gpu.index = json.at("index").get<int>();
  gpu.vendor = json.at("vendor").get<std::string>();
  gpu.device = json.at("device").get<std::string>();
  gpu.name = json.at("name").get<std::string>();
  gpu.sm = json.at("sm").get<int>();
  gpu.gfx = json.at("gfx").get<std::string>();
  gpu.processors = json.at("processors").get<int>();
  gpu.memory = json.at("memory").get<std::int64_t>();
  gpu.pcie = json.at("pcie").get<double>();
  for (const Json& link : json.at("links")) {
    gpu.links.push_back(
        {link.at("switch").get<bool>() ? FoundLink::To::kSwitch : FoundLink::To::kGpu,
         link.at("target").get<std::string>(), link.at("count").get<int>()});
  }
  return gpu;
}

FoundHost host_of(const Json& json) {
  FoundHost host;
  host.name = json.at("name").get<std::string>();
  for (const Json& gpu : json.at("gpus")) host.gpus.push_back(gpu_of(gpu));
  for (const Json& nic : json.at("nics")) {
    host.nics.push_back({nic.at("name").get<std::string>(), nic.at("infiniband").get<bool>(),
                         nic.at("rdma").get<bool>(), nic.at("bandwidth").get<double>()});
  }
  const Json& cpus = json.at("cpus");
  host.cpus = {cpus.at("cores").get<double>(), cpus.at("peak").get<double>(),
               cpus.at("bandwidth").get<double>(), cpus.at("memory").get<std::int64_t>()};
  for (const Json& note : json.at("notes")) host.notes.push_back(note.get<std::string>());
  return host;
}

std::string key_of(int rank) { return fmt::format("host {}", rank); }

}  // namespace

std::string print_host(const FoundHost& host) {
  const Json json = {
      {"name", host.name},
      {"gpus", json_array(host.gpus, json_of)},
      {"nics", json_array(host.nics,
                          [](const FoundNic& nic) {
                            return Json{{"name", nic.name},
                                        {"infiniband", nic.infiniband},
                                        {"rdma", nic.rdma},
                                        {"bandwidth", nic.bandwidth}};
                          })},
      {"cpus", Json{{"cores", host.cpus.cores},
                    {"peak", host.cpus.peak},
                    {"bandwidth", host.cpus.bandwidth},
                    {"memory", host.cpus.memory}}},
      {"notes", json_array(host.notes, [](const std::string& note) { return Json(note); })}};
  return json_line(json);
}

Result<FoundHost> parse_host(std::string_view text) {
  AGPCS_TRY(const Json json, parse_json(text, {"a host's report"}));
  try {
    return host_of(json);
  } catch (const Json::exception& exception) {
    return invalid_input(fmt::format("a host's report: error: {}", exception.what()));
  }
}

Result<std::vector<FoundHost>> gather_hosts(const RankPlace& place, std::chrono::milliseconds limit,
                                            const std::function<FoundHost()>& find,
                                            const MeasureHosts& measure) {
  BootstrapOptions options;
  options.rank = place.rank;
  options.size = place.size;
  options.address = place.address;
  options.port = place.port;
  options.token = place.token.empty() ? "one rank needs no secret" : place.token;
  options.identity = measure ? "agpcs-cluster discover --measure" : "agpcs-cluster discover";
  options.agreed = {{"AGPCS version", std::string(version())}};
  options.name = fmt::format("rank {}", place.rank);
  options.join_limit = limit;
  AGPCS_TRY(const std::unique_ptr<Bootstrap> bootstrap, Bootstrap::join(options));
  const bool reports = place.local_rank == 0;
  AGPCS_RETURN_IF_ERROR(bootstrap->set(key_of(place.rank), reports ? print_host(find()) : ""));
  std::vector<FoundHost> hosts;
  for (int rank = 0; place.rank == 0 && rank < place.size; ++rank) {
    AGPCS_TRY(const std::string text, bootstrap->get(key_of(rank), limit));
    if (text.empty()) continue;
    AGPCS_TRY(FoundHost host, parse_host(text));
    hosts.push_back(std::move(host));
  }
  if (measure) {
    if (const Status measured = measure(*bootstrap, hosts); !measured.ok()) {
      bootstrap->report(measured);
      return measured;
    }
  }
  AGPCS_RETURN_IF_ERROR(bootstrap->barrier("described", limit));
  return hosts;
}

}  // namespace agpcs
