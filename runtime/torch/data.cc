// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/data.h"

#include "ir/base/diagnostics.h"
#include "ir/base/rng.h"
#include "runtime/torch/npy.h"
#include "runtime/torch/ops/ops.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

namespace agpcs {
namespace {

bool passes_indices_through(const std::string& type) {
  static const std::set<std::string> kTypes = {"Cast",    "Unsqueeze", "Squeeze",  "Reshape",
                                               "Flatten", "Transpose", "Identity", "Slice",
                                               "Expand",  "Pad"};
  return kTypes.count(type) != 0;
}

// Returns how many values an integer input may take: the least over its uses as indices of an
// embedding and as labels of a loss. 0: no use limits it.
std::int64_t range_of(const Graph& graph, TensorId id) {
  std::int64_t range = 0;
  const auto narrow = [&range](std::int64_t bound) {
    if (bound > 0) range = range == 0 ? bound : std::min(range, bound);
  };
  for (OpId consumer : graph.tensor(id).consumers) {
    const Op& op = graph.op(consumer);
    const bool second = op.inputs.size() > 1 && op.inputs[1] == id;
    if (op.type == "Gather" && second) {
      const Shape& shape = graph.tensor(op.inputs[0]).shape;
      const std::int64_t axis = op.int_attribute("axis", 0);
      narrow(shape[static_cast<std::size_t>(
                       axis < 0 ? axis + static_cast<std::int64_t>(shape.size()) : axis)]
                 .fixed);
    } else if ((op.type == "SoftmaxCrossEntropyLoss" || op.type == "NegativeLogLikelihoodLoss") &&
               second) {
      narrow(graph.tensor(op.inputs[0]).shape[1].fixed);
    } else if (op.type == "OneHot" && op.inputs[0] == id) {
      narrow(graph.tensor(op.outputs[0]).shape.back().fixed);
    } else if (passes_indices_through(op.type) && op.inputs[0] == id) {
      narrow(range_of(graph, op.outputs[0]));
    }
  }
  return range;
}

bool is_label_of(const Op& op, TensorId id) {
  return (op.type == "SoftmaxCrossEntropyLoss" || op.type == "NegativeLogLikelihoodLoss") &&
         op.inputs[1] == id;
}

// Returns the losses that take the values of `id` as labels, as they are or in another arrangement.
std::vector<OpId> losses_of_labels(const Graph& graph, TensorId id) {
  std::vector<OpId> losses;
  for (const OpId consumer : graph.tensor(id).consumers) {
    const Op& op = graph.op(consumer);
    if (is_label_of(op, id)) losses.push_back(consumer);
    if (!passes_indices_through(op.type) || op.inputs[0] != id) continue;
    const std::vector<OpId> later = losses_of_labels(graph, op.outputs[0]);
    losses.insert(losses.end(), later.begin(), later.end());
  }
  return losses;
}

// Returns true for the targets y of a binary cross entropy, softplus(x) - x y.
bool is_binary_target(const Graph& graph, TensorId id) {
  const auto follows = [&](TensorId of, const char* type, TensorId with) {
    const auto& consumers = graph.tensor(of).consumers;
    const auto found = std::find_if(consumers.begin(), consumers.end(), [&](OpId c) {
      const Op& op = graph.op(c);
      return op.type == type && (with == kNone || op.inputs[0] == with);
    });
    return found == consumers.end() ? kNone : *found;
  };
  for (const OpId consumer : graph.tensor(id).consumers) {
    const Op& product = graph.op(consumer);
    if (product.type != "Mul" || product.inputs[1] != id) continue;
    const OpId softplus = follows(product.inputs[0], "Softplus", kNone);
    if (softplus == kNone) continue;
    if (follows(product.outputs[0], "Sub", graph.op(softplus).outputs[0]) != kNone) return true;
  }
  return false;
}

// Returns a label, which is an int32 or an int64.
std::int64_t label_at(DType type, const std::byte* labels, std::int64_t index) {
  const auto value_of = [&](auto value) -> std::int64_t {
    std::memcpy(&value, labels + static_cast<std::size_t>(index) * sizeof value, sizeof value);
    return value;
  };
  return type == DType::kInt32 ? value_of(std::int32_t{}) : value_of(std::int64_t{});
}

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
    for (std::int64_t e = 0; e < elements; e += 4) {
      const auto block = static_cast<std::uint64_t>(e / 4);
      const Words own = philox(key, block, sample);
      const Words chance =
          has_class && !is_floating(tensor.type) ? philox(chance_key, block, sample) : Words{};
      for (std::int64_t k = 0; k < std::min<std::int64_t>(4, elements - e); ++k) {
        const auto at = static_cast<std::size_t>(k);
        Draw draw{own[at], 0, chance[at], has_class};
        if (has_class) {
          const auto areas = static_cast<std::int64_t>(pattern->size());
          draw.pattern = (*pattern)[static_cast<std::size_t>((e + k) * areas / elements)];
        }
        if (uneven_.count(input) != 0) draw.own = uneven(draw.own);
        if (binary_.count(input) != 0) {
          write_truth(tensor.type, scaled(draw.own, 2), out);
        } else {
          write(tensor.type, ranges_.at(input), draw, out);
        }
        out += size_of(tensor.type);
      }
    }
  }

