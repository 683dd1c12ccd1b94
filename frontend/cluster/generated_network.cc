// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/generated_network.h"

#include "ir/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

// The separators around the error in a status of `make_topology`.
constexpr std::string_view kError = ": error: ", kHint = "\n  hint: ";

const TopologyFamily& family_of(std::string_view name) {
  const auto& families = topology_families();
  const auto found = std::find_if(families.begin(), families.end(),
                                  [&](const auto& family) { return family.name == name; });
  AGPCS_CHECK(found != families.end(), "no family '{}'", name);
  return *found;
}

/// Returns "a", "b", "c" for "a,b[,c]".
std::vector<std::string> parameters_of(const TopologyFamily& family) {
  std::vector<std::string> names(1);
  for (const char c : family.parameters) {
    if (c == ',') names.emplace_back();
    if (c != ',' && c != '[' && c != ']') names.back() += c;
  }
  return names;
}

/// A topology as `make_topology` reads it ("bcube:4,1,seed=3") and as a message names it ("bcube of
/// n 4, k 1").
struct Request {
  std::string spec, text;
};

std::optional<Request> read_request(const YamlMap& map, const TopologyFamily& family,
                                    std::size_t hosts) {
  std::vector<std::string> words, texts;
  const std::vector<std::string> names = parameters_of(family);
  bool ok = true;
  std::size_t given = names.size();  // one past the last parameter given
  while (given > static_cast<std::size_t>(family.least) && map.find(names[given - 1]) == nullptr) {
    --given;
  }
  for (std::size_t i = 0; i < given; ++i) {
    const bool implied = names[i] == "servers" && map.find(names[i]) == nullptr;
    if (!implied && map.require(names[i]) == nullptr) ok = false;
    const auto value = implied ? std::optional(static_cast<std::int64_t>(hosts))
                               : map.integer(names[i], 1, kMaxServers);
    ok = ok && value.has_value();
    words.push_back(fmt::format("{}", value.value_or(1)));
    if (!implied) texts.push_back(fmt::format("{} {}", names[i], words.back()));
  }
  for (const char* option : {"links", "seed"}) {
    if (map.find(option) == nullptr) continue;
    const auto value = map.integer(option, 0, std::int64_t{1} << 53);
    ok = ok && value.has_value();
    words.push_back(fmt::format("{}={}", option, value.value_or(0)));
    texts.push_back(fmt::format("{} {}", option, value.value_or(0)));
  }
  if (map.find("fail") != nullptr) {
    const auto value = map.number("fail", Sign::kNotNegative);
    ok = ok && value.has_value();
    words.push_back(fmt::format("fail={}", value.value_or(0)));
  }
  if (!ok) return std::nullopt;
  const std::string of = texts.empty() ? "" : " of ";
  return Request{fmt::format("{}:{}", family.name, fmt::join(words, ",")),
                 fmt::format("{}{}{}", family.name, of, fmt::join(texts, ", "))};
}

/// Reports an error of `make_topology`, "topology 'SPEC': error: WHAT\n  hint: HINT", at its place
/// in the file.
void report(const Status& status, const Request& request, const YamlMap& map,
            Diagnostics& diagnostics) {
  std::string_view text = status.message();
  std::string hint;
  if (const std::size_t at = text.find(kHint); at != std::string_view::npos) {
    hint = text.substr(at + kHint.size());
    text = text.substr(0, at);
  }
  if (const std::size_t at = text.find(kError); at != std::string_view::npos) {
    text = text.substr(at + kError.size());
  }
  diagnostics.error(map.where(), fmt::format("no {}: {}", request.text, text), hint);
}

}  // namespace

std::vector<std::string> network_families() {
  std::vector<std::string> names;
  for (const TopologyFamily& family : topology_families()) {
    if (family.name != "switch" && family.name != "dgx") names.emplace_back(family.name);
  }
  return names;
}

std::vector<std::string> network_keys(std::string_view family) {
  std::vector<std::string> keys = {"topology"};
  for (std::string& name : parameters_of(family_of(family))) keys.push_back(std::move(name));
  if (family == "jellyfish") keys.emplace_back("links");
  for (const char* key : {"seed", "fail", "bandwidth", "latency", "kind", "profile"}) {
    keys.emplace_back(key);
  }
  return keys;
}

std::optional<Topology> read_generated_network(const YamlMap& map, std::string_view family,
                                               const std::vector<std::string>& hosts,
                                               Diagnostics& diagnostics) {
  const TopologyFamily& of = family_of(family);
  const std::optional<Request> request = read_request(map, of, hosts.size());
  if (!request) return std::nullopt;
  Result<Topology> topology = make_topology(request->spec);
  if (!topology.ok()) {
    report(topology.status(), *request, map, diagnostics);
    return std::nullopt;
  }
  if (static_cast<std::size_t>(topology->servers) != hosts.size()) {
    diagnostics.error(map.where(),
                      fmt::format("{} has {} servers, but the cluster has {} host{}", request->text,
                                  topology->servers, hosts.size(), hosts.size() == 1 ? "" : "s"),
                      fmt::format("each host is a server, in the order of the file; {}", of.help));
    return std::nullopt;
  }
  bool ok = true;
  for (int node = topology->servers; node < topology->nodes(); ++node) {
    if (std::find(hosts.begin(), hosts.end(), topology->name_of(node)) == hosts.end()) continue;
    diagnostics.error(
        map.where(),
        fmt::format("host '{}' has the name of a switch of the network", topology->name_of(node)),
        "switches are w0, w1, ...; give the host another name");
    ok = false;
  }
  if (!ok) return std::nullopt;
  std::copy(hosts.begin(), hosts.end(), topology->node_names.begin());
  return std::move(*topology);
}

}  // namespace agpcs
