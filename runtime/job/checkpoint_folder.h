// SPDX-License-Identifier: Apache-2.0
// The folder of checkpoints: finding one that is whole, and adding one so that there is never a
// moment without (docs/checkpoints.md).
//
//     DIR/step-00000100/{model.onnx, model.onnx.data, optimizer.data, checkpoint.txt}
//     DIR/step-00000100.replaced   the same step as it was, while it is written again
//     DIR/.step-00000200.tmp-4711  being written, or being removed
#pragma once

#include "ir/fd.h"
#include "ir/sha256.h"
#include "runtime/checkpoint.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// "step-00000100".
std::string checkpoint_name(std::int64_t step);

/// Whether there is anything in `folder` that is named as checkpoints are.
bool has_checkpoints(const std::string& folder);

/// The step of the checkpoint in `path`, or the latest one of those in folder `path` by their
/// names; -1: there is none. Reads no more than a manifest.
std::int64_t latest_step(const std::string& path);

struct FoundCheckpoint {
  std::string folder;
  Checkpoint checkpoint;
  std::string warnings;  ///< what is newer and cannot be read, a line each; empty when nothing
  bool newest = false;   ///< of those that are whole in a folder of checkpoints
};

/// The checkpoint in `path`, or the newest one that is whole among those in folder `path`. Reads
/// every file and compares its digest. Errors: there is none, none is whole (says why of each).
Result<FoundCheckpoint> find_checkpoint(const std::string& path);

/// What a file in a checkpoint's folder should be, for `InputFile::open`.
inline constexpr std::string_view kCheckpointNoun = "file of a checkpoint";

/// A file that is written from its beginning to its end.
class CheckpointFileWriter {
 public:
  static Result<CheckpointFileWriter> create(const std::string& path);

  std::int64_t size() const { return size_; }
  Status write(const void* data, std::size_t bytes);
  /// Writes zeros until the file has `size` bytes.
  Status fill_to(std::int64_t size);
  /// Brings all of it to the disk and closes it.
  Result<CheckpointFile> finish();

 private:
  CheckpointFileWriter(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  Status flush();
  Status write_out(const char* data, std::size_t bytes);

  std::string path_;
  Fd fd_;
  std::vector<char> waiting_;
  Sha256 sha_;
  std::int64_t size_ = 0;
};

/// The folder that one run writes its checkpoints to.
class CheckpointFolder {
 public:
  /// Makes `path` if it is not there, and takes it for this run: until the folder is closed, or the
  /// process has ended, no other can; by file `.lock` in it where folders cannot be locked (NFS).
  /// Removes what a dead writer left. `first_step`: of this run; a
  /// checkpoint of a later step is an error, since another run made it, unless this run goes on
  /// from `resumed`, the newest one here that is whole.
  static Result<CheckpointFolder> open(const std::string& path, std::int64_t first_step,
                                       const FoundCheckpoint* resumed = nullptr);

  const std::string& path() const { return path_; }
  /// Starts the checkpoint of `step`: the folder to write its files to.
  Result<std::string> begin(std::int64_t step);
  /// The files are written: adds the manifest and puts the checkpoint in its place. Then of the
  /// earlier ones only the newest stay, so that there are `keep` (at least 1) with this one.
  Status commit(std::int64_t step, const Checkpoint& checkpoint, int keep);
  /// Removes what `begin` made. Nothing else has changed.
  void discard();
  /// What is not as it should be and stops nothing, a line each that begins "warning: ", each once:
  /// what is old and cannot be removed (which is tried again with each `commit`), a folder that
  /// cannot be locked.
  std::string take_warnings() { return std::exchange(warnings_, {}); }

 private:
  explicit CheckpointFolder(std::string path) : path_(std::move(path)) {}
  Status lock();
  void remove_leftovers();
  Status replace(std::int64_t step);
  Status remove(const std::string& name);
  void prune(std::int64_t step, int keep);
  void warn(const Status& status);

  std::string path_;
  Fd fd_;              // of what is locked
  std::string begun_;  // the folder that is being written, ""
  std::string warnings_;
  std::set<std::string> warned_;
};

}  // namespace agpcs
