// SPDX-License-Identifier: Apache-2.0
// What all ways of coordination have in common: which gradients came in this step, and how a step
// fails.
#pragma once

#include "runtime/step_gradients.h"

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
  /// The type that travels for gradients of `type`.
  DType wire_of(DType type) const;
  /// Takes note of a gradient of this step, or says why it cannot be.
  Status admit(int index, const Buffer& buffer, bool as_declared);
  /// The step's first failure counts: it aborts the transport.
  Status fail(const Status& status);
  Status failure() const;
  /// Before memory that collectives may touch is freed.
  void let_go();
  /// Waits until `done()`, which looks at what the mutex guards. A step that lacks gradients on
  /// this rank fails before others give up, so that all hear of the cause; else, at the limit, it
  /// fails with `late()`.
  template <typename Done, typename Late>
  Status wait_until(Lock& lock, const Done& done, const Late& late);
  void begin_step();  ///< with the mutex held: the next one

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
/// `set.ranks` and `set.host_of_rank` are filled in.
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
