// SPDX-License-Identifier: Apache-2.0
#include "ir/cluster/profile.h"

#include "ir/base/diagnostics.h"
#include "ir/plan/choices.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

// The software that no digest covers, so that profiles that do not name it keep their digests.
constexpr std::string_view kBlas = "blas";

// The key that a list is sorted by; all items of a list have different keys.
auto key_of(const std::string& text) { return std::string_view(text); }
auto key_of(std::int64_t number) { return number; }
auto key_of(const DeviceProfile& device) { return std::string_view(device.name); }
auto key_of(const MeasuredOperator& op) { return std::string_view(op.signature); }
auto key_of(const MeasuredOperator::Point& point) { return point.samples; }
auto key_of(const MeasuredMessages& messages) { return messages.bytes; }
auto key_of(const MeasuredUpdate& u) { return std::tie(u.optimizer, u.elements, u.tensors); }
auto key_of(const MeasuredPath& path) { return std::tie(path.from, path.to); }
auto key_of(const MeasuredCollective& c) { return std::tie(c.algorithm, c.devices); }

constexpr auto kByKey = [](const auto& a, const auto& b) { return key_of(a) < key_of(b); };

template <typename T>
void sort_by_key(std::vector<T>& list) {
  std::stable_sort(list.begin(), list.end(), kByKey);
}

template <typename T>
bool ascends(const std::vector<T>& list) {
  const auto not_before = [](const T& a, const T& b) { return !(key_of(a) < key_of(b)); };
  return std::adjacent_find(list.begin(), list.end(), not_before) == list.end();
}

std::string describe(const MeasuredOperator& op) {
  return fmt::format("operator {}", op.signature);
}

std::string describe(const MeasuredUpdate& update) {
  return fmt::format("update by {} of {} elements in {} tensors", update.optimizer, update.elements,
                     update.tensors);
}

std::string describe(const MeasuredPath& path) {
  return fmt::format("path from {} to {}", path.from, path.to);
}

std::string describe(const MeasuredCollective& collective) {
  return fmt::format("{} all-reduce over {}", name_of(collective.algorithm),
                     fmt::join(collective.devices, ", "));
}

// --- text --------------------------------------------------------------------------------------

void print_messages(const std::vector<MeasuredMessages>& points, std::string& text) {
  for (const MeasuredMessages& p : points) {
    fmt::format_to(Out(text), "messages bytes={} time={} spread={}\n", p.bytes, p.time.seconds,
                   p.time.spread);
  }
}

void print_operator(const MeasuredOperator& op, std::string& text) {
  fmt::format_to(Out(text), "operator {} {}\n", name_of(op.op_class), op.signature);
  for (const MeasuredOperator::Point& p : op.points) {
    fmt::format_to(Out(text), "point samples={} forward={} spread={} backward={} spread={}",
                   p.samples, p.forward.seconds, p.forward.spread, p.backward.seconds,
                   p.backward.spread);
    fmt::format_to(Out(text), " flops={},{} bytes={},{}\n", p.work.forward_flops,
                   p.work.backward_flops, p.work.forward_bytes, p.work.backward_bytes);
  }
}

void print_device(const DeviceProfile& device, std::string& text) {
  fmt::format_to(Out(text), "device {} precision={}\n", device.name, name_of(device.precision));
  for (const auto& [name, value] : device.hardware) {
    fmt::format_to(Out(text), "hardware {}={}\n", name, value);
  }
  for (const auto& [name, value] : device.software) {
    if (name == kBlas) continue;
    fmt::format_to(Out(text), "software {}={}\n", name, value);
  }
  for (const std::string& model : device.models) fmt::format_to(Out(text), "model {}\n", model);
  for (const std::int64_t members : device.teams) fmt::format_to(Out(text), "team {}\n", members);
  fmt::format_to(Out(text), "message-overhead {}\n", device.message_overhead);
  if (device.message_compute != 0) {
    fmt::format_to(Out(text), "message-compute {}\n", device.message_compute);
  }
  fmt::format_to(Out(text), "overlap {} {}\n", device.overlap.compute_seconds_per_byte,
                 device.overlap.communication_factor);
  for (const MeasuredUpdate& u : device.updates) {
    fmt::format_to(Out(text), "update {} elements={} tensors={} update={} spread={} begin={}",
                   u.optimizer, u.elements, u.tensors, u.update.seconds, u.update.spread,
                   u.begin.seconds);
    fmt::format_to(Out(text), " spread={}\n", u.begin.spread);
  }
  for (const MeasuredOperator& op : device.operators) print_operator(op, text);
  if (!device.probes.empty()) text += "probes\n";
  for (const MeasuredOperator& op : device.probes) print_operator(op, text);
}