  const std::vector<std::uint32_t>* patterns_for(TensorId input, std::uint64_t label,
                                                 std::int64_t elements) {
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
  std::map<std::pair<TensorId, std::uint64_t>, std::vector<std::uint32_t>>
      patterns_;  // by input and class
};

class NpyData : public DataSource {
 public:
  NpyData(const Graph& graph, std::uint64_t seed, SampleOrder order)
      : graph_(graph), rest_(graph, seed), order_(std::move(order)) {}

  Status add(const std::string& input, const std::string& path) {
    if (input.empty()) return add_archive(path);
    AGPCS_TRY(const TensorId id, find_input(input));
    AGPCS_TRY(NpyFile file, NpyFile::open(path));
    return add(id, std::move(file));
  }

  Status fill(TensorId input, std::int64_t first, std::int64_t count, void* out) override {
    const auto found = files_.find(input);
    if (found == files_.end()) return rest_.fill(input, first, count, out);
    const NpyFile& file = found->second;
    if (!depends_on_batch(graph_.tensor(input).shape)) return file.read_rows(0, file.rows(), out);
    auto* bytes = static_cast<std::byte*>(out);
    while (count > 0) {
      const std::int64_t row = order_.row(first, file.rows());
      const std::int64_t run =
          order_.is_shuffled() ? 1 : std::min(count, file.rows() - row);  // rows of one read
      AGPCS_RETURN_IF_ERROR(file.read_rows(row, run, bytes));
      AGPCS_RETURN_IF_ERROR(check_labels(input, file, row, run, bytes));
      bytes += static_cast<std::size_t>(run) * file.row_bytes();
      first += run;
      count -= run;
    }
    return {};
  }

 private:
  Status add(TensorId id, NpyFile file) {
    const Tensor& tensor = graph_.tensor(id);
    std::vector<std::int64_t> expected = dims_at(tensor.shape, 1);
    std::vector<std::int64_t> found = file.shape();
    const bool batched = depends_on_batch(tensor.shape);
    const bool ranks_agree = found.size() == expected.size() && !found.empty();
    if (batched && ranks_agree) expected[0] = found[0] = std::max<std::int64_t>(found[0], 1);
    if (file.type() != tensor.type) {
      return invalid_input(
          fmt::format("{}: holds {}, input '{}' is {}\n  hint: save it with numpy's astype",
                      file.path(), name_of(file.type()), tensor.name, name_of(tensor.type)));
    }
    if (found != expected || (batched && file.shape()[0] == 0)) {
      return invalid_input(
          fmt::format("{}: has shape [{}], input '{}' needs [{}{}]", file.path(),
                      fmt::join(file.shape(), ", "), tensor.name, batched ? "samples, " : "",
                      fmt::join(expected.begin() + (batched ? 1 : 0), expected.end(), ", ")));
    }
    if (batched) AGPCS_RETURN_IF_ERROR(check_pairing(id, file.path(), file.rows()));
    files_.insert_or_assign(id, std::move(file));
    return {};
  }

  /// Feeds each array of an archive to the input of its name.
  Status add_archive(const std::string& path) {
    AGPCS_TRY(const InputFile archive, InputFile::open(path, ".npz file"));
    AGPCS_TRY(const std::vector<StoredFile> parts, stored_files(archive));
    for (const StoredFile& part : parts) {
      const std::string name = part.name.substr(0, part.name.rfind(".npy"));
      const Result<TensorId> id = find_input(name);
      if (!id.ok()) return Status(id.status().code(), path + ": " + id.status().message());
      AGPCS_TRY(NpyFile file, NpyFile::open_in(path, part));
      AGPCS_RETURN_IF_ERROR(add(*id, std::move(file)));
    }
    return {};
  }

  Result<TensorId> find_input(const std::string& name) const {
    std::vector<std::string> names;
    for (TensorId id : graph_.inputs) {
      if (graph_.tensor(id).name == name) return id;
      names.push_back(graph_.tensor(id).name);
    }
    return invalid_input(fmt::format("the model has no input '{}'\n  hint: {}", name,
                                     did_you_mean(name, names, "inputs")));
  }

