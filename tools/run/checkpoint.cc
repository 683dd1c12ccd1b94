// SPDX-License-Identifier: Apache-2.0
#include "tools/run/checkpoint.h"

#include "ir/base/read_file.h"
#include "runtime/job/state_moves.h"
#include "runtime/support/state_part.h"
#include "tools/run/gathering.h"

#include <agpcs/digest.h>
#include <agpcs/version.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are written as they lie");

constexpr std::int64_t kWord = sizeof(float);

using Key = std::pair<std::string, std::string>;  // tensor, slot
Key key_of(const StateItem& item) { return {item.tensor, item.slot}; }

// The places that an item is written to.
struct Target {
  const SavedTensor* tensor = nullptr;  // its place in the model; nullptr: it has none
  bool converted = false;               // from fp32 to the tensor's type
  std::int64_t offset = -1;             // in the optimizer's file; -1: absent
};

// Writes the files of one checkpoint.
class CheckpointFiles {
 public:
  explicit CheckpointFiles(const SavedModel& model) : model_(model) {}

  // Decides where everything goes, and writes the model.
  Status begin(const std::string& folder, const std::vector<StateMove>& moves) {
    AGPCS_RETURN_IF_ERROR(place(moves));
    AGPCS_TRY(auto model, CheckpointFileWriter::create(folder + "/" + kModelFile));
    AGPCS_RETURN_IF_ERROR(model.write(model_.model.data(), model_.model.size()));
    AGPCS_TRY(CheckpointFile written, model.finish());
    files_.push_back(std::move(written));
    AGPCS_TRY(data_, CheckpointFileWriter::create(folder + "/" + kModelDataFile));
    AGPCS_TRY(optimizer_, CheckpointFileWriter::create(folder + "/" + kOptimizerFile));
    return {};
  }

  // Writes a part of an item. Items come in the order of `moves`, and their elements in order.
  Status write(const StateItem& item, std::int64_t first, std::int64_t count, const float* words) {
    const Target& target = targets_.at(key_of(item));
    const auto bytes = static_cast<std::size_t>(count * kWord);
    if (target.offset >= 0) AGPCS_RETURN_IF_ERROR(optimizer_->write(words, bytes));
    if (target.tensor == nullptr) return {};
    if (first == 0) AGPCS_RETURN_IF_ERROR(data_->fill_to(target.tensor->offset));
    if (target.converted) return write_converted(target.tensor->type, count, words);
    // An item of whole words may end slightly after its tensor. The rest is zeros, as in a gap.
    return data_->write(words, bytes);
  }

  // Writes the rest of the model's tensors. Returns a description of all files.
  Result<std::vector<CheckpointFile>> finish() {
    for (const SavedTensor& tensor : model_.tensors) {
      if (!tensor.source.empty()) AGPCS_RETURN_IF_ERROR(copy(tensor));
    }
    AGPCS_TRY(CheckpointFile data, data_->finish());
    files_.push_back(std::move(data));
    AGPCS_TRY(CheckpointFile optimizer, optimizer_->finish());
    files_.push_back(std::move(optimizer));
    return std::move(files_);
  }

  const std::vector<CheckpointItem>& items() const { return items_; }

 private:
  Status place(const std::vector<StateMove>& moves) {
    std::map<std::string, const SavedTensor*> tensors;
    for (const SavedTensor& tensor : model_.tensors) {
      if (tensor.source.empty()) tensors.emplace(tensor.name, &tensor);
    }
    std::int64_t end = 0;  // end of the optimizer's file
    for (const StateMove& move : moves) {
      if (targets_.count(key_of(move.item)) > 0) continue;  // another part of the item before it
      const StateItem item{move.item.tensor, move.item.slot, move.item.elements};
      Target target;
      if (item.slot == kValueSlot) {
        const auto found = tensors.find(item.tensor);
        if (found == tensors.end()) return not_in_model(item.tensor);
        target.tensor = found->second;
        tensors.erase(found);
        AGPCS_TRY(target.converted, converts(item, target.tensor->type, target.tensor->bytes));
      }
      const bool in_model = target.tensor != nullptr && !target.converted;
      if (!in_model) {
        target.offset = end;
        end += item.elements * kWord;
      }
      items_.push_back({item, in_model ? kModelDataFile : kOptimizerFile,
                        in_model ? target.tensor->offset : target.offset});
      targets_.emplace(key_of(item), target);
    }
    if (tensors.empty()) return {};
    return internal_error(fmt::format("no rank has the value of '{}', which the model needs",
                                      tensors.begin()->first));
  }

