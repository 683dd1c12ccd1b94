// SPDX-License-Identifier: Apache-2.0
#include "tools/run/safetensors.h"

#include "runtime/job/checkpoint_folder.h"
#include "tools/common/common.h"
#include "tools/common/json.h"
#include "tools/common/new_file.h"
#include "tools/run/gathering.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are written as they lie");

namespace fs = std::filesystem;

std::string_view safetensors_name(DType type) {
  switch (type) {
    case DType::kFp32:
      return "F32";
    case DType::kFp16:
      return "F16";
    case DType::kBf16:
      return "BF16";
    case DType::kFp64:
      return "F64";
    case DType::kInt64:
      return "I64";
    case DType::kInt32:
      return "I32";
    case DType::kInt16:
      return "I16";
    case DType::kInt8:
      return "I8";
    case DType::kUint8:
      return "U8";
    case DType::kBool:
      return "BOOL";
  }
  return "";
}

// A tensor of the file: items that move to rank 0, one for each part that ranks have, or a constant
// of the graph.
struct Entry {
  const Tensor* tensor = nullptr;
  std::vector<StateMove> moves;
  std::int64_t bytes = 0;
};

// Returns the tensors in the order in which they lie in the file. The larger elements come first,
// so that each tensor is aligned to its own.
Result<std::vector<Entry>> entries_of(const Graph& graph, const std::vector<StateMove>& moves) {
  std::map<std::string, std::vector<StateMove>> learned;
  for (const StateMove& move : moves) {
    if (move.item.slot == kValueSlot) learned[move.item.tensor].push_back(move);
  }
  std::vector<Entry> entries;
  for (const Tensor& tensor : graph.tensors) {
    Entry entry{&tensor,
                {},
                elements_at(tensor.shape, 0) * static_cast<std::int64_t>(size_of(tensor.type))};
    const auto found = learned.find(tensor.name);
    if (found != learned.end()) {
      entry.moves = std::move(found->second);
      learned.erase(found);
    } else if (!tensor.frozen ||
               static_cast<std::int64_t>(tensor.constant.bytes.size()) != entry.bytes) {
      continue;
    }
    entries.push_back(std::move(entry));
  }
  if (!learned.empty()) {
    return internal_error(
        fmt::format("a rank has '{}', which the model lacks", learned.begin()->first));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    const std::size_t size_a = size_of(a.tensor->type), size_b = size_of(b.tensor->type);
    return std::tie(size_b, a.tensor->name) < std::tie(size_a, b.tensor->name);
  });
  return entries;
}

