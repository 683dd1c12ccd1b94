// SPDX-License-Identifier: Apache-2.0
#include "cost_model/kernel/device.h"

#include "ir/plan/choices.h"

namespace agpcs {
namespace {

struct ProcessEnergy {
  std::string_view process;
  double relative;  // to TSMC 16FF
};

// docs/design/kernel_model.md has the sources.
constexpr double kFinfet16 = 1;
constexpr double kTsmc7 = 0.4 * kFinfet16;
constexpr double kTsmc5 = 0.7 * kTsmc7;
constexpr double kSamsung8 = 0.6 * 0.9 * kFinfet16;
constexpr double kFp32Bytes = 4;
constexpr ProcessEnergy kEnergies[] = {
    {"TSMC 16FF", kFinfet16}, {"TSMC 12FFN", kFinfet16}, {"TSMC N7", kTsmc7},
    {"TSMC N6", kTsmc7},      {"TSMC N5", kTsmc5},       {"TSMC 4N", kTsmc5},
    {"TSMC 4NP", kTsmc5},     {"Samsung 8N", kSamsung8},
};

}  // namespace

std::optional<double> relative_energy(std::string_view process) {
  for (const ProcessEnergy& entry : kEnergies) {
    if (entry.process == process) return entry.relative;
  }
  return std::nullopt;
}

std::optional<KernelDevice> kernel_device(const DeviceKind& kind,
                                          const KernelParameters& parameters, Precision precision) {
  const Processors& has = kind.processors;
  const std::optional<double> relative = relative_energy(has.process);
  const auto peak = kind.peak_flops.find(precision);
  if (has.count == 0 || has.board_power == 0 || !relative || has.memory_type.empty() ||
      peak == kind.peak_flops.end() || kind.memory_bandwidth == 0) {
    return std::nullopt;
  }
  KernelDevice device;
  device.processors = static_cast<double>(has.count);
  device.peak = peak->second;
  const bool stacked = has.memory_type.starts_with("HBM");
  device.bandwidth = kind.memory_bandwidth * (stacked ? parameters.hbm : parameters.gddr);
  device.tensor_cores = precision != Precision::kFp32;
  device.element_bytes = size_of(entry_of(kPrecisions, precision).held);
  double picojoules = parameters.picojoules;
  // The energy of tensor cores is that of the bits that they multiply.
  if (device.tensor_cores) picojoules = parameters.tensor_picojoules * device.element_bytes / 2;
  device.sustained = has.board_power / (*relative * picojoules * 1e-12);
  device.output_energy = parameters.output_energy * parameters.picojoules / picojoules *
                         device.element_bytes / kFp32Bytes;
  return device;
}

}  // namespace agpcs