// --- verify ------------------------------------------------------------------------------------

class ProfileVerifier {
 public:
  explicit ProfileVerifier(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  void verify(const Profile& profile) {
    check_order(profile.devices, "devices");
    check_order(profile.paths, "paths");
    check_order(profile.collectives, "collectives");
    for (const DeviceProfile& device : profile.devices) check_device(device);
    for (const MeasuredPath& path : profile.paths) {
      check_messages(path.points, describe(path));
      for (const std::string& link : path.links) check_text(link, describe(path));
      check_text(path.from + path.to, describe(path));
    }
    for (const MeasuredCollective& collective : profile.collectives) {
      check_messages(collective.points, describe(collective));
      for (const std::string& device : collective.devices) check_text(device, describe(collective));
    }
    const std::string digest = digest_of(print_measurements(profile));
    if (profile.digest != digest) {
      error(fmt::format("its digest is '{}', that of its measurements {}", profile.digest, digest));
    }
  }

 private:
  void error(const std::string& message) { diagnostics_.error({}, message); }

  template <typename T>
  void check_order(const std::vector<T>& list, const std::string& what) {
    if (!ascends(list)) error(fmt::format("{} are not sorted, or one is there twice", what));
  }

  void check_text(std::string_view text, const std::string& what) {
    const auto controls = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    if (std::any_of(text.begin(), text.end(), controls)) {
      error(fmt::format("{} has a line break or another control character in a text", what));
    }
  }

  void check_time(double seconds, const std::string& what) {
    if (!(seconds >= 0 && seconds < 3600)) {
      error(fmt::format("{} takes {} seconds", what, seconds));
    }
  }

  void check(const Measured& measured, const std::string& what) {
    check_time(measured.seconds, what);
    if (!std::isfinite(measured.spread) || measured.spread < 0) {
      error(fmt::format("{} has a spread of {}", what, measured.spread));
    }
  }

  void check_count(std::int64_t count, const std::string& noun, const std::string& what) {
    if (count < 1) error(fmt::format("{} has {} {}", what, count, noun));
  }

  void check_device(const DeviceProfile& device) {
    const std::string what = fmt::format("device '{}'", device.name);
    for (const auto& facts : {device.hardware, device.software}) {
      for (const auto& [name, value] : facts) check_text(name + value, what);
    }
    for (const std::string& model : device.models) check_text(model, what);
    check_text(device.name, what);
    check_order(device.models, fmt::format("models of {}", what));
    check_order(device.teams, fmt::format("teams of {}", what));
    for (const std::int64_t members : device.teams) {
      if (members < 2) error(fmt::format("{} has a team of {}", what, members));
    }
    check_order(device.operators, fmt::format("operators of {}", what));
    check_order(device.updates, fmt::format("updates of {}", what));
    check_order(device.probes, fmt::format("probes of {}", what));
    for (const auto* list : {&device.operators, &device.probes}) {
      for (const MeasuredOperator& op : *list) check_operator(op, what);
    }
    for (const MeasuredUpdate& update : device.updates) {
      check_count(update.elements, "elements", fmt::format("{}: {}", what, describe(update)));
      check_count(update.tensors, "tensors", fmt::format("{}: {}", what, describe(update)));
      check_text(update.optimizer, what);
      check(update.update, fmt::format("{}: {}", what, describe(update)));
      check(update.begin, fmt::format("{}: what comes before, {}", what, describe(update)));
    }
    check_time(device.message_overhead, fmt::format("a message of {}", what));
    check_time(device.message_compute, fmt::format("computing for a message of {}", what));
    check_time(device.overlap.compute_seconds_per_byte, fmt::format("a byte of {}", what));
    if (!std::isfinite(device.overlap.communication_factor) ||
        !(device.overlap.communication_factor > 0)) {
      error(fmt::format("{} has a communication factor of {}", what,
                        device.overlap.communication_factor));
    }
  }

  void check_operator(const MeasuredOperator& op, const std::string& device) {
    const std::string what = fmt::format("{}: {}", device, describe(op));
    check_text(op.signature, fmt::format("{}: an operator", device));
    check_order(op.points, fmt::format("{}: its points", what));
    for (const MeasuredOperator::Point& point : op.points) {
      check_count(point.samples, "samples", what);
      check(point.forward, what);
      check(point.backward, fmt::format("{}: its backward pass", what));
      for (const double work : {point.work.forward_flops, point.work.backward_flops,
                                point.work.forward_bytes, point.work.backward_bytes}) {
        if (!std::isfinite(work) || work < 0) error(fmt::format("{} does {} work", what, work));
      }
    }
  }

  void check_messages(const std::vector<MeasuredMessages>& points, const std::string& what) {
    check_order(points, fmt::format("{}: its points", what));
    for (const MeasuredMessages& point : points) {
      check_count(point.bytes, "bytes", what);
      check(point.time, what);
      if (point.time.seconds == 0) error(fmt::format("{} takes 0 seconds", what));
    }
  }

  Diagnostics& diagnostics_;
};

// --- merge -------------------------------------------------------------------------------------

Measured merged(const Measured& a, const Measured& b) {
  const double mean = (a.seconds + b.seconds) / 2;
  const double apart = mean > 0 ? std::abs(a.seconds - b.seconds) / mean : 0;
  return {mean, std::max({a.spread, b.spread, apart})};
}

/// Merges a figure. If one side has not measured it, the other side's value counts.
double merged(double a, double b, double not_measured) {
  if (a == not_measured) return b;
  return b == not_measured ? a : (a + b) / 2;
}

/// Adds to `into` the items that only `from` has; for items that both have, calls combine(ours,
/// theirs). Needs: both are sorted. `into` is not sorted afterwards.
template <typename T, typename Combine>
void merge_lists(std::vector<T>& into, const std::vector<T>& from, Combine combine) {
  const auto ours = static_cast<std::ptrdiff_t>(into.size());
  for (const T& item : from) {
    const auto end = into.begin() + ours;
    const auto at = std::lower_bound(into.begin(), end, item, kByKey);
    if (at != end && key_of(*at) == key_of(item)) {
      combine(*at, item);
    } else {
      into.push_back(item);
    }
  }
}

class ProfileMerger {
 public:
  ProfileMerger(const Profile& a, const Profile& b, Diagnostics& diagnostics)
      : file_a_(a.file), file_b_(b.file), diagnostics_(diagnostics) {}

