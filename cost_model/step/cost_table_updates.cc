// SPDX-License-Identifier: Apache-2.0
// The seconds of the optimizer's step.
#include "cost_model/step/cost_table.h"
#include "ir/base/check.h"
#include "ir/plan/choices.h"
#include "ir/strategy/offload.h"

#include <algorithm>

namespace agpcs {

double update_bytes(std::string_view optimizer, Precision precision) {
  const bool half = size_of(entry_of(kPrecisions, precision).held) == 2;
  const double parameter = half ? 4 + 4 + 2 : 4 + 4;
  const double gradient = half ? 2 : 4;
  for (const OptimizerVariant& variant : kOptimizerVariants) {
    if (variant.name == optimizer) return parameter + gradient + variant.state_tensors * (4 + 4);
  }
  AGPCS_CHECK(false, "optimizer '{}'", optimizer);
}

void CostTable::add_update(const DeviceKind& from, Kind& kind) const {
  const double clipping = clips_ ? clipping_bytes(precision_) : 0;
  const double bytes = update_bytes(optimizer_, precision_) + clipping;
  const std::vector<UpdateFit>& fits = from.fit.updates;
  const auto elementwise = static_cast<std::size_t>(OpClass::kElementwise);
  if (kind.profiled && !fits.empty()) {
    const auto same = std::find_if(fits.begin(), fits.end(), [&](const UpdateFit& fit) {
      return fit.optimizer == optimizer_;
    });
    const UpdateFit& fit = same != fits.end() ? *same : fits.front();
    const double scale = bytes / update_bytes(fit.optimizer, precision_);
    kind.update_per_tensor = scale * fit.per_tensor;
    kind.update_per_element = scale * fit.per_element;
  } else if (kind.datasheet) {
    kind.update_per_tensor = kind.roofline.launch_overhead;
    kind.update_per_element = bytes / kind.roofline.bandwidth[elementwise];
  } else {
    kind.update_per_tensor = kind.classes[elementwise].forward.overhead;
    kind.update_per_element = bytes * kind.classes[elementwise].forward.per_byte;
  }
}

double CostTable::update_seconds(int kind, std::int64_t elements, std::int64_t tensors,
                                 bool in_host) const {
  const Kind& of = used_kind(kind);
  const double seconds = of.update_per_element * static_cast<double>(elements) +
                         of.update_per_tensor * static_cast<double>(tensors);
  return in_host ? offloaded_seconds(seconds, elements, state_bytes_, of.host_link) : seconds;
}

double CostTable::begin_seconds(int kind, std::int64_t elements) const {
  return used_kind(kind).begin_per_element * static_cast<double>(elements);
}

}  // namespace agpcs
