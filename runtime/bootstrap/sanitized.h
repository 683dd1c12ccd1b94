// SPDX-License-Identifier: Apache-2.0
// Tells the thread sanitizer in which order bytes go over connections. What a rank receives may lie
// where it has sent something from, as other ranks answer that; the sanitizer sees no order between
// different connections. Elsewhere this does nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __SANITIZE_THREAD__
extern "C" {                                                  // of libtsan
void __tsan_acquire(void* address);                           // NOLINT: its names
void __tsan_release(void* address);                           // NOLINT
void __tsan_read_range(void* address, unsigned long bytes);   // NOLINT
void __tsan_write_range(void* address, unsigned long bytes);  // NOLINT
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace agpcs {

#ifdef __SANITIZE_THREAD__

/// All that was sent comes before all that is received after it.
inline char sent_before_received;

/// Returns what `send` returns, which sends `parts`. They are read before anybody can answer.
template <typename Send>
ssize_t sanitized_send(const iovec* parts, int count, const Send& send) {
  for (int i = 0; i < count; ++i) __tsan_read_range(parts[i].iov_base, parts[i].iov_len);
  __tsan_release(&sent_before_received);
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  const ssize_t bytes = send();
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return bytes;
}

/// Returns what `receive` returns, which fills `parts`. They are written after all was sent that
/// this may answer.
template <typename Receive>
ssize_t sanitized_receive(const iovec* parts, int count, const Receive& receive) {
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  const ssize_t bytes = receive();
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  __tsan_acquire(&sent_before_received);
  auto left = static_cast<std::size_t>(std::max<ssize_t>(bytes, 0));
  for (int i = 0; i < count && left > 0; ++i) {
    const std::size_t part = std::min(left, parts[i].iov_len);
    __tsan_write_range(parts[i].iov_base, part);
    left -= part;
  }
  return bytes;
}

#else

template <typename Send>
ssize_t sanitized_send(const iovec* /*parts*/, int /*count*/, const Send& send) {
  return send();
}

template <typename Receive>
ssize_t sanitized_receive(const iovec* /*parts*/, int /*count*/, const Receive& receive) {
  return receive();
}

#endif

}  // namespace agpcs