  void merge(Profile& a, const Profile& b) {
    merge_lists(a.devices, b.devices, [&](auto& x, const auto& y) { merge(x, y); });
    merge_lists(a.paths, b.paths, [&](MeasuredPath& x, const MeasuredPath& y) {
      if (x.links != y.links) {
        return differ(describe(x), "is over other links",
                      fmt::format("{}", fmt::join(x.links, ", ")),
                      fmt::format("{}", fmt::join(y.links, ", ")));
      }
      merge(x.points, y.points);
    });
    merge_lists(a.collectives, b.collectives,
                [&](auto& x, const auto& y) { merge(x.points, y.points); });
  }

 private:
  using Facts = std::vector<std::pair<std::string, std::string>>;

  void differ(const std::string& what, const std::string& how, const std::string& in_a,
              const std::string& in_b, const std::string& hint = {}) {
    diagnostics_.error({}, fmt::format("{} {}: '{}', in {} '{}'", what, how, in_b, file_a_, in_a),
                       hint);
  }

  void merge(DeviceProfile& a, const DeviceProfile& b) {
    const std::string what = fmt::format("device '{}'", a.name);
    const std::string rename = "give one of the two another name";
    if (a.precision != b.precision) {
      return differ(what, "has another precision", std::string(name_of(a.precision)),
                    std::string(name_of(b.precision)), rename);
    }
    if (a.hardware != b.hardware) {
      return differ(what, "is other hardware", text_of(a.hardware), text_of(b.hardware), rename);
    }
    merge_software(a.software, b.software);
    merge_lists(a.models, b.models, [](auto&, const auto&) {});
    merge_lists(a.teams, b.teams, [](auto&, const auto&) {});
    merge_operators(a.operators, b.operators, what);
    merge_operators(a.probes, b.probes, what);
    merge_lists(a.updates, b.updates, [](MeasuredUpdate& x, const MeasuredUpdate& y) {
      x.update = merged(x.update, y.update);
      x.begin = merged(x.begin, y.begin);
    });
    a.message_overhead = merged(a.message_overhead, b.message_overhead, 0);
    a.message_compute = merged(a.message_compute, b.message_compute, 0);
    merge(a.overlap, b.overlap);
  }

