// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/slice_sums.h"

#include <agpcs/types.h>

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

namespace agpcs {
namespace {

std::size_t bytes_of(std::int64_t elements, const Buffer& held) {
  return static_cast<std::size_t>(elements) * size_of(held.type);
}

}  // namespace

Result<SliceSums> SliceSums::make(const Plan& plan, const ResolvedProgram& program,
                                  Executor& executor) {
  SliceSums sums;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ResolvedInstruction& instruction = program.instructions[i];
    if (instruction.slices.empty()) continue;
    const PlanBucket& bucket = plan.buckets[static_cast<std::size_t>(instruction.id.object)];
    AGPCS_TRY(const Buffer held, executor.bucket(instruction.id.object));
    if (held.on_gpu) {
      return Status(StatusCode::kUnavailable,
                    fmt::format("bucket {}: gradients of unlike teams are summed in the host's "
                                "memory alone yet, and these are in an accelerator's\n"
                                "  hint: a plan whose stages have one body each "
                                "(agpcs-compile --without unlike-teams)",
                                bucket.name));
    }
    std::int64_t elements = 0;
    for (const ResolvedSlice& slice : instruction.slices) elements += slice.of.elements();
    if (held.bytes != bytes_of(elements, held)) {
      return internal_error(fmt::format("bucket {} has {} bytes, and {} elements in slices",
                                        bucket.name, held.bytes, elements));
    }
    sums.memory_.resize(program.instructions.size());
    const DType travels = travelling_type(bucket.type, plan.training.wire_type);
    sums.memory_[i].bytes =
        std::make_unique<char[]>(static_cast<std::size_t>(elements) * size_of(travels));
  }
  return sums;
}

void SliceSums::fill(const ResolvedInstruction& instruction, std::size_t index,
                     const Buffer& held) {
  Memory& memory = memory_[index];
  memory.held = held;
  const char* const from = static_cast<const char*>(held.data);
  char* to = memory.bytes.get();
  for (const ResolvedSlice& slice : instruction.slices) {
    for (const ElementRange& run : slice.of.runs) {
      const std::size_t size = bytes_of(run.size(), held);
      if (slice.of.counts) {
        std::memcpy(to, from + bytes_of(run.begin, held), size);
      } else {
        std::memset(to, 0, size);
      }
      to += size;
    }
  }
}

Buffer SliceSums::buffer_of(const ResolvedInstruction& instruction, std::size_t index,
                            std::size_t slice) const {
  const Memory& memory = memory_[index];
  std::size_t begin = 0;
  for (std::size_t i = 0; i < slice; ++i) {
    begin += bytes_of(instruction.slices[i].of.elements(), memory.held);
  }
  const std::int64_t elements = instruction.slices[slice].of.elements();
  return {memory.bytes.get() + begin, bytes_of(elements, memory.held), memory.held.type, false};
}

void SliceSums::take(const ResolvedInstruction& instruction, std::size_t index) const {
  const Memory& memory = memory_[index];
  char* const to = static_cast<char*>(memory.held.data);
  const char* from = memory.bytes.get();
  for (const ResolvedSlice& slice : instruction.slices) {
    for (const ElementRange& run : slice.of.runs) {
      const std::size_t size = bytes_of(run.size(), memory.held);
      std::memcpy(to + bytes_of(run.begin, memory.held), from, size);
      from += size;
    }
  }
}

}  // namespace agpcs
