// SPDX-License-Identifier: Apache-2.0
#include "cost_model/kernel/parameters.h"

namespace agpcs {
namespace {

using P = KernelParameters;
constexpr KernelParameterEntry kEntries[] = {
    {"picojoules", &P::picojoules},
    {"fill", &P::fill},
    {"output_energy", &P::output_energy},
    {"overlap", &P::overlap},
    {"winograd_large", &P::winograd_large},
    {"winograd_small", &P::winograd_small},
    {"transforms", &P::transforms},
    {"filters", &P::filters},
    {"hbm", &P::hbm},
    {"gddr", &P::gddr},
    {"normalization", &P::normalization},
    {"softmax", &P::softmax},
};
constexpr KernelParameters kParameters;

}  // namespace

const KernelParameters& kernel_parameters() { return kParameters; }

std::span<const KernelParameterEntry> kernel_parameter_entries() { return kEntries; }

}  // namespace agpcs