  static Status not_in_model(const std::string& tensor) {
    return internal_error(fmt::format("a rank has '{}', which the model does not need", tensor));
  }

  Status write_converted(DType type, std::int64_t count, const float* words) {
    convert(type, words, count, converted_);
    return data_->write(converted_.data(), converted_.size());
  }

  Status copy(const SavedTensor& tensor) {
    AGPCS_TRY(const auto source, InputFile::open(tensor.source, "file of weights"));
    AGPCS_RETURN_IF_ERROR(data_->fill_to(tensor.offset));
    constexpr std::int64_t kPiece = std::int64_t{1} << 20;
    std::vector<char> piece(static_cast<std::size_t>(std::min(kPiece, tensor.bytes)));
    for (std::int64_t at = 0; at < tensor.bytes; at += kPiece) {
      const auto bytes = static_cast<std::size_t>(std::min(kPiece, tensor.bytes - at));
      AGPCS_RETURN_IF_ERROR(source.read(tensor.source_offset + at, piece.data(), bytes));
      AGPCS_RETURN_IF_ERROR(data_->write(piece.data(), bytes));
    }
    return {};
  }

  const SavedModel& model_;
  std::map<Key, Target> targets_;
  std::vector<CheckpointItem> items_;
  std::vector<CheckpointFile> files_;
  std::optional<CheckpointFileWriter> data_, optimizer_;
  std::vector<char> converted_;
};

std::vector<TrainedTensor> trained_tensors(const Graph& graph) {
  std::vector<TrainedTensor> trained;
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.kind != TensorKind::kParameter && tensor.kind != TensorKind::kState) continue;
    if (!tensor.consumers.empty()) {
      trained.push_back({tensor.name, tensor.type, dims_at(tensor.shape, 0)});
    }
  }
  return trained;
}

Status in(const std::string& what, const Status& status) {
  if (status.ok()) return status;
  return {status.code(), fmt::format("{}: {}", what, status.message())};
}

// A checkpoint's items, in whichever of its files they lie.
class CheckpointSource {
 public:
  static Result<CheckpointSource> open(const FoundCheckpoint& found) {
    CheckpointSource source;
    for (const CheckpointItem& item : found.checkpoint.items) {
      source.items_.emplace(key_of(item.item), &item);
    }
    for (const char* name : {kModelDataFile, kOptimizerFile}) {
      AGPCS_TRY(auto file, InputFile::open(found.folder + "/" + name, kCheckpointNoun));
      source.files_.emplace(name, std::move(file));
    }
    return source;
  }

  // Checks that the checkpoint has everything that ranks need, and nothing else.
  Status check(const StateOwners& needed) const {
    std::map<Key, bool> used;
    for (const auto& [key, item] : items_) used.emplace(key, false);
    for (const auto& items : needed) {
      for (const StateItem& item : items) {
        const auto found = items_.find(key_of(item));
        if (found == items_.end()) return other_optimizer("has no", item.slot, item.tensor);
        const std::int64_t has = found->second->item.elements;
        if (has != item.elements) {
          return invalid_input(fmt::format("'{}' of '{}' has {} elements, the model's has {}",
                                           item.slot, item.tensor, has, item.elements));
        }
        used[key_of(item)] = true;
      }
    }
    for (const auto& [key, is_used] : used) {
      if (!is_used) return other_optimizer("has", key.second, key.first);
    }
    return {};
  }

