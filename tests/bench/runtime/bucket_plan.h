// SPDX-License-Identifier: Apache-2.0
// Plans whose steps are all-reduces of gradients and little else.
#pragma once

#include <agpcs/plan.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// One stage of `ranks` replicas, with a bucket of fp32 gradients for each number of `elements`.
Plan plan_of_buckets(int ranks, const std::vector<std::int64_t>& elements);

/// Gradients as they are bucketed in practice.
struct Buckets {
  std::string name;
  std::vector<std::int64_t> elements;
};

/// Those of ResNet-50 in buckets of about 25 MB, as PyTorch's default has them, and small ones.
std::vector<Buckets> usual_buckets();

}  // namespace agpcs
