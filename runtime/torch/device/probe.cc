// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/device/probe.h"

#include "runtime/torch/device/clock.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <exception>

namespace agpcs {

double DeviceProbe::run(double seconds, at::Device device) {
  constexpr std::int64_t kSide = 128, kMostProducts = 1'000'000;
  try {
    const at::NoGradGuard guard;
    const at::Tensor factor = at::ones({kSide, kSide}, at::device(device));
    at::Tensor product = at::empty_like(factor);
    const auto begin = std::chrono::steady_clock::now();
    const double busy_before = busy_seconds_of(device);
    const bool first = products_ == 0;
    const std::int64_t most = first ? kMostProducts : products_;
    std::int64_t done = 0;
    while (done < most && (!first || busy_seconds_of(device) - busy_before < seconds)) {
      at::mm_out(product, factor, factor);
      ++done;
    }
    busy_seconds_of(device);  // waits until it is done
    products_ = std::max<std::int64_t>(done, 1);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return first ? 0 : took.count();
  } catch (const std::exception&) {  // for lack of memory, say: nothing is known then
    return 0;
  }
}

}  // namespace agpcs
