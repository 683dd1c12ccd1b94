// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 between two ends that have proved the job's token to each other (proof.h). Its secret
// follows from the token and from the nonces of that proof, so there are no certificates, and each
// connection has a secret of its own. Keys come from an exchange of Diffie and Hellman beside it:
// who learns the token later cannot read what was overheard.
#pragma once

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <sys/types.h>
#include <sys/uio.h>

namespace agpcs {

enum class TlsEnd : std::uint8_t { kConnector, kListener };

class Tls {
 public:
  enum class Step : std::uint8_t {
    kDone,    ///< both ends have the secret, and all that follows is encrypted
    kWaits,   ///< for bytes of the other end
    kClosed,  ///< the connection ended
    kRefused  ///< the other end does not have the secret, or what it said was changed
  };
  /// Begins TLS over `fd`, which must not block and stays the caller's. `records_a_key`: after so
  /// many records of 16 KiB at most it changes the key by which it encrypts; far fewer than the
  /// 2^24.5 that TLS 1.3 allows for AES-GCM.
  static Result<std::unique_ptr<Tls>> begin(int fd, TlsEnd end, const std::string& secret,
                                            std::int64_t records_a_key = std::int64_t{1} << 22);
  virtual ~Tls() = default;

  /// Goes on with the handshake. Reads nothing that comes after it.
  virtual Step shake_hands() = 0;

  // After the handshake one thread at a time may read, and one may write meanwhile.

  /// Does what readv does. EBADMSG: what came was changed on its way.
  virtual ssize_t read(const iovec* parts, int count) = 0;
  /// Tells whether something has been read from the socket that `read` has not returned yet.
  virtual bool has_unread() const = 0;
  /// Does what writev does, but that bytes which it took may still wait for room: see `flush`.
  virtual ssize_t write(const iovec* parts, int count) = 0;
  /// Sends what waits. Returns 0 once nothing does, or the errno: EAGAIN if there is no room.
  virtual int flush() = 0;
};

}  // namespace agpcs
