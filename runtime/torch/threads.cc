// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/threads.h"

#include "runtime/torch/blas.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace agpcs {

Status use_threads(int count) {
  if (count <= 0) return {};
  // The pool starts with a thread for each core, before it accepts another number.
  const int most = std::max(count, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<std::thread> others;
  std::promise<void> all_there;
  const std::shared_future<void> go_on = all_there.get_future().share();
  std::optional<std::string> trouble;
  try {
    while (static_cast<int>(others.size()) < most) {
      others.emplace_back([go_on] { go_on.wait(); });
    }
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  all_there.set_value();
  for (std::thread& other : others) other.join();
  if (trouble) {
    return {
        StatusCode::kUnavailable,
        fmt::format("{} of {} threads can be started: {}\n"
                    "  hint: raise the limits of this process (ulimit -u, ulimit -v), or ask for "
                    "fewer with --threads",
                    others.size(), most, *trouble)};
  }
  at::set_num_threads(count);
  use_blas_threads(count);
  return {};
}

}  // namespace agpcs
