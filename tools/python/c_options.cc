// SPDX-License-Identifier: Apache-2.0
#include "tools/python/c_options.h"

#include "tools/common/json.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

/// Sets `to` and returns true if `json` is such a value.
template <typename T>
bool take(const Json& json, T& to) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) return false;
    to = json.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    const bool fits = std::is_unsigned_v<T> ? json.is_number_unsigned() : json.is_number_integer();
    if (!fits) return false;
    to = json.get<T>();
    return json == Json(to);
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number()) return false;
    to = json.get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) return false;
    to = json.get<std::string>();
  } else if constexpr (IsVector<T>::value) {
    if (!json.is_array()) return false;
    to.clear();
    for (const Json& element : json) {
      if (!take(element, to.emplace_back())) return false;
    }
  } else {  // a pair
    return json.is_array() && json.size() == 2 && take(json[0], to.first) &&
           take(json[1], to.second);
  }
  return true;
}

template <typename T>
bool take(const Json& json, std::optional<T>& to) {
  return take(json, to.emplace());
}

template <typename T>
const char* kind_of() {
  if constexpr (std::is_same_v<T, bool>) return "True or False";
  if constexpr (std::is_same_v<T, std::string>) return "a text";
  if constexpr (std::is_integral_v<T>) return "a whole number";
  if constexpr (std::is_floating_point_v<T>) return "a number";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "a list of names";
  return "names with numbers";
}
template <>
const char* kind_of<std::optional<std::int64_t>>() {
  return kind_of<std::int64_t>();
}

class Options {
 public:
  explicit Options(Json json) : json_(std::move(json)) {}

  /// Takes the option `name` out, if it is there.
  template <typename T>
  Options& read(const char* name, T& to) {
    const auto found = json_.find(name);
    if (found == json_.end()) return *this;
    if (status_.ok() && !take(*found, to)) {
      status_ = Status(StatusCode::kUsage,
                       fmt::format("{} is {}, not {}", name, json_line(*found), kind_of<T>()));
    }
    json_.erase(name);
    return *this;
  }

  /// Returns what went wrong. Needs: all known options are read.
  Status status() const {
    if (!status_.ok() || json_.empty()) return status_;
    return Status(StatusCode::kInternal, "unknown option " + json_.begin().key());
  }

 private:
  Json json_;
  Status status_;
};

}  // namespace

Result<CompileOptions> options_of_json(std::string_view text) {
  AGPCS_TRY(Json json, parse_json(text, {.name = "options"}));
  Options options(std::move(json));
  CompileOptions o;
  bool idle_ranks = false;
  options.read("model", o.model)
      .read("cluster", o.cluster)
      .read("dims", o.dims)
      .read("freeze", o.freeze)
      .read("train", o.train)
      .read("inference_graph", o.inference_graph)
      .read("slower", o.slower)
      .read("devices", o.devices)
      .read("batch", o.batch)
      .read("precision", o.precision)
      .read("attention", o.attention)
      .read("wire_type", o.wire_type)
      .read("loss", o.loss)
      .read("loss_outputs", o.loss_options.outputs)
      .read("ignore_index", o.loss_options.ignore_index)
      .read("label_smoothing", o.loss_options.label_smoothing)
      .read("class_axis", o.loss_options.class_axis)
      .read("next_token", o.loss_options.next_token)
      .read("seed", o.plan.seed)
      .read("seeders", o.plan.seeders)
      .read("layout", o.layout)
      .read("refiner", o.refiner)
      .read("policy", o.policy)
      .read("budget", o.plan.budget)
      .read("all_reduce", o.all_reduce)
      .read("without", o.without)
      .read("cut_at", o.cut_at)
      .read("bound", o.plan.bound)
      .read("threads", o.plan.threads)
      .read("micro_batches", o.problem.micro_batches)
      .read("bucket_bytes", o.problem.bucket_bytes)
      .read("idle_ranks", idle_ranks);
  if (idle_ranks) o.problem.ranks = Ranks::kAll;
  AGPCS_RETURN_IF_ERROR(options.status());
  return o;
}

}  // namespace agpcs
