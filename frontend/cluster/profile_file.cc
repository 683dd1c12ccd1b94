// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/profile_file.h"

#include "frontend/cluster/training.h"
#include "frontend/cluster/yaml.h"
#include "ir/graph/op_table.h"
#include "ir/plan/choices.h"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace agpcs {
namespace {

constexpr FileKind kProfileFile = {"profile", "docs/reference/profile_yaml.md"};
constexpr std::int64_t kMost = std::int64_t{1} << 60;
constexpr char kWhatProfilesAre[] = "a profile starts with 'profile: 1'; agpcs-profile writes it";

const std::vector<std::string>& class_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int i = 0; i < kOpClassCount; ++i) all.emplace_back(name_of(static_cast<OpClass>(i)));
    return all;
  }();
  return names;
}

const std::vector<std::string>& algorithm_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const AllReduce algorithm : kAllReduces) all.emplace_back(name_of(algorithm));
    return all;
  }();
  return names;
}

/// Reads the whole file. Errors go to `diagnostics`, and reading goes on.
class ProfileReader {
 public:
  ProfileReader(Diagnostics& diagnostics, bool sealed)
      : diagnostics_(diagnostics), sealed_(sealed) {}

  Profile read(const YAML::Node& root) {
    Profile profile;
    if (!is_profile(root)) return profile;
    const YamlMap map(root, "profile", {"profile", "digest", "devices", "paths", "collectives"},
                      diagnostics_);
    if (const YAML::Node* devices = map.find("devices")) {
      const YamlMap by_name(*devices, "devices", {}, diagnostics_);
      for (const YamlMap::Entry& entry : by_name.entries()) {
        profile.devices.push_back(read_device(entry));
      }
    }
    Seen paths, collectives;
    each(map, "paths", [&](const YAML::Node& node) { read_path(node, paths, profile.paths); });
    each(map, "collectives",
         [&](const YAML::Node& node) { read_collective(node, collectives, profile.collectives); });
    if (diagnostics_.ok() && profile.devices.empty() && profile.paths.empty() &&
        profile.collectives.empty()) {
      diagnostics_.error(map.where(), "the profile has no devices, paths or collectives");
    }
    seal_profile(profile);
    if (sealed_) check_digest(map, profile);
    return profile;
  }

 private:
  /// The items read so far, each with its line.
  using Seen = std::map<std::string, int>;

  bool is_profile(const YAML::Node& root) {
    if (!root.IsMap()) {
      diagnostics_.error(range_of(root), fmt::format("a profile is a map, not {}", describe(root)),
                         kWhatProfilesAre);
      return false;
    }
    if (root["device_kinds"] || root["hosts"]) {
      diagnostics_.error(range_of(root), "this is a cluster file, not a profile", kWhatProfilesAre);
      return false;
    }
    const YAML::Node version = root["profile"];
    if (!version) {
      diagnostics_.error(range_of(root), "this is no profile: it has no 'profile'",
                         kWhatProfilesAre);
      return false;
    }
    if (version.IsScalar() && version.Scalar() == std::to_string(kProfileVersion)) return true;
    diagnostics_.error(range_of(version),
                       fmt::format("profiles of version {} cannot be read", describe(version)),
                       fmt::format("this program reads version {}", kProfileVersion));
    return false;
  }

  void check_digest(const YamlMap& map, const Profile& profile) {
    map.require("digest");
    const std::optional<std::string> digest = text(map, "digest");
    if (!digest || !diagnostics_.ok() || *digest == profile.digest) return;
    diagnostics_.error(
        range_of(*map.find("digest")),
        fmt::format("the digest is {}, but that of the measurements is {}", *digest,
                    profile.digest),
        "measurements were changed after they were written: measure again, or restore the file");
  }

  // Calls read(item) for each item of a list.
  template <typename Read>
  void each(const YamlMap& map, const char* key, Read read) {
    const YAML::Node* const node = map.find(key);
    if (node == nullptr) return;
    if (!node->IsSequence()) {
      return diagnostics_.error(range_of(*node), fmt::format("'{}' of {} must be a list, is {}",
                                                             key, map.what(), describe(*node)));
    }
    for (const YAML::Node& item : *node) read(item);
  }

