// SPDX-License-Identifier: Apache-2.0
// Fd: a file descriptor that has an owner.
#pragma once

#include <unistd.h>
#include <utility>

namespace agpcs {

/// A file descriptor that closes itself; -1 stands for no descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = other.release();
    }
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) close(release());
  }

 private:
  int fd_ = -1;
};

}  // namespace agpcs
