// SPDX-License-Identifier: Apache-2.0
// The folder of checkpoints: finds a whole (complete and undamaged) checkpoint, and adds one so
// that at every moment the folder has a whole one (docs/reference/checkpoints.md).
//
//     DIR/step-00000100/{model.onnx, model.onnx.data, optimizer.data, checkpoint.txt}
//     DIR/step-00000100.replaced   the old checkpoint of a step that is written again
//     DIR/.step-00000200.tmp-5e1f60a2  being written, or being removed; the digits are random
#pragma once

#include "ir/base/fd.h"
#include "ir/base/sha256.h"
#include "runtime/job/checkpoint.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// Returns "step-00000100".
std::string checkpoint_name(std::int64_t step);

/// Returns whether anything in `folder` has a checkpoint's name.
bool has_checkpoints(const std::string& folder);

/// Returns the step of the checkpoint in `path`, or of the latest one by name in folder `path`; -1
/// if there is no checkpoint. Reads at most a manifest.
std::int64_t latest_step(const std::string& path);

struct FoundCheckpoint {
  std::string folder;
  Checkpoint checkpoint;
  std::string warnings;  ///< newer checkpoints that cannot be read, a line each; may be empty
  bool newest = false;   ///< it is the newest whole one in a folder of checkpoints
};

/// Returns the checkpoint in `path`, or the newest whole one in folder `path`. Reads every file and
/// compares its digest. Errors: there is no checkpoint, or no whole one (says why for each).
Result<FoundCheckpoint> find_checkpoint(const std::string& path);

/// Names a file in a checkpoint's folder for `InputFile::open`.
inline constexpr std::string_view kCheckpointNoun = "file of a checkpoint";

/// Writes a file from its beginning to its end.
class CheckpointFileWriter {
 public:
  static Result<CheckpointFileWriter> create(const std::string& path);

  std::int64_t size() const { return size_; }
  Status write(const void* data, std::size_t bytes);
  /// Writes zeros until the file has `size` bytes.
  Status fill_to(std::int64_t size);
  /// Brings the whole file to the disk and closes it.
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
  /// Makes `path` if it is not there, and locks it for this run: no other run can open it until the
  /// folder is closed or the process has ended. Where folders cannot be locked (NFS), it locks file
  /// `.lock` in the folder. Removes what a dead writer left.
  /// `first_step` is this run's first step. A checkpoint of a later step is an error, since another
  /// run made it, unless this run goes on from `resumed`, the newest whole one here.
  static Result<CheckpointFolder> open(const std::string& path, std::int64_t first_step,
                                       const FoundCheckpoint* resumed = nullptr);

  const std::string& path() const { return path_; }
  /// Starts the checkpoint of `step`, and returns the folder to write its files to.
  Result<std::string> begin(std::int64_t step);
  /// Adds the manifest, once the files are written, and puts the checkpoint in its place. Of
  /// the earlier checkpoints, only the newest stay, so that there are `keep` (at least 1) with
  /// this one, and the best one that `checkpoint` knows.
  Status commit(std::int64_t step, const Checkpoint& checkpoint, int keep);
  /// Removes what `begin` made; nothing else has changed.
  void discard();
  /// Returns problems that do not stop the run, each once, in a line that begins "warning: ": an
  /// old checkpoint that cannot be removed (each `commit` tries again), or a folder that cannot
  /// be locked.
  std::string take_warnings() { return std::exchange(warnings_, {}); }

 private:
  explicit CheckpointFolder(std::string path) : path_(std::move(path)) {}
  Status lock();
  void remove_leftovers();
  Status replace(std::int64_t step);
  Status remove(const std::string& name);
  void prune(std::int64_t step, int keep, const std::optional<BestResult>& best);
  void warn(const Status& status);

  std::string path_;
  Fd fd_;              // the locked folder, or its `.lock`
  std::string begun_;  // the folder that is being written, or ""
  std::string warnings_;
  std::set<std::string> warned_;
};

}  // namespace agpcs
