// SPDX-License-Identifier: Apache-2.0
#include "ir/base/diagnostics.h"
#include "runtime/torch/data/data.h"
#include "runtime/torch/data/input_uses.h"
#include "runtime/torch/data/npy.h"
#include "runtime/torch/ops/ops.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

namespace agpcs {
namespace {

namespace fs = std::filesystem;

bool is_archive(const std::string& path) { return fs::path(path).extension() == ".npz"; }

Result<std::vector<std::string>> files_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const fs::path extension = at->path().extension();
    if (extension == ".npy" || extension == ".npz") files.push_back(at->path().string());
  }
  if (error) return invalid_input(fmt::format("{}: cannot be listed: {}", folder, error.message()));
  return files;
}

std::vector<std::string> files_like(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return files;
}

// Returns the files that `path` names: itself, those in a folder, or those that fit a pattern; the
// latter in the order of their names' bytes.
Result<std::vector<std::string>> expand(const std::string& path) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  const bool is_pattern = path.find_first_of("*?[") != std::string::npos;
  if (!is_folder && (fs::exists(path, error) || !is_pattern)) return std::vector{path};
  std::vector<std::string> files;
  if (is_folder) {
    AGPCS_TRY(files, files_in(path));
  } else {
    files = files_like(path);
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    return invalid_input(
        fmt::format("{}: {}", path,
                    is_folder ? "has no .npy or .npz file" : "no file has a name of this pattern"));
  }
  const auto archives = std::count_if(files.begin(), files.end(), is_archive);
  if (archives == 0 || archives == static_cast<std::ptrdiff_t>(files.size())) return files;
  return invalid_input(
      fmt::format("{}: {} .npz files beside {} .npy files\n  hint: give a pattern, such as "
                  "'shard-*.npz'",
                  path, archives, static_cast<std::ptrdiff_t>(files.size()) - archives));
}

// Returns a label, which is an int32 or an int64.
std::int64_t label_at(DType type, const std::byte* labels, std::int64_t index) {
  const auto value_of = [&](auto value) -> std::int64_t {
    std::memcpy(&value, labels + static_cast<std::size_t>(index) * sizeof value, sizeof value);
    return value;
  };
  return type == DType::kInt32 ? value_of(std::int32_t{}) : value_of(std::int64_t{});
}

// The files of one input, one after the other.
struct Shards {
  std::vector<NpyFile> files;
  std::vector<Conversion> conversions;  // by file
  std::int64_t rows = 0;
};

// Rows that lie together in one file.
struct Run {
  const NpyFile* file = nullptr;
  const Conversion* conversion = nullptr;
  std::int64_t row = 0, count = 0;
};

Run find_run(const Shards& shards, std::int64_t row, std::int64_t most) {
  for (std::size_t s = 0; s < shards.files.size(); ++s) {
    const NpyFile& file = shards.files[s];
    if (row < file.rows()) {
      return {&file, &shards.conversions[s], row, std::min(most, file.rows() - row)};
    }
    row -= file.rows();
  }
  return {};
}

class FileData : public DataSource {
 public:
  FileData(const Graph& graph, DataFiles files)
      : graph_(graph),
        rest_(make_synthetic_data(graph, files.seed)),
        order_(std::move(files.order)),
        scales_(std::move(files.scales)) {}

  /// Opens all files that `path` names, for `input`, or for the inputs that archives name.
  Status add(const std::string& input, const std::string& path) {
    AGPCS_TRY(const std::vector<std::string> paths, expand(path));
    for (const std::string& file : paths) {
      if (input.empty() && is_archive(file)) {
        AGPCS_RETURN_IF_ERROR(add_archive(file));
        continue;
      }
      AGPCS_TRY(const TensorId id,
                input.empty() ? Result<TensorId>(graph_.inputs.front()) : find_input(input));
      AGPCS_TRY(NpyFile opened, NpyFile::open(file));
      AGPCS_RETURN_IF_ERROR(add(id, std::move(opened)));
    }
    return {};
  }

  /// Checks what can be checked once all files are open.
  Status check() const {
    for (const auto& [input, scale] : scales_) {
      AGPCS_TRY(const TensorId id, find_input(input));
      if (inputs_.count(id) == 0) {
        return invalid_input(fmt::format(
            "--scale {}: no file feeds this input\n  hint: --data {}=FILE", input, input));
      }
    }
    const TensorId* first = nullptr;
    for (const auto& [input, shards] : inputs_) {
      if (!is_batched(input)) continue;
      if (first != nullptr) AGPCS_RETURN_IF_ERROR(check_pairing(*first, input));
      if (first == nullptr) first = &input;
    }
    return {};
  }

  bool feeds(TensorId input) const override { return inputs_.count(input) != 0; }

  std::int64_t rows() const override {
    const auto found = std::find_if(inputs_.begin(), inputs_.end(),
                                    [&](const auto& entry) { return is_batched(entry.first); });
    return found == inputs_.end() ? 0 : found->second.rows;
  }