  Status read(const StateItem& item, std::int64_t first, std::int64_t count, float* out) const {
    if (item.is_part_along_axis()) {
      std::vector<float> whole(static_cast<std::size_t>(count));
      AGPCS_RETURN_IF_ERROR(read(whole_of(item), first, count, whole.data()));
      pack(item, first, count, whole.data(), out);
      return {};
    }
    const CheckpointItem& at = *items_.at(key_of(item));
    return files_.at(at.file).read(at.offset + first * kWord, out,
                                   static_cast<std::size_t>(count * kWord));
  }

 private:
  static Status other_optimizer(const char* has, const std::string& slot,
                                const std::string& tensor) {
    return invalid_input(fmt::format(
        "the checkpoint {} '{}' of '{}': it was trained with another optimizer than the plan's\n"
        "  hint: go on under a plan with the same optimizer; to begin with another one, train the "
        "checkpoint's {} without --resume",
        has, slot, tensor, kModelFile));
  }

  std::map<Key, const CheckpointItem*> items_;
  std::map<std::string, InputFile> files_;
};

// Distributes the items to the ranks that need them: those that need the same elements of an item
// pass them on. First rank 0 gives each item to one of those
// ranks; then each rank that has it passes it to one that does not, so that 1, 2, 4, ... ranks have
// it. With a thousand replicas, rank 0 need not send it a thousand times.
std::vector<std::vector<StateMove>> handing_out(const StateOwners& needed) {
  using Part = std::pair<StateItem, std::vector<int>>;
  std::map<Key, std::vector<Part>> parts;
  for (std::size_t rank = 0; rank < needed.size(); ++rank) {
    for (const StateItem& item : needed[rank]) {
      std::vector<Part>& of_item = parts[key_of(item)];
      auto part = std::find_if(of_item.begin(), of_item.end(),
                               [&](const Part& other) { return other.first.is_same_part(item); });
      if (part == of_item.end()) part = of_item.insert(part, {item, {}});
      part->second.push_back(static_cast<int>(rank));
    }
  }
  std::vector<std::vector<StateMove>> rounds(1);
  for (const auto& [key, of_item] : parts) {
    for (const auto& [item, ranks] : of_item) {
      rounds[0].push_back({item, 0, ranks[0]});
      std::size_t round = 1;
      for (std::size_t have = 1; have < ranks.size(); have *= 2, ++round) {
        if (rounds.size() == round) rounds.emplace_back();
        for (std::size_t i = 0; i < have && i + have < ranks.size(); ++i) {
          rounds[round].push_back({item, ranks[i], ranks[i + have]});
        }
      }
    }
  }
  return rounds;
}