  bool is_new(Seen& seen, const std::string& what, const YAML::Node& node,
              const std::string& where) {
    const auto [first, added] = seen.emplace(what, node.Mark().line + 1);
    if (added) return true;
    diagnostics_.error(range_of(node), fmt::format("{} is twice in {}", what, where),
                       fmt::format("first in line {}", first->second));
    return false;
  }

  // Returns a text, which may have blanks. Returns nullopt after an error or if the key is absent.
  std::optional<std::string> text(const YamlMap& map, const char* key) {
    const YAML::Node* const node = map.find(key);
    if (node == nullptr) return std::nullopt;
    if (node->IsScalar()) return node->Scalar();
    diagnostics_.error(range_of(*node), fmt::format("'{}' of {} must be a text, is {}", key,
                                                    map.what(), describe(*node)));
    return std::nullopt;
  }

  std::string required_text(const YamlMap& map, const char* key) {
    map.require(key);
    return text(map, key).value_or("");
  }

  std::int64_t required_integer(const YamlMap& map, const char* key) {
    map.require(key);
    return map.integer(key, 1, kMost).value_or(1);
  }

  std::vector<std::string> texts(const YamlMap& map, const char* key) {
    std::vector<std::string> all;
    each(map, key, [&](const YAML::Node& node) {
      if (node.IsScalar()) return all.push_back(node.Scalar());
      diagnostics_.error(range_of(node), fmt::format("'{}' of {} must have texts, not {}", key,
                                                     map.what(), describe(node)));
    });
    return all;
  }

  std::vector<std::int64_t> read_teams(const YamlMap& map) {
    std::vector<std::int64_t> all;
    each(map, "teams", [&](const YAML::Node& node) {
      std::int64_t members = 0;
      const bool good = node.IsScalar() && YAML::convert<std::int64_t>::decode(node, members) &&
                        members >= 2 && members <= kMost;
      if (good) return all.push_back(members);
      diagnostics_.error(range_of(node),
                         fmt::format("'teams' of {} must have numbers of members, not {}",
                                     map.what(), describe(node)),
                         "a team has two members at least");
    });
    return all;
  }

  Measured measured(const YamlMap& map, const char* time, const char* spread, Sign sign) {
    map.require(time);
    map.require(spread);
    return {map.quantity(time, QuantityKind::kSeconds, sign).value_or(0),
            map.number(spread, Sign::kNotNegative).value_or(0)};
  }

  DeviceProfile read_device(const YamlMap::Entry& entry) {
    if (!is_name(entry.key)) {
      diagnostics_.error(range_of(entry.key_node),
                         fmt::format("'{}' is no name for a device kind", entry.key),
                         "a name has letters, digits, '_', '.' and '-'");
    }
    DeviceProfile device;
    device.name = entry.key;
    const YamlMap map(entry.value, fmt::format("device '{}'", entry.key),
                      {"hardware", "software", "precision", "models", "teams", "message_overhead",
                       "message_compute", "overlap", "updates", "operators", "probes"},
                      diagnostics_);
    if (!entry.value.IsMap()) return device;
    device.hardware = read_facts(map, "hardware");
    device.software = read_facts(map, "software");
    map.require("precision");
    device.precision = map.choice_of(kPrecisions, "precision", "precision", "precisions")
                           .value_or(device.precision);
    device.models = texts(map, "models");
    device.teams = read_teams(map);
    device.message_overhead =
        map.quantity("message_overhead", QuantityKind::kSeconds, Sign::kNotNegative).value_or(0);
    device.message_compute =
        map.quantity("message_compute", QuantityKind::kSeconds, Sign::kNotNegative).value_or(0);
    if (const YAML::Node* overlap = map.find("overlap")) {
      device.overlap = read_overlap(*overlap, map.what());
    }
    Seen updates, operators, probes;
    each(map, "updates",
         [&](const YAML::Node& node) { read_update(node, map.what(), updates, device.updates); });
    each(map, "operators", [&](const YAML::Node& node) {
      read_operator(node, map.what(), operators, device.operators);
    });
    each(map, "probes", [&](const YAML::Node& node) {
      read_operator(node, fmt::format("the probes of {}", map.what()), probes, device.probes);
    });
    return device;
  }

