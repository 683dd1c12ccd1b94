// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/withdraw.h"

namespace agpcs {

Status withdraw(Transport& transport, Status failure, std::chrono::milliseconds limit) {
  transport.abort(failure);
  for (const Stream stream : {Stream::kSend, Stream::kRecv, Stream::kCollective}) {
    [[maybe_unused]] const Status known = transport.wait(stream, 0, limit);
  }
  return failure;
}

}  // namespace agpcs