  void merge_operators(std::vector<MeasuredOperator>& a, const std::vector<MeasuredOperator>& b,
                       const std::string& what) {
    merge_lists(a, b, [&](MeasuredOperator& x, const MeasuredOperator& y) {
      if (x.op_class != y.op_class) {
        return differ(what + ": " + describe(x), "is of another class",
                      std::string(name_of(x.op_class)), std::string(name_of(y.op_class)));
      }
      merge_lists(x.points, y.points, [](auto& p, const auto& q) {
        p.forward = merged(p.forward, q.forward);
        p.backward = merged(p.backward, q.backward);
      });
    });
  }

  static void merge(Overlap& a, const Overlap& b) {
    const Overlap none;
    a.compute_seconds_per_byte = merged(a.compute_seconds_per_byte, b.compute_seconds_per_byte,
                                        none.compute_seconds_per_byte);
    a.communication_factor =
        merged(a.communication_factor, b.communication_factor, none.communication_factor);
  }

  static void merge(std::vector<MeasuredMessages>& a, const std::vector<MeasuredMessages>& b) {
    merge_lists(a, b, [](auto& x, const auto& y) { x.time = merged(x.time, y.time); });
  }

  // Merges software: all versions are listed, "1.13.1, 2.0.0".
  static void merge_software(Facts& a, const Facts& b) {
    for (const auto& [name, value] : b) {
      const auto at = std::find_if(a.begin(), a.end(),
                                   [&name = name](const auto& fact) { return fact.first == name; });
      if (at == a.end()) {
        a.emplace_back(name, value);
      } else if ((", " + at->second + ", ").find(", " + value + ", ") == std::string::npos) {
        at->second += ", " + value;
      }
    }
  }

  static std::string text_of(const Facts& facts) {
    std::string text;
    for (const auto& [name, value] : facts) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", name, value);
    }
    return text;
  }

  std::string file_a_, file_b_;
  Diagnostics& diagnostics_;
};

}  // namespace

const DeviceProfile* Profile::find_device(std::string_view name) const {
  const auto found = std::find_if(devices.begin(), devices.end(),
                                  [&](const DeviceProfile& device) { return device.name == name; });
  return found == devices.end() ? nullptr : &*found;
}

std::string optimizer_name(const Optimizer& optimizer) {
  return std::string(variant_of(optimizer).name);
}

std::string print_measurements(const Profile& profile) {
  std::string text;
  for (const DeviceProfile& device : profile.devices) print_device(device, text);
  for (const MeasuredPath& path : profile.paths) {
    fmt::format_to(Out(text), "path from {} to {}\n", path.from, path.to);
    for (const std::string& link : path.links) fmt::format_to(Out(text), "link {}\n", link);
    print_messages(path.points, text);
  }
  for (const MeasuredCollective& collective : profile.collectives) {
    fmt::format_to(Out(text), "collective {}\n", name_of(collective.algorithm));
    for (const std::string& device : collective.devices) {
      fmt::format_to(Out(text), "member {}\n", device);
    }
    print_messages(collective.points, text);
  }
  return text;
}

void seal_profile(Profile& profile) {
  sort_by_key(profile.devices);
  for (DeviceProfile& device : profile.devices) {
    sort_by_key(device.models);
    sort_by_key(device.teams);
    sort_by_key(device.updates);
    for (auto* list : {&device.operators, &device.probes}) {
      sort_by_key(*list);
      for (MeasuredOperator& op : *list) sort_by_key(op.points);
    }
  }
  sort_by_key(profile.paths);
  for (MeasuredPath& path : profile.paths) sort_by_key(path.points);
  sort_by_key(profile.collectives);
  for (MeasuredCollective& collective : profile.collectives) sort_by_key(collective.points);
  profile.digest = digest_of(print_measurements(profile));
}

Status verify_profile(const Profile& profile) {
  Diagnostics diagnostics(profile.file.empty() ? "profile" : profile.file);
  ProfileVerifier(diagnostics).verify(profile);
  return diagnostics.status();
}

Result<Profile> merge_profiles(Profile a, const Profile& b) {
  Diagnostics diagnostics(b.file);
  ProfileMerger(a, b, diagnostics).merge(a, b);
  AGPCS_RETURN_IF_ERROR(diagnostics.status());
  seal_profile(a);
  return a;
}

}  // namespace agpcs
