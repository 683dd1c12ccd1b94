// SPDX-License-Identifier: Apache-2.0
#include "ir/base/rng.h"
#include "runtime/torch/data/data.h"
#include "runtime/torch/data/input_uses.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

namespace agpcs {
namespace {

// Returns the input with one class label, or one yes or no, for each sample; kNone if there is no
// such input.
TensorId find_labels(const Graph& graph) {
  for (TensorId id : graph.inputs) {
    const Tensor& tensor = graph.tensor(id);
    const bool one = depends_on_batch(tensor.shape) && elements_at(tensor.shape, 1) == 1;
    if (one && is_floating(tensor.type) && is_binary_target(graph, id)) return id;
    if (tensor.shape.size() != 1 || is_floating(tensor.type)) continue;
    for (OpId consumer : tensor.consumers) {
      if (is_label_of(graph.op(consumer), id)) return id;
    }
  }
  return kNone;
}

class SyntheticData : public DataSource {
 public:
  SyntheticData(const Graph& graph, std::uint64_t seed)
      : graph_(graph), seed_(seed), labels_(find_labels(graph)) {
    for (TensorId id : graph.inputs) {
      const bool binary = is_floating(graph.tensor(id).type) && is_binary_target(graph, id);
      if (binary) binary_.insert(id);
      ranges_.emplace(id, binary ? 2 : range_of(graph, id));
      const bool several = elements_at(graph.tensor(id).shape, 1) > 1;
      if (several && (binary || !losses_of_labels(graph, id).empty())) uneven_.insert(id);
    }
  }

  Status fill(TensorId input, std::int64_t first, std::int64_t count, void* out) override {
    const Tensor& tensor = graph_.tensor(input);
    const bool batched = depends_on_batch(tensor.shape);
    const std::int64_t samples = batched ? count : 1;
    const std::int64_t per_sample = elements_at(tensor.shape, 1);
    auto* bytes = static_cast<std::byte*>(out);
    for (std::int64_t s = 0; s < samples; ++s) {
      fill_sample(input, static_cast<std::uint64_t>(batched ? first + s : 0), per_sample, bytes);
      bytes += static_cast<std::size_t>(per_sample) * size_of(tensor.type);
    }
    return {};
  }

 private:
  using Words = std::array<std::uint32_t, 4>;

  // Random words for one element of a sample: its own, its class's, and the one that chooses
  // between them.
  struct Draw {
    std::uint32_t own = 0, pattern = 0, chance = 0;
    bool has_class = false;
  };

  // Returns the class's words, one for each of equal parts of the sample: indices have a part for
  // each element. Floats have only 16 parts, because a coarse pattern survives pooling.
  std::vector<std::uint32_t> pattern_of(const Tensor& tensor, std::uint64_t label,
                                        std::int64_t elements) const {
    const std::uint64_t key = stable_hash(tensor.name + ".class", seed_);
    const std::int64_t areas =
        is_floating(tensor.type) ? std::min<std::int64_t>(16, elements) : elements;
    std::vector<std::uint32_t> words;
    for (std::uint64_t area = 0; area < static_cast<std::uint64_t>(areas); ++area) {
      words.push_back(philox(key, area / 4, label)[area % 4]);
    }
    return words;
  }

  void fill_sample(TensorId input, std::uint64_t sample, std::int64_t elements, std::byte* out) {
    const Tensor& tensor = graph_.tensor(input);
    const std::uint64_t key = stable_hash(tensor.name, seed_);
    const std::uint64_t chance_key = stable_hash(tensor.name + ".chance", seed_);
    const bool has_class = labels_ != kNone && input != labels_ && depends_on_batch(tensor.shape);
    const auto pattern = has_class ? patterns_for(input, class_of(sample), elements) : nullptr;
    const auto areas = has_class ? static_cast<std::int64_t>(pattern->size()) : 1;
    const bool draws_chance = has_class && !is_floating(tensor.type);
    const bool is_uneven = uneven_.count(input) != 0, is_binary = binary_.count(input) != 0;
    const std::int64_t range = ranges_.at(input);
    for (std::int64_t e = 0; e < elements; e += 4) {
      const auto block = static_cast<std::uint64_t>(e / 4);
      const Words own = philox(key, block, sample);
      const Words chance = draws_chance ? philox(chance_key, block, sample) : Words{};
      for (std::int64_t k = 0; k < std::min<std::int64_t>(4, elements - e); ++k) {
        const auto at = static_cast<std::size_t>(k);
        Draw draw{own[at], 0, chance[at], has_class};
        if (has_class) {
          draw.pattern = (*pattern)[static_cast<std::size_t>((e + k) * areas / elements)];
        }
        if (is_uneven) draw.own = uneven(draw.own);
        if (is_binary) {
          write_truth(tensor.type, scaled(draw.own, 2), out);
        } else {
          write(tensor.type, range, draw, out);
        }
        out += size_of(tensor.type);
      }
    }
  }

