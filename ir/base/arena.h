// SPDX-License-Identifier: Apache-2.0
// Arena: memory for many small things that go together.
#pragma once

#include <cstddef>
#include <memory_resource>

namespace agpcs {

/// Gives memory piece after piece, and takes it back as a whole when it ends: whatever lies in it
/// must end before. Not for concurrent use.
class Arena final : public std::pmr::memory_resource {
 public:
  /// Returns the bytes that were asked for, including those of what has ended.
  std::size_t bytes() const { return bytes_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    bytes_ += bytes;
    return pieces_.allocate(bytes, alignment);
  }
  void do_deallocate(void* /*piece*/, std::size_t /*bytes*/, std::size_t /*alignment*/) override {}
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::pmr::monotonic_buffer_resource pieces_;
  std::size_t bytes_ = 0;
};

}  // namespace agpcs