// Returns the header and its length before it. Blanks at its end align the first tensor.
std::string header_of(const std::vector<Entry>& entries, const Plan& plan, std::int64_t step) {
  Json header;
  header["__metadata__"] = {
      {"format", "pt"}, {"model", plan.model_digest}, {"step", std::to_string(step)}};
  std::int64_t offset = 0;
  for (const Entry& entry : entries) {
    const Tensor& tensor = *entry.tensor;
    header[tensor.name] = {{"dtype", safetensors_name(tensor.type)},
                           {"shape", dims_at(tensor.shape, 0)},
                           {"data_offsets", {offset, offset + entry.bytes}}};
    offset += entry.bytes;
  }
  std::string text = json_line(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  std::string before(sizeof length, '\0');
  std::memcpy(before.data(), &length, sizeof length);
  return before + text;
}

// Writes the tensors of `entries`, in order.
class TensorWriter {
 public:
  TensorWriter(const std::vector<Entry>& entries, CheckpointFileWriter& file)
      : entries_(entries), file_(file) {}

  // Writes a part of an item. Items come in the order of the entries, and their elements in order.
  Status write(const StateItem& item, std::int64_t first, std::int64_t count, const float* words) {
    if (first == 0) AGPCS_RETURN_IF_ERROR(begin(item));
    const DType type = entries_[next_ - 1].tensor->type;
    if (converted_) {
      convert(type, words, count, buffer_);
      return file_.write(buffer_.data(), buffer_.size());
    }
    // The last word may go beyond the tensor's end.
    const std::int64_t bytes =
        std::min<std::int64_t>(count * static_cast<std::int64_t>(sizeof(float)), rest_);
    rest_ -= bytes;
    return file_.write(words, static_cast<std::size_t>(bytes));
  }

  // Writes the constants before the next item, or the last ones.
  Status write_constants() {
    for (; next_ < entries_.size() && entries_[next_].moves.empty(); ++next_) {
      const auto& bytes = entries_[next_].tensor->constant.bytes;
      AGPCS_RETURN_IF_ERROR(file_.write(bytes.data(), bytes.size()));
    }
    return {};
  }

 private:
  Status begin(const StateItem& item) {
    AGPCS_RETURN_IF_ERROR(write_constants());
    const Entry& entry = entries_[next_++];
    AGPCS_TRY(converted_, converts(item, entry.tensor->type, entry.bytes));
    rest_ = entry.bytes;
    return {};
  }

  const std::vector<Entry>& entries_;
  CheckpointFileWriter& file_;
  std::size_t next_ = 0;  // the entry after the one that is being written
  bool converted_ = false;
  std::int64_t rest_ = 0;  // bytes of it that are to come, unless converted
  std::vector<char> buffer_;
};

// A file that takes the place of `path` once it is whole.
class Replacement {
 public:
  ~Replacement() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  Status open(const std::string& path) {
    std::error_code none;  // ignored: a path that is not there is no link
    target_ = fs::is_symlink(path, none) ? fs::weakly_canonical(path, none).string() : path;
    const std::string name = temporary_beside(target_);
    AGPCS_TRY(file_, CheckpointFileWriter::create(name));
    name_ = name;
    return {};
  }
  CheckpointFileWriter& file() { return *file_; }
  Status finish() {
    AGPCS_RETURN_IF_ERROR(file_->finish().status());
    if (std::rename(name_.c_str(), target_.c_str()) != 0) {
      return invalid_input(
          fmt::format("{}: cannot be replaced: {}", target_, std::strerror(errno)));
    }
    name_.clear();
    return {};
  }

 private:
  std::string target_, name_;
  std::optional<CheckpointFileWriter> file_;
};

Status save(const std::string& path, const Graph& graph, const Plan& plan, std::int64_t step,
            const Executor& executor, Transport& transport, std::chrono::milliseconds limit) {
  AGPCS_TRY(const StateOwners owners, share_state_owners(executor.state(), transport, limit));
  AGPCS_TRY(const std::vector<StateMove> all, gathering(owners));
  AGPCS_TRY(const std::vector<Entry> entries, entries_of(graph, all));
  std::vector<StateMove> moves;
  for (const Entry& entry : entries) {
    moves.insert(moves.end(), entry.moves.begin(), entry.moves.end());
  }
  Replacement replacement;
  std::optional<TensorWriter> writer;
  if (transport.rank() == 0) {
    AGPCS_RETURN_IF_ERROR(replacement.open(path));
    const std::string header = header_of(entries, plan, step);
    AGPCS_RETURN_IF_ERROR(replacement.file().write(header.data(), header.size()));
    writer.emplace(entries, replacement.file());
  }
  const auto read = [&](const StateItem& item, std::int64_t first, std::int64_t count, float* out) {
    return executor.read_state(item, first, count, out);
  };
  const auto write = [&](const StateItem& item, std::int64_t first, std::int64_t count,
                         const float* words) { return writer->write(item, first, count, words); };
  AGPCS_RETURN_IF_ERROR(carry_state(moves, read, writing_wholes(write), transport, limit));
  if (!writer) return {};
  AGPCS_RETURN_IF_ERROR(writer->write_constants());
  return replacement.finish();
}

}  // namespace

bool is_safetensors(std::string_view path) { return has_ending(path, ".safetensors"); }

Status check_safetensors(const std::string& path) {
  std::error_code none;  // ignored: opening the path reports the error
  const fs::file_status there = fs::status(path, none);
  if (fs::exists(there) && !fs::is_regular_file(there) && !fs::is_directory(there)) {
    return invalid_input(fmt::format("{}: error: cannot be replaced: not a regular file", path));
  }
  return check_can_be_written(path);
}

Status save_safetensors(const std::string& path, const Graph& graph, const Plan& plan,
                        std::int64_t step, const Executor& executor, Transport& transport,
                        std::chrono::milliseconds limit) {
  const Status saved = save(path, graph, plan, step, executor, transport, limit);
  if (saved.ok()) return saved;
  const Status status(saved.code(), fmt::format("saving parameters: {}", saved.message()));
  transport.abort(status);
  return status;
}

}  // namespace agpcs