  /// Checks that the files have equally many rows: each file starts again after its last row, so
  /// with another length it would give samples the labels of others from there on.
  Status check_pairing(TensorId input, const std::string& path, std::int64_t rows) const {
    for (const auto& [other, file] : files_) {
      if (other == input || !depends_on_batch(graph_.tensor(other).shape)) continue;
      if (file.rows() == rows) continue;
      return invalid_input(fmt::format(
          "{}: has {} rows, the file of input '{}' has {}\n  hint: row i of every file is sample i",
          path, rows, graph_.tensor(other).name, file.rows()));
    }
    return {};
  }

  /// Checks that `count` rows of labels, which lie in `file` from `row` on, are classes of the
  /// losses that use them. A kernel's error would only name the value.
  Status check_labels(TensorId input, const NpyFile& file, std::int64_t row, std::int64_t count,
                      const std::byte* labels) const {
    const Tensor& tensor = graph_.tensor(input);
    const std::int64_t per_row = elements_at(tensor.shape, 1);
    if (is_floating(tensor.type)) return check_truths(input, file, row, count, labels);
    if (tensor.type != DType::kInt32 && tensor.type != DType::kInt64) return {};
    for (const OpId loss : losses_of_labels(graph_, input)) {
      const Op& op = graph_.op(loss);
      const std::int64_t classes = graph_.tensor(op.inputs[0]).shape[1].fixed;
      const std::int64_t ignored = op.int_attribute("ignore_index", kIgnoredLabel);
      for (std::int64_t i = 0; classes > 0 && i < count * per_row; ++i) {
        const std::int64_t label = label_at(tensor.type, labels, i);
        if ((label >= 0 && label < classes) || label == ignored) continue;
        return invalid_input(
            fmt::format("{}: row {} has label {}{}, input '{}' takes classes 0 to {}{}\n"
                        "  hint: rows and classes count from 0",
                        file.path(), row + i / per_row, label, place_in(tensor, i % per_row),
                        tensor.name, classes - 1,
                        op.attributes.count("ignore_index") != 0
                            ? fmt::format(", and {} that does not count", ignored)
                            : ""));
      }
    }
    return {};
  }

  /// Checks that targets of a binary cross entropy lie between no (0) and yes (1).
  Status check_truths(TensorId input, const NpyFile& file, std::int64_t row, std::int64_t count,
                      const std::byte* values) const {
    const Tensor& tensor = graph_.tensor(input);
    if (tensor.type != DType::kFp32 || !is_binary_target(graph_, input)) return {};
    const std::int64_t per_row = elements_at(tensor.shape, 1);
    for (std::int64_t i = 0; i < count * per_row; ++i) {
      float value = 0;
      std::memcpy(&value, values + static_cast<std::size_t>(i) * sizeof value, sizeof value);
      if (value >= 0 && value <= 1) continue;
      return invalid_input(fmt::format("{}: row {} has {}{}, input '{}' takes 0 (no) to 1 (yes)",
                                       file.path(), row + i / per_row, value,
                                       place_in(tensor, i % per_row), tensor.name));
    }
    return {};
  }

  /// Returns " at [3,5]" for an element of a sample; nothing if samples have one.
  static std::string place_in(const Tensor& tensor, std::int64_t element) {
    if (elements_at(tensor.shape, 1) == 1) return "";
    std::vector<std::int64_t> place;
    for (std::size_t axis = tensor.shape.size() - 1; axis > 0; --axis) {
      place.push_back(element % tensor.shape[axis].fixed);
      element /= tensor.shape[axis].fixed;
    }
    std::reverse(place.begin(), place.end());
    return fmt::format(" at [{}]", fmt::join(place, ","));
  }

  const Graph& graph_;
  SyntheticData rest_;
  SampleOrder order_;
  std::map<TensorId, NpyFile> files_;
};

}  // namespace

std::unique_ptr<DataSource> make_synthetic_data(const Graph& graph, std::uint64_t seed) {
  return std::make_unique<SyntheticData>(graph, seed);
}

Result<std::unique_ptr<DataSource>> open_npy_data(
    const Graph& graph, const std::vector<std::pair<std::string, std::string>>& files,
    std::uint64_t seed, SampleOrder order) {
  auto data = std::make_unique<NpyData>(graph, seed, std::move(order));
  for (const auto& [input, path] : files) AGPCS_RETURN_IF_ERROR(data->add(input, path));
  return std::unique_ptr<DataSource>(std::move(data));
}

}  // namespace agpcs
