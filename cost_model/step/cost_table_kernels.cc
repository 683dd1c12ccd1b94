// SPDX-License-Identifier: Apache-2.0
// CostTable on kinds whose processors are known: curves of the kernel model.
#include "cost_model/kernel/operator.h"
#include "cost_model/step/cost_table.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace agpcs {
namespace {

/// Lists what the seconds of an operator follow from, for one number of samples.
void append(const OperatorKernels& kernels, std::vector<double>& key) {
  const Convolution& c = kernels.convolution;
  for (const double value :
       {c.images, c.groups, c.channels_in, c.channels_out, c.height_in, c.width_in, c.height_out,
        c.width_out, c.kernel_height, c.kernel_width, c.stride, c.dilation}) {
    key.push_back(value);
  }
  for (const auto* pass : {&kernels.forward, &kernels.backward}) {
    key.push_back(pass->stream_bytes);
    key.push_back(static_cast<double>(pass->products.size()));
    for (const auto& [batch, m, n, k] : pass->products) key.insert(key.end(), {batch, m, n, k});
    key.push_back(static_cast<double>(pass->convolutions.size()));
    for (const ConvolutionPass of : pass->convolutions) key.push_back(static_cast<double>(of));
  }
}

bool names(const DeviceKind& kind, OpClass op_class) {
  return kind.efficiency.contains(std::string(name_of(op_class)));
}

}  // namespace

void CostTable::set_rates(const DeviceKind& from, const KernelDevice& device, Roofline& roofline) {
  const double elementwise = default_efficiency(OpClass::kElementwise);
  for (int i = 0; i < kOpClassCount; ++i) {
    const auto op_class = static_cast<OpClass>(i);
    const auto c = static_cast<std::size_t>(i);
    if (names(from, op_class)) continue;
    if (bound_by_arithmetic(op_class)) {
      roofline.flops[c] = std::min(roofline.flops[c], device.sustained);
      roofline.bandwidth[c] = device.bandwidth;
      continue;
    }
    const double traffic = stream_traffic(op_class, kernel_parameters());
    const double rate = traffic > 1 ? 1 / traffic : default_efficiency(op_class) / elementwise;
    roofline.bandwidth[c] = device.bandwidth * std::min(1.0, rate);
  }
}

OperatorCurve CostTable::modelled_curve(const DeviceKind& from, const KernelDevice& device, OpId op,
                                        std::int64_t batch) const {
  std::vector<OperatorCurve::Point> points;
  for (const std::int64_t samples : modelled_samples(batch)) {
    const std::optional<OperatorKernels> kernels = kernels_of(*graph_, op, samples, precision_);
    const auto seconds = [&](const OperatorKernels::Pass& pass) {
      return pass_seconds(device, kernel_parameters(), *kernels, pass, from.launch_overhead);
    };
    points.push_back({samples, {seconds(kernels->forward), seconds(kernels->backward)}});
  }
  return OperatorCurve(points);
}

void CostTable::add_kernels(const DeviceKind& from, std::int64_t batch, Kind& kind) const {
  const std::optional<KernelDevice> device = kernel_device(from, kernel_parameters(), precision_);
  if (!device) return;
  set_rates(from, *device, kind.roofline);
  std::map<std::vector<double>, int> known;  // by the kernels for one sample and for two
  kind.curve_of.assign(graph_->ops.size(), -1);
  for (OpId op = 0; op < static_cast<OpId>(graph_->ops.size()); ++op) {
    if (names(from, work_[static_cast<std::size_t>(op)].op_class)) continue;
    std::vector<double> key;
    for (const std::int64_t samples : {1, 2}) {
      if (const auto kernels = kernels_of(*graph_, op, samples, precision_)) append(*kernels, key);
    }
    if (key.empty()) continue;
    const auto [found, added] = known.emplace(std::move(key), static_cast<int>(known.size()));
    kind.curve_of[static_cast<std::size_t>(op)] = found->second;
    if (!added) continue;
    kind.curves.push_back(modelled_curve(from, *device, op, batch));
  }
}

}  // namespace agpcs
