// SPDX-License-Identifier: Apache-2.0
// Checkpoint: the contents of a checkpoint's manifest, and its text form
// (docs/reference/checkpoints.md). The manifest, checkpoint.txt, lists the other files of the
// checkpoint, and says where each tensor lies in them.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// The version in a manifest's first line. A reader refuses any other.
inline constexpr int kCheckpointVersion = 1;

inline constexpr const char* kManifestFile = "checkpoint.txt";
inline constexpr const char* kModelFile = "model.onnx";
inline constexpr const char* kModelDataFile = "model.onnx.data";
inline constexpr const char* kOptimizerFile = "optimizer.data";

/// A file of a checkpoint other than the manifest.
struct CheckpointFile {
  std::string name;
  std::int64_t bytes = 0;
  std::string digest;  ///< "sha256:..."
  friend bool operator==(const CheckpointFile&, const CheckpointFile&) = default;
};

/// Says where an item's elements lie: fp32, little-endian, row-major.
struct CheckpointItem {
  StateItem item;
  std::string file;  ///< kModelDataFile or kOptimizerFile
  std::int64_t offset = 0;
  friend bool operator==(const CheckpointItem&, const CheckpointItem&) = default;
};

/// The validation with the least loss of a job so far: of the state before step `step`.
struct BestResult {
  std::int64_t step = 0;
  double loss = 0;
  friend bool operator==(const BestResult&, const BestResult&) = default;
};

/// The contents of a manifest.
struct Checkpoint {
  std::string made_by;    ///< the version of AGPCS
  std::int64_t step = 0;  ///< the next step
  std::int64_t batch = 0;
  std::uint64_t seed = 0;
  std::optional<BestResult> best;  ///< none: the job does not keep its best checkpoint
  std::string model_digest, plan_digest;
  std::vector<CheckpointFile> files;  ///< kModelFile, kModelDataFile, kOptimizerFile
  std::vector<CheckpointItem> items;  ///< by tensor, slot
  friend bool operator==(const Checkpoint&, const Checkpoint&) = default;
};

/// Returns the manifest's text. Its last line is the digest of all lines before it.
std::string print_checkpoint(const Checkpoint& checkpoint);

/// Parses a manifest. Accepts exactly what `print_checkpoint` writes, and only if the items lie
/// within their files and share no byte. `file` names the manifest in messages, which have a line,
/// both values and a hint.
Result<Checkpoint> parse_checkpoint(std::string_view text, std::string_view file);

}  // namespace agpcs
