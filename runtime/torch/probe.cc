// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/probe.h"

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
    const auto took = [begin = std::chrono::steady_clock::now()] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    const bool first = products_ == 0;
    const std::int64_t most = first ? kMostProducts : products_;
    std::int64_t done = 0;
    for (; done < most && (!first || took() < seconds); ++done) {
      at::mm_out(product, factor, factor);
      if (first) product.flatten()[0].item<float>();  // waits until it is done
    }
    product.flatten()[0].item<float>();
    products_ = std::max<std::int64_t>(done, 1);
    return first ? 0 : took();
  } catch (const std::exception&) {  // for lack of memory, say: nothing is known then
    return 0;
  }
}

}  // namespace agpcs
