// SPDX-License-Identifier: Apache-2.0
#include <agpcs/status.h>

namespace agpcs {

int exit_code(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kUsage:
      return 2;
    case StatusCode::kInfeasible:
      return 3;
    case StatusCode::kInternal:
      return 70;
    case StatusCode::kCancelled:
      return 130;
    case StatusCode::kInvalidInput:
    case StatusCode::kUnavailable:
    case StatusCode::kTimeout:
    case StatusCode::kPeerFailed:
      return 1;
  }
  return 70;
}

}  // namespace agpcs