  std::vector<std::pair<std::string, std::string>> read_facts(const YamlMap& device,
                                                              const char* key) {
    std::vector<std::pair<std::string, std::string>> facts;
    const YAML::Node* const node = device.find(key);
    if (node == nullptr) return facts;
    const YamlMap map(*node, fmt::format("{} of {}", key, device.what()), {}, diagnostics_);
    for (const YamlMap::Entry& entry : map.entries()) {
      facts.emplace_back(entry.key, required_text(map, entry.key.c_str()));
    }
    return facts;
  }

  Overlap read_overlap(const YAML::Node& node, const std::string& device) {
    const YamlMap map(node, fmt::format("overlap of {}", device),
                      {"compute_seconds_per_byte", "communication_factor"}, diagnostics_);
    Overlap overlap;
    overlap.compute_seconds_per_byte =
        map.quantity("compute_seconds_per_byte", QuantityKind::kSeconds, Sign::kNotNegative)
            .value_or(overlap.compute_seconds_per_byte);
    overlap.communication_factor =
        map.number("communication_factor", Sign::kPositive).value_or(overlap.communication_factor);
    return overlap;
  }

  void read_update(const YAML::Node& node, const std::string& device, Seen& seen,
                   std::vector<MeasuredUpdate>& updates) {
    const YamlMap map(
        node, fmt::format("an update of {}", device),
        {"optimizer", "elements", "tensors", "update", "update_spread", "begin", "begin_spread"},
        diagnostics_);
    if (!node.IsMap()) return;
    MeasuredUpdate update;
    map.require("optimizer");
    update.optimizer =
        map.choice("optimizer", "optimizer", "optimizers", names_in(kOptimizerVariants))
            .value_or("");
    update.elements = required_integer(map, "elements");
    update.tensors = required_integer(map, "tensors");
    update.update = measured(map, "update", "update_spread", Sign::kNotNegative);
    update.begin = measured(map, "begin", "begin_spread", Sign::kNotNegative);
    const std::string what = fmt::format("'{}' of {} elements in {} tensors", update.optimizer,
                                         update.elements, update.tensors);
    if (is_new(seen, what, node, fmt::format("updates of {}", device))) updates.push_back(update);
  }

  void read_operator(const YAML::Node& node, const std::string& device, Seen& seen,
                     std::vector<MeasuredOperator>& operators) {
    const YamlMap map(node, fmt::format("an operator of {}", device),
                      {"operator", "class", "points"}, diagnostics_);
    if (!node.IsMap()) return;
    MeasuredOperator op;
    op.signature = required_text(map, "operator");
    map.require("class");
    const std::optional<std::string> name =
        map.choice("class", "operator class", "classes", class_names());
    for (int i = 0; i < kOpClassCount; ++i) {
      if (name == name_of(static_cast<OpClass>(i))) op.op_class = static_cast<OpClass>(i);
    }
    // Names the type alone: the message's line says which operator it is, and a signature fills a
    // line of its own.
    const std::string what = fmt::format(
        "'{}'", op.signature.substr(0, std::min<std::size_t>(op.signature.find('('), 80)));
    Seen samples;
    each_point(map, what,
               [&](const YAML::Node& point) { read_point(point, what, samples, op.points); });
    if (is_new(seen, fmt::format("operator '{}'", op.signature), node, device)) {
      operators.push_back(std::move(op));
    }
  }

  // Calls read(point) for each measured point. There must be at least one.
  template <typename Read>
  void each_point(const YamlMap& map, const std::string& what, Read read) {
    const YAML::Node* const points = map.require("points");
    if (points != nullptr && points->IsSequence() && points->size() == 0) {
      diagnostics_.error(range_of(*points), fmt::format("{} has no points", what));
    }
    each(map, "points", read);
  }

  void read_point(const YAML::Node& node, const std::string& op, Seen& seen,
                  std::vector<MeasuredOperator::Point>& points) {
    const YamlMap map(
        node, fmt::format("a point of {}", op),
        {"samples", "forward", "forward_spread", "backward", "backward_spread", "flops", "bytes"},
        diagnostics_);
    if (!node.IsMap()) return;
    MeasuredOperator::Point point;
    point.samples = required_integer(map, "samples");
    point.forward = measured(map, "forward", "forward_spread", Sign::kNotNegative);
    if (map.find("backward") != nullptr || map.find("backward_spread") != nullptr) {
      point.backward = measured(map, "backward", "backward_spread", Sign::kNotNegative);
    }
    read_pair(map, "flops", point.work.forward_flops, point.work.backward_flops);
    read_pair(map, "bytes", point.work.forward_bytes, point.work.backward_bytes);
    if (!is_new(seen, fmt::format("samples: {}", point.samples), node, op)) return;
    points.push_back(point);
  }

