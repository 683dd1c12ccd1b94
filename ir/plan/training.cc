// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/choices.h"

#include <agpcs/training.h>

namespace agpcs {

std::string_view name_of(Precision precision) { return entry_of(kPrecisions, precision).name; }
std::string_view name_of(AttentionForm attention) {
  return entry_of(kAttentionForms, attention).name;
}
std::string_view name_of(LossKind loss) { return entry_of(kLosses, loss).name; }
std::string_view name_of(OptimizerKind optimizer) { return entry_of(kOptimizers, optimizer).name; }

const OptimizerVariant& variant_of(const Optimizer& optimizer) {
  if (optimizer.kind != OptimizerKind::kSgd) return kOptimizerVariants[2];
  return kOptimizerVariants[optimizer.momentum != 0 ? 1 : 0];
}

}  // namespace agpcs
