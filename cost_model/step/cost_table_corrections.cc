// SPDX-License-Identifier: Apache-2.0
// CostTable on kinds with a quick profile: curves of terms with fitted coefficients.
#include "cost_model/kernel/terms.h"
#include "cost_model/step/cost_table.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace agpcs {
namespace {

const Correction* correction_of(const KindFit& fit, std::string_view group) {
  const auto found =
      std::find_if(fit.corrections.begin(), fit.corrections.end(),
                   [&](const Correction& correction) { return correction.group == group; });
  return found == fit.corrections.end() ? nullptr : &*found;
}

}  // namespace

void CostTable::add_corrections(const DeviceKind& from, std::int64_t batch,
                                const std::vector<std::string>& signatures, bool measured_any,
                                Kind& kind) const {
  if (from.fit.corrections.empty()) return;
  const std::optional<KernelDevice> device =
      precision_ == Precision::kFp32 ? kernel_device(from, kernel_parameters(), Precision::kFp32)
                                     : std::nullopt;
  const Correction* const inputs =
      measured_any || of_parts_ ? nullptr : correction_of(from.fit, kInputGroup);
  // The first operator is the one that waits for the samples to be loaded.
  const auto loads = [&](OpId op) { return op == 0 && inputs != nullptr; };
  const auto curve_of_model = [&](OpId op, const Correction* correction) {
    std::vector<OperatorCurve::Point> points;
    for (const std::int64_t samples : modelled_samples(batch)) {
      OpSeconds seconds = estimate(kind, op, samples);
      if (correction != nullptr) {
        const OperatorTerms terms =
            operator_terms(*graph_, op, samples, cost_at(op, samples), device);
        seconds.forward = explained_seconds(terms.forward, samples, correction->forward);
        if (!correction->backward.coefficients.empty()) {
          seconds.backward = explained_seconds(terms.backward, samples, correction->backward);
        }
      }
      if (loads(op)) {
        seconds.forward +=
            explained_seconds(input_terms(input_bytes(*graph_, samples)), samples, inputs->forward);
      }
      points.push_back({samples, seconds});
    }
    return OperatorCurve(points);
  };
  std::unordered_map<std::string_view, int> curves;  // by signature
  for (OpId op = 0; op < static_cast<OpId>(graph_->ops.size()); ++op) {
    const auto index = static_cast<std::size_t>(op);
    const OpClass op_class = work_[index].op_class;
    const bool fitted =
        measured_any && kind.classes[static_cast<std::size_t>(op_class)].forward.fitted;
    const bool view = op_class == OpClass::kView;
    const Correction* const correction =
        fitted || view ? nullptr : correction_of(from.fit, correction_group(*graph_, op));
    if (kind.curve_of[index] >= 0 || (correction == nullptr && !loads(op))) continue;
    const auto next = static_cast<int>(kind.curves.size());
    const auto [at, added] =
        loads(op) ? std::pair(curves.end(), true) : curves.emplace(signatures[index], next);
    if (added) kind.curves.push_back(curve_of_model(op, correction));
    kind.curve_of[index] = added ? next : at->second;
  }
}

}  // namespace agpcs