  Status fill(TensorId input, std::int64_t first, std::int64_t count, void* out) override {
    const auto found = inputs_.find(input);
    if (found == inputs_.end()) return rest_->fill(input, first, count, out);
    const Shards& shards = found->second;
    auto* bytes = static_cast<std::byte*>(out);
    if (!is_batched(input)) return read(find_run(shards, 0, shards.rows), bytes);
    while (count > 0) {
      const std::int64_t row = row_of(first, shards.rows);
      const Run run = find_run(shards, row, order_.is_shuffled() ? 1 : count);
      AGPCS_RETURN_IF_ERROR(read(run, bytes));
      AGPCS_RETURN_IF_ERROR(check_labels(input, *run.file, run.row, run.count, bytes));
      bytes += elements_of(run) * size_of(run.conversion->to);
      first += run.count;
      count -= run.count;
    }
    return {};
  }

 private:
  bool is_batched(TensorId input) const { return depends_on_batch(graph_.tensor(input).shape); }

  // The order keeps what it has drawn for an epoch.
  std::int64_t row_of(std::int64_t sample, std::int64_t rows) {
    const std::lock_guard lock(order_mutex_);
    return order_.row(sample, rows);
  }

  static std::size_t elements_of(const Run& run) {
    return static_cast<std::size_t>(run.count) * run.file->row_bytes() /
           size_of(run.conversion->from);
  }

  static Status read(const Run& run, std::byte* out) {
    if (run.conversion->copies()) return run.file->read_rows(run.row, run.count, out);
    std::vector<std::byte> unconverted(static_cast<std::size_t>(run.count) * run.file->row_bytes());
    AGPCS_RETURN_IF_ERROR(run.file->read_rows(run.row, run.count, unconverted.data()));
    run.conversion->run(unconverted.data(), elements_of(run), out);
    return {};
  }

  Status add(TensorId id, NpyFile file) {
    const Tensor& tensor = graph_.tensor(id);
    std::vector<std::int64_t> expected = dims_at(tensor.shape, 1);
    std::vector<std::int64_t> found = file.shape();
    const bool batched = is_batched(id);
    const bool ranks_agree = found.size() == expected.size() && !found.empty();
    if (batched && ranks_agree) expected[0] = found[0] = std::max<std::int64_t>(found[0], 1);
    const auto scale = scales_.find(tensor.name);
    AGPCS_TRY(const Conversion conversion,
              find_conversion(file.type(), tensor.type,
                              scale == scales_.end() ? std::optional<Scale>() : scale->second,
                              file.path(), tensor.name));
    if (found != expected || (batched && file.shape()[0] == 0)) {
      return invalid_input(
          fmt::format("{}: has shape [{}], input '{}' needs [{}{}]", file.path(),
                      fmt::join(file.shape(), ", "), tensor.name, batched ? "samples, " : "",
                      fmt::join(expected.begin() + (batched ? 1 : 0), expected.end(), ", ")));
    }
    Shards& shards = inputs_[id];
    if (!batched && !shards.files.empty()) {
      return invalid_input(fmt::format(
          "{}: input '{}' has no samples, so it is fed by one file, and {} feeds it already",
          file.path(), tensor.name, shards.files.front().path()));
    }
    shards.rows += file.rows();
    shards.files.push_back(std::move(file));
    shards.conversions.push_back(conversion);
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

  /// Checks that two inputs have equally many rows: files start again after their last row, so with
  /// another length they would give samples the labels of others from there on. Shards that pair
  /// up have equally many each, or one of them is missing or out of order.
  Status check_pairing(TensorId one, TensorId other) const {
    const Shards &a = inputs_.at(one), &b = inputs_.at(other);
    for (std::size_t s = 0; a.files.size() == b.files.size() && s < a.files.size(); ++s) {
      if (a.files[s].rows() == b.files[s].rows()) continue;
      return invalid_input(
          fmt::format("{}: has {} rows, {} has {}\n"
                      "  hint: row i of every file is sample i",
                      b.files[s].path(), b.files[s].rows(), a.files[s].path(), a.files[s].rows()));
    }
    if (a.rows == b.rows) return {};
    return invalid_input(
        fmt::format("{}: the {} files of input '{}' have {} rows, the {} of input '{}' have {}\n"
                    "  hint: row i of all files of an input is sample i",
                    b.files.front().path(), b.files.size(), graph_.tensor(other).name, b.rows,
                    a.files.size(), graph_.tensor(one).name, a.rows));
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
  std::unique_ptr<DataSource> rest_;
  std::mutex order_mutex_;
  SampleOrder order_;
  std::map<std::string, Scale> scales_;
  std::map<TensorId, Shards> inputs_;
};

}  // namespace

Result<std::unique_ptr<DataSource>> open_data_files(const Graph& graph, DataFiles files) {
  const auto paths = std::move(files.paths);
  auto data = std::make_unique<FileData>(graph, std::move(files));
  for (const auto& [input, path] : paths) AGPCS_RETURN_IF_ERROR(data->add(input, path));
  AGPCS_RETURN_IF_ERROR(data->check());
  return std::unique_ptr<DataSource>(std::move(data));
}

}  // namespace agpcs