Status restore(const FoundCheckpoint* found, Executor& executor, Transport& transport,
               std::chrono::milliseconds limit) {
  AGPCS_TRY(const StateOwners needed, share_state_owners(executor.state(), transport, limit));
  std::optional<CheckpointSource> source;
  if (found != nullptr) {
    AGPCS_TRY(source, CheckpointSource::open(*found));
    AGPCS_RETURN_IF_ERROR(source->check(needed));
  }
  const ReadState from_files = [&](const StateItem& item, std::int64_t first, std::int64_t count,
                                   float* out) { return source->read(item, first, count, out); };
  const ReadState from_executor = [&](const StateItem& item, std::int64_t first, std::int64_t count,
                                      float* out) {
    return executor.read_state(item, first, count, out);
  };
  const auto write = [&](const StateItem& item, std::int64_t first, std::int64_t count,
                         const float* values) {
    return executor.write_state(item, first, count, values);
  };
  const auto rounds = handing_out(needed);
  for (std::size_t round = 0; round < rounds.size(); ++round) {
    AGPCS_RETURN_IF_ERROR(carry_state(rounds[round], round == 0 ? from_files : from_executor, write,
                                      transport, limit));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<CheckpointSaver>> CheckpointSaver::open(const CheckpointOptions& options,
                                                               const Graph& graph, int rank,
                                                               std::int64_t first_step,
                                                               const FoundCheckpoint* resumed) {
  std::unique_ptr<CheckpointSaver> saver(new CheckpointSaver(options, first_step));
  if (rank != 0) return saver;
  AGPCS_TRY(saver->model_, lay_out_model(options.model, trained_tensors(graph), kModelDataFile));
  AGPCS_TRY(saver->folder_, CheckpointFolder::open(options.folder, first_step, resumed));
  return saver;
}

Status CheckpointSaver::save(const Executor& executor, Transport& transport, const Plan& plan,
                             std::int64_t step, const std::optional<BestResult>& best) {
  if (step == last_) return {};
  const Status saved = gather_and_write(executor, transport, plan, step, best);
  if (saved.ok()) {
    last_ = step;
    return saved;
  }
  if (folder_) folder_->discard();
  const Status status = in(fmt::format("saving the checkpoint of step {}", step), saved);
  transport.abort(status);
  return status;
}

Status CheckpointSaver::gather_and_write(const Executor& executor, Transport& transport,
                                         const Plan& plan, std::int64_t step,
                                         const std::optional<BestResult>& best) {
  AGPCS_TRY(const StateOwners owners,
            share_state_owners(executor.state(), transport, options_.limit));
  AGPCS_TRY(const std::vector<StateMove> moves, gathering(owners));
  CheckpointFiles files(model_);
  if (folder_) {
    AGPCS_TRY(const std::string to, folder_->begin(step));
    AGPCS_RETURN_IF_ERROR(files.begin(to, moves));
  }
  const auto read = [&](const StateItem& item, std::int64_t first, std::int64_t count, float* out) {
    return executor.read_state(item, first, count, out);
  };
  const auto write = [&](const StateItem& item, std::int64_t first, std::int64_t count,
                         const float* words) { return files.write(item, first, count, words); };
  AGPCS_RETURN_IF_ERROR(carry_state(moves, read, writing_wholes(write), transport, options_.limit));
  if (!folder_) return {};
  Checkpoint checkpoint;
  checkpoint.made_by = version();
  checkpoint.step = step;
  checkpoint.batch = plan.training.batch * options_.accumulate;
  checkpoint.seed = options_.seed;
  checkpoint.best = best;
  checkpoint.model_digest = plan.model_digest;
  checkpoint.plan_digest = digest_of(print_plan(plan));
  AGPCS_TRY(checkpoint.files, files.finish());
  checkpoint.items = files.items();
  return folder_->commit(step, checkpoint, options_.keep);
}

Status check_resumable(const FoundCheckpoint& found, const Plan& plan, int accumulate,
                       const std::optional<std::uint64_t>& seed) {
  const Checkpoint& c = found.checkpoint;
  if (c.model_digest != plan.model_digest) {
    return invalid_input(
        fmt::format("{}: the checkpoint is of the model {}, the plan for {}\n"
                    "  hint: resume under a plan that was compiled for the same model",
                    found.folder, c.model_digest, plan.model_digest));
  }
  const std::int64_t batch = plan.training.batch;
  if (c.batch != batch * accumulate) {
    return invalid_input(fmt::format(
        "{}: the checkpoint is of a training with batch {}, the plan has batch {}{}\n"
        "  hint: step {} begins at sample {}; compile the plan with --batch {}, {}or train the "
        "checkpoint's {} from step 0, without --resume",
        found.folder, c.batch, batch,
        accumulate == 1 ? "" : fmt::format(", of which a step takes {}", accumulate), c.step,
        c.step * c.batch, c.batch,
        c.batch % batch == 0 ? fmt::format("take --accumulate {}, ", c.batch / batch) : "",
        kModelFile));
  }
  if (seed && *seed != c.seed) {
    return {StatusCode::kUsage,
            fmt::format("--seed is {}, the checkpoint {} has {}\n"
                        "  hint: leave --seed out: training goes on with the checkpoint's",
                        *seed, found.folder, c.seed)};
  }
  return {};
}

Status restore_checkpoint(const FoundCheckpoint* found, Executor& executor, Transport& transport,
                          std::chrono::milliseconds limit) {
  Status status = restore(found, executor, transport, limit);
  if (status.ok()) return status;
  status = in(found == nullptr ? "resuming" : "resuming from " + found->folder, status);
  transport.abort(status);
  return status;
}

}  // namespace agpcs