  const std::vector<std::uint32_t>* patterns_for(TensorId input, std::uint64_t label,
                                                 std::int64_t elements) {
    const std::lock_guard lock(patterns_mutex_);
    auto& words = patterns_[{input, label}];
    if (words.empty()) words = pattern_of(graph_.tensor(input), label, elements);
    return &words;
  }

  std::uint64_t class_of(std::uint64_t sample) const {
    const std::uint64_t key = stable_hash(graph_.tensor(labels_).name, seed_);
    return static_cast<std::uint64_t>(scaled(philox(key, 0, sample)[0], ranges_.at(labels_)));
  }

  // Returns a uniform number in [0, range), or 1 if there is no range.
  static std::int64_t scaled(std::uint32_t word, std::int64_t range) {
    if (range <= 0) return 1;
    return static_cast<std::int64_t>(
        (static_cast<std::uint64_t>(word) * static_cast<std::uint64_t>(range)) >> 32);
  }

  // Returns the cube of a uniform fraction: low values are likelier. Labels of many positions are
  // drawn so, because a model can learn how frequent they are.
  static std::uint32_t uneven(std::uint32_t word) {
    const auto square = (static_cast<std::uint64_t>(word) * word) >> 32;
    return static_cast<std::uint32_t>((square * word) >> 32);
  }

  // Writes 0 or 1 as a floating value.
  static void write_truth(DType type, std::int64_t truth, std::byte* out) {
    const auto value = static_cast<float>(truth);
    if (type == DType::kFp64) return put(static_cast<double>(value), out);
    if (type == DType::kFp16) return put(c10::Half(value), out);
    if (type == DType::kBf16) return put(c10::BFloat16(value), out);
    put(value, out);
  }

  // Returns a uniform number of mean 0 and variance 1.
  static double centred(std::uint32_t word) {
    return (static_cast<double>(word) / 2147483648.0 - 1.0) * std::sqrt(3.0);
  }

  static double real_of(const Draw& draw) {
    if (!draw.has_class) return centred(draw.own);
    return (centred(draw.own) + centred(draw.pattern)) * std::sqrt(0.5);
  }

  static std::int64_t integer_of(const Draw& draw, std::int64_t range) {
    const bool patterned = draw.has_class && draw.chance < (std::uint32_t{1} << 30);
    return scaled(patterned ? draw.pattern : draw.own, range);
  }

  static void write(DType type, std::int64_t range, const Draw& draw, std::byte* out) {
    const double real = is_floating(type) ? real_of(draw) : 0;
    const std::int64_t integer = is_floating(type) ? 0 : integer_of(draw, range);
    switch (type) {
      case DType::kFp64:
        return put(real, out);
      case DType::kFp16:
        return put(c10::Half(static_cast<float>(real)), out);
      case DType::kBf16:
        return put(c10::BFloat16(static_cast<float>(real)), out);
      case DType::kInt64:
        return put(integer, out);
      case DType::kInt32:
        return put(static_cast<std::int32_t>(integer), out);
      case DType::kInt16:
        return put(static_cast<std::int16_t>(integer), out);
      case DType::kInt8:
        return put(static_cast<std::int8_t>(integer), out);
      case DType::kUint8:
      case DType::kBool:
        return put(static_cast<std::uint8_t>(integer), out);
      case DType::kFp32:
        return put(static_cast<float>(real), out);
    }
  }

  template <typename T>
  static void put(T value, std::byte* out) {
    std::memcpy(out, &value, sizeof value);
  }

  const Graph& graph_;
  std::uint64_t seed_;
  TensorId labels_;
  std::map<TensorId, std::int64_t> ranges_;
  std::set<TensorId> binary_;  // targets that are 0 or 1
  std::set<TensorId> uneven_;  // labels and targets of which a sample has several
  std::mutex patterns_mutex_;
  std::map<std::pair<TensorId, std::uint64_t>, std::vector<std::uint32_t>>
      patterns_;  // by input and class
};

}  // namespace

std::unique_ptr<DataSource> make_synthetic_data(const Graph& graph, std::uint64_t seed) {
  return std::make_unique<SyntheticData>(graph, seed);
}

}  // namespace agpcs
