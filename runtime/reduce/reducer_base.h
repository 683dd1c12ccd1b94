// SPDX-License-Identifier: Apache-2.0
// What all ways of coordination share: which gradients came in this step, and how a step fails.
#pragma once

#include "runtime/reduce/step_gradients.h"

#include <agpcs/gradient_reducer.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

class ReducerBase : public GradientReducer {
 public:
  ReducerBase(const GradientSet& set, Transport& transport, const ReducerOptions& options);

  int index_of(std::string_view name) const final;
  Status submit_absent(int gradient, const Buffer& sum) final;
  ReducerStats stats() const final;

 protected:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  const Gradient& gradient(int index) const {
    return set_.gradients[static_cast<std::size_t>(index)];
  }
  /// Returns the type in which gradients of `type` travel.
  DType wire_of(DType type) const;
  /// Notes a gradient of this step, or returns why it cannot be one.
  Status admit(int index, const Buffer& buffer, bool as_declared);
  /// Fails the step and aborts the transport; only the first failure counts. Returns that one.
  Status fail(const Status& status);
  Status failure() const;
  /// Waits until collectives no longer touch memory that is about to be freed.
  void let_go();
  /// Waits until `done()`, which looks at what the mutex guards. If this rank lacks gradients, the
  /// step fails here before other ranks give up, so that all ranks learn the cause; otherwise it
  /// fails at the limit with `late()`.
  template <typename Done, typename Late>
  Status wait_until(Lock& lock, const Done& done, const Late& late);
  void begin_step();  ///< begins the next step; needs the mutex held

  const GradientSet set_;
  const ReducerOptions options_;
  Transport& transport_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  StepGradients came_;
  std::vector<Buffer> buffers_;  // by gradient
  Status failure_;
  ReducerStats stats_;

 private:
  std::map<std::string, int, std::less<>> index_;
};

std::unique_ptr<GradientReducer> make_planned_reducer(const GradientSet& set, Transport& transport,
                                                      const ReducerOptions& options);
/// Needs: `set.ranks` and `set.host_of_rank` are filled in.
std::unique_ptr<GradientReducer> make_negotiated_reducer(const GradientSet& set,
                                                         Transport& transport,
                                                         const ReducerOptions& options);

template <typename Done, typename Late>
Status ReducerBase::wait_until(Lock& lock, const Done& done, const Late& late) {
  const auto begin = Clock::now();
  const auto ended = [&] { return !failure_.ok() || done(); };
  if (changed_.wait_until(lock, begin + options_.limit / 2, ended)) return failure_;
  const bool lacks = !came_.all();
  if (!lacks && changed_.wait_until(lock, begin + options_.limit, ended)) return failure_;
  const Status status(StatusCode::kTimeout, lacks ? came_.missing() : late());
  lock.unlock();
  return fail(status);
}

}  // namespace agpcs
