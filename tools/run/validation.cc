// SPDX-License-Identifier: Apache-2.0
#include "tools/run/validation.h"

#include "runtime/job/state_moves.h"
#include "tools/run/gathering.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace agpcs {

Status Validation::run(Trainer& trainer, Transport& transport, bool last) {
  const std::int64_t step = trainer.next_step();
  const bool every = options_.validate_every > 0 && step % options_.validate_every == 0;
  if (options_.validate.empty() || step == validated_ || (!every && !last)) return {};
  const auto begin = std::chrono::steady_clock::now();
  AGPCS_RETURN_IF_ERROR(share_statistics(trainer.executor(), transport));
  AGPCS_TRY(const Evaluation result, trainer.evaluate());
  validated_ = step;
  const bool better = !best_ || result.loss < best_->loss;
  if (better && std::isfinite(result.loss)) best_ = BestResult{step, result.loss};
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (report_ != nullptr) report_->validated(step, result, seconds.count());
  return {};
}

Status Validation::share_statistics(Executor& executor, Transport& transport) const {
  std::set<std::string> names;
  for (const Tensor& tensor : graph_.tensors) {
    if (tensor.kind == TensorKind::kState) names.insert(tensor.name);
  }
  if (names.empty()) return {};
  std::vector<StateItem> own;
  for (const StateItem& item : executor.state()) {
    if (item.slot == kValueSlot && names.count(item.tensor) != 0) own.push_back(item);
  }
  const auto limit = milliseconds_of(options_.timeout);
  AGPCS_TRY(const StateOwners owners, share_state_owners(own, transport, limit));
  AGPCS_TRY(const std::vector<StateMove> first, gathering(owners));
  std::vector<StateMove> moves;
  for (const StateMove& from : first) {
    for (std::size_t rank = 0; rank < owners.size(); ++rank) {
      const bool holds =
          std::find(owners[rank].begin(), owners[rank].end(), from.item) != owners[rank].end();
      const int to = static_cast<int>(rank);
      if (holds && to != from.from) moves.push_back({from.item, from.from, to});
    }
  }
  return carry_state(
      moves,
      [&](const StateItem& item, std::int64_t at, std::int64_t count, float* out) {
        return executor.read_state(item, at, count, out);
      },
      [&](const StateItem& item, std::int64_t at, std::int64_t count, const float* values) {
        return executor.write_state(item, at, count, values);
      },
      transport, limit);
}

}  // namespace agpcs
