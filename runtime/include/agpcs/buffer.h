// SPDX-License-Identifier: Apache-2.0
// A Buffer is memory that is sent, received or reduced.
#pragma once

#include <agpcs/types.h>

#include <cstddef>

namespace agpcs {

/// Contiguous memory that a transport reads or writes. The executor owns it; it is valid until the
/// next step's instruction of the same kind and micro-batch.
struct Buffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  DType type = DType::kFp32;
  bool on_gpu = false;
};

}  // namespace agpcs