  void read_pair(const YamlMap& map, const char* key, double& forward, double& backward) {
    const YAML::Node* const node = map.require(key);
    if (node == nullptr) return;
    const bool two = node->IsSequence() && node->size() == 2;
    if (two && read_work((*node)[0], forward) && read_work((*node)[1], backward)) return;
    diagnostics_.error(
        range_of(*node),
        fmt::format("'{}' of {} must be two numbers that are not negative: forward, backward", key,
                    map.what()));
  }

  static bool read_work(const YAML::Node& node, double& work) {
    return node.IsScalar() && parse_number(node.Scalar(), work) && work >= 0;
  }

  std::vector<MeasuredMessages> read_messages(const YamlMap& map) {
    std::vector<MeasuredMessages> all;
    Seen seen;
    each_point(map, map.what(), [&](const YAML::Node& node) {
      const YamlMap point(node, fmt::format("a point of {}", map.what()),
                          {"bytes", "time", "spread"}, diagnostics_);
      if (!node.IsMap()) return;
      const std::int64_t bytes = required_integer(point, "bytes");
      const Measured time = measured(point, "time", "spread", Sign::kPositive);
      if (is_new(seen, fmt::format("bytes: {}", bytes), node, map.what())) {
        all.push_back({bytes, time});
      }
    });
    return all;
  }

  void read_path(const YAML::Node& node, Seen& seen, std::vector<MeasuredPath>& paths) {
    const YamlMap map(node, "a path", {"from", "to", "links", "points"}, diagnostics_);
    if (!node.IsMap()) return;
    map.require("links");
    MeasuredPath path = {required_text(map, "from"), required_text(map, "to"), texts(map, "links"),
                         read_messages(map)};
    const std::string what = fmt::format("the path from '{}' to '{}'", path.from, path.to);
    if (is_new(seen, what, node, "paths")) paths.push_back(std::move(path));
  }

  void read_collective(const YAML::Node& node, Seen& seen,
                       std::vector<MeasuredCollective>& collectives) {
    const YamlMap map(node, "a collective", {"algorithm", "devices", "points"}, diagnostics_);
    if (!node.IsMap()) return;
    map.require("algorithm");
    map.require("devices");
    const std::optional<std::string> name =
        map.choice("algorithm", "algorithm", "algorithms", algorithm_names());
    MeasuredCollective collective = {all_reduce_named(name.value_or("")).value_or(AllReduce::kRing),
                                     texts(map, "devices"), read_messages(map)};
    if (collective.devices.size() < 2 && map.find("devices") != nullptr) {
      diagnostics_.error(range_of(*map.find("devices")), "an all-reduce has at least two devices");
    }
    const std::string what = fmt::format("a {} all-reduce over {}", name.value_or("?"),
                                         fmt::join(collective.devices, ", "));
    if (is_new(seen, what, node, "collectives")) collectives.push_back(std::move(collective));
  }

  Diagnostics& diagnostics_;
  bool sealed_;
};

Result<Profile> parse(std::string_view text, const std::string& file, bool sealed) {
  const std::string source(text);
  Diagnostics diagnostics(file, source);
  Profile profile;
  try {
    if (const auto root = load_yaml(source, kProfileFile, diagnostics)) {
      profile = ProfileReader(diagnostics, sealed).read(*root);
    }
  } catch (const YAML::Exception& exception) {
    return internal_error(fmt::format("{}: yaml-cpp: {}", file, exception.what()));
  }
  AGPCS_RETURN_IF_ERROR(diagnostics.status());
  profile.file = file;
  AGPCS_RETURN_IF_ERROR(verify_profile(profile));
  return profile;
}

}  // namespace

Result<Profile> parse_profile(std::string_view text, const std::string& file) {
  return parse(text, file, true);
}

Result<Profile> seal_profile_text(std::string_view text, const std::string& file) {
  return parse(text, file, false);
}

Result<Profile> read_profile(const std::string& path) {
  AGPCS_TRY(const std::string text, read_text(path, kProfileFile));
  return parse_profile(text, path);
}

}  // namespace agpcs
