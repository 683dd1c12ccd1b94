// SPDX-License-Identifier: Apache-2.0
// Replaces sequences of tensors, which no graph has, by the tensors in them.
#pragma once

#include "frontend/onnx/proto.h"

namespace agpcs::frontend {

/// Replaces SplitToSequence by Split, ConcatFromSequence by Concat, and SequenceAt by Identity, and
/// removes SequenceConstruct. This is how PyTorch's exporter writes torch.split before it optimizes
/// a model. Sequences stay, for the import to refuse, if the extents of their parts are not known
/// from the file, if an index is not a constant of the file or out of range, or if another operator
/// takes them. Cost: O(nodes).
void replace_sequences(onnx::ModelProto& proto);

}  // namespace agpcs::frontend
