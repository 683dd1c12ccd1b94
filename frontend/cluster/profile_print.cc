// SPDX-License-Identifier: Apache-2.0
// Writes a profile as YAML. profile_file.cc reads back every figure exactly.
#include "frontend/cluster/profile_file.h"
#include "frontend/cluster/units.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

bool is_alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Tells whether YAML reads the unquoted text as itself everywhere, also within [] and {}.
bool is_plain(std::string_view text) {
  if (text.empty() || !is_alphanumeric(text.front()) || text.back() == ' ') return false;
  for (const std::string_view null : {"null", "Null", "NULL"}) {
    if (text == null) return false;
  }
  return std::all_of(text.begin(), text.end(), [](char c) {
    return is_alphanumeric(c) || std::string_view(" _./+@()>-").find(c) != std::string_view::npos;
  });
}

std::string scalar(std::string_view text) {
  if (is_plain(text)) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

std::string list(const std::vector<std::string>& texts) {
  std::vector<std::string> scalars;
  for (const std::string& text : texts) scalars.push_back(scalar(text));
  return fmt::format("[{}]", fmt::join(scalars, ", "));
}

std::string map(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : facts) {
    entries.push_back(fmt::format("{}: {}", scalar(name), scalar(value)));
  }
  return fmt::format("{{{}}}", fmt::join(entries, ", "));
}

void print_operator(const MeasuredOperator& op, std::string& text) {
  fmt::format_to(Out(text), "      - operator: {}\n        class: {}\n        points:\n",
                 scalar(op.signature), name_of(op.op_class));
  for (const MeasuredOperator::Point& p : op.points) {
    fmt::format_to(Out(text), "          - {{samples: {}, forward: {}, forward_spread: {}, ",
                   p.samples, print_seconds(p.forward.seconds), p.forward.spread);
    if (p.backward.seconds != 0 || p.backward.spread != 0) {
      fmt::format_to(Out(text), "backward: {}, backward_spread: {}, ",
                     print_seconds(p.backward.seconds), p.backward.spread);
    }
    fmt::format_to(Out(text), "flops: [{}, {}], bytes: [{}, {}]}}\n", p.work.forward_flops,
                   p.work.backward_flops, p.work.forward_bytes, p.work.backward_bytes);
  }
}

void print_update(const MeasuredUpdate& u, std::string& text) {
  fmt::format_to(Out(text), "      - {{optimizer: {}, elements: {}, tensors: {}, ",
                 scalar(u.optimizer), u.elements, u.tensors);
  fmt::format_to(Out(text), "update: {}, update_spread: {}, begin: {}, begin_spread: {}}}\n",
                 print_seconds(u.update.seconds), u.update.spread, print_seconds(u.begin.seconds),
                 u.begin.spread);
}

void print_device(const DeviceProfile& device, std::string& text) {
  fmt::format_to(Out(text), "  {}:\n    hardware: {}\n    software: {}\n    precision: {}\n",
                 scalar(device.name), map(device.hardware), map(device.software),
                 name_of(device.precision));
  fmt::format_to(Out(text), "    models: {}\n", list(device.models));
  if (!device.teams.empty()) {
    fmt::format_to(Out(text), "    teams: [{}]\n", fmt::join(device.teams, ", "));
  }
  fmt::format_to(Out(text), "    message_overhead: {}\n", print_seconds(device.message_overhead));
  if (device.message_compute != 0) {
    fmt::format_to(Out(text), "    message_compute: {}\n", print_seconds(device.message_compute));
  }
  fmt::format_to(
      Out(text), "    overlap: {{compute_seconds_per_byte: {}, communication_factor: {}}}\n",
      print_seconds(device.overlap.compute_seconds_per_byte), device.overlap.communication_factor);
  if (!device.updates.empty()) text += "    updates:\n";
  for (const MeasuredUpdate& update : device.updates) print_update(update, text);
  if (!device.operators.empty()) text += "    operators:\n";
  for (const MeasuredOperator& op : device.operators) print_operator(op, text);
  if (!device.probes.empty()) text += "    probes:\n";
  for (const MeasuredOperator& op : device.probes) print_operator(op, text);
}

void print_messages(const std::vector<MeasuredMessages>& points, std::string& text) {
  text += "    points:\n";
  for (const MeasuredMessages& p : points) {
    fmt::format_to(Out(text), "      - {{bytes: {}, time: {}, spread: {}}}\n", p.bytes,
                   print_seconds(p.time.seconds), p.time.spread);
  }
}

}  // namespace

std::string print_profile(const Profile& profile) {
  std::string text = fmt::format("profile: {}\ndigest: {}\n", kProfileVersion, profile.digest);
  if (!profile.devices.empty()) text += "devices:\n";
  for (const DeviceProfile& device : profile.devices) print_device(device, text);
  if (!profile.paths.empty()) text += "paths:\n";
  for (const MeasuredPath& path : profile.paths) {
    fmt::format_to(Out(text), "  - from: {}\n    to: {}\n    links: {}\n", scalar(path.from),
                   scalar(path.to), list(path.links));
    print_messages(path.points, text);
  }
  if (!profile.collectives.empty()) text += "collectives:\n";
  for (const MeasuredCollective& collective : profile.collectives) {
    fmt::format_to(Out(text), "  - algorithm: {}\n    devices: {}\n", name_of(collective.algorithm),
                   list(collective.devices));
    print_messages(collective.points, text);
  }
  return text;
}

}  // namespace agpcs
