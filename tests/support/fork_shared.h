// SPDX-License-Identifier: Apache-2.0
// What a process has in common with those that it forks.
#pragma once

#include "ir/base/check.h"

#include <cerrno>
#include <cstring>
#include <new>
#include <pthread.h>
#include <sys/mman.h>
#include <utility>

namespace agpcs {

/// Where threads or processes wait for each other.
class SharedBarrier {
 public:
  explicit SharedBarrier(int count) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&barrier_, &attributes, static_cast<unsigned>(count));
    pthread_barrierattr_destroy(&attributes);
  }
  SharedBarrier(const SharedBarrier&) = delete;
  SharedBarrier& operator=(const SharedBarrier&) = delete;
  void meet() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_{};
};

/// A T that lies in memory which processes forked later share.
template <typename T>
class ForkShared {
 public:
  template <typename... Args>
  explicit ForkShared(Args&&... args) {
    void* const memory =
        mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    AGPCS_CHECK(memory != MAP_FAILED, "{}", std::strerror(errno));
    object_ = new (memory) T(std::forward<Args>(args)...);
  }
  ~ForkShared() { munmap(object_, sizeof(T)); }  // others may use it still
  ForkShared(const ForkShared&) = delete;
  ForkShared& operator=(const ForkShared&) = delete;
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }

 private:
  T* object_ = nullptr;
};

}  // namespace agpcs
