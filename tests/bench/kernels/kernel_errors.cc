// SPDX-License-Identifier: Apache-2.0
// The errors of the kernel model and of the roofline against measured kernels, and the fit of the
// model's parameters: kernel_errors FOLDER [both|v100_pcie|t4]. With a device, or both, the
// parameters are fitted to its kernels that are not held aside, starting from values that were set
// beforehand.
#include "tests/bench/kernels/measured_kernels.h"
#include "tests/bench/kernels/simplex.h"
#include "tests/bench/support/mistakes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

namespace agpcs {
namespace {

constexpr std::string_view kBench = "kernel_errors";
constexpr std::string_view kUsage = "FOLDER [both|v100_pcie|t4]";
constexpr double kShortestProduct = 1e-3, kShortestStream = 0.2e-3;  // seconds
constexpr double kStreamWeight = 0.2;                                // of a set in the fit
constexpr double kBiasWeight = 0.15;                                 // of the mean error
constexpr double kMostError = 0.7;  // of one kernel in the fit, as a logarithm

using Predict = std::function<double(const MeasuredSet&, const MeasuredKernel&)>;

double shortest(const MeasuredSet& set) {
  return set.is_product() ? kShortestProduct : kShortestStream;
}

struct Errors {
  int kernels = 0;
  double median = 0, bias = 0, ninetieth = 0;
};

double at_part(std::vector<double>& values, double part) {
  const auto index =
      static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + index, values.end());
  return values[static_cast<std::size_t>(index)];
}

Errors errors_of(const MeasuredSet& set, const Predict& predict) {
  std::vector<double> signed_errors, sizes;
  for (const MeasuredKernel& kernel : set.kernels) {
    if (!kernel.held_aside || kernel.seconds < shortest(set)) continue;
    signed_errors.push_back(predict(set, kernel) / kernel.seconds - 1);
    sizes.push_back(std::abs(signed_errors.back()));
  }
  if (sizes.empty()) return {};
  return {static_cast<int>(sizes.size()), at_part(sizes, 0.5), at_part(signed_errors, 0.5),
          at_part(sizes, 0.9)};
}

/// Returns the mean error of the kernels that are not held aside, and half of its signed mean,
/// every set with its weight.
double loss(const std::vector<MeasuredSet>& sets, std::string_view devices,
            const KernelParameters& parameters) {
  double total = 0;
  for (const MeasuredSet& set : sets) {
    if (devices != "both" && set.device != devices) continue;
    double sum = 0, signed_sum = 0;
    int kernels = 0;
    for (const MeasuredKernel& kernel : set.kernels) {
      if (kernel.held_aside || kernel.seconds < shortest(set)) continue;
      const double predicted = predicted_seconds(set, kernel, parameters);
      const double error =
          std::clamp(std::log(predicted / kernel.seconds), -kMostError, kMostError);
      sum += std::abs(error);
      signed_sum += error;
      ++kernels;
    }
    if (kernels == 0) continue;
    total += (set.is_product() ? 1 : kStreamWeight) * (sum + kBiasWeight * std::abs(signed_sum)) /
             kernels;
  }
  return total;
}

KernelParameters parameters_at(const std::vector<double>& logarithms) {
  KernelParameters parameters;
  std::size_t i = 0;
  for (const KernelParameterEntry& entry : kernel_parameter_entries()) {
    parameters.*entry.value = std::exp(logarithms[i++]);
  }
  return parameters;
}

/// Returns where every fit starts: values that were set before anything was fitted.
KernelParameters first_guess() {
  KernelParameters guess;
  guess.picojoules = kCitedPicojoules;
  guess.fill = 1;
  guess.output_energy = 20;
  guess.overlap = 2;
  guess.winograd_large = 0.7;
  guess.winograd_small = 0.3;
  guess.transforms = guess.filters = 1;
  guess.hbm = 750.0 / 900;
  guess.gddr = 220.0 / 320;
  guess.normalization = guess.softmax = 1.5;
  return guess;
}

/// Sets what one device by itself cannot tell: the energy of an operation, as cited, and the part
/// of the bandwidth that the other memory gives, as measured by Jia et al. (arXiv:1804.06826 and
/// 1903.07486).
KernelParameters with_cited(std::string_view devices, KernelParameters parameters) {
  if (devices == "both") return parameters;
  parameters.picojoules = kCitedPicojoules;
  if (devices == "v100_pcie") parameters.gddr = first_guess().gddr;
  if (devices == "t4") parameters.hbm = first_guess().hbm;
  return parameters;
}

KernelParameters fitted(const std::vector<MeasuredSet>& sets, std::string_view devices) {
  const KernelParameters guess = first_guess();
  std::vector<double> start;
  for (const KernelParameterEntry& entry : kernel_parameter_entries()) {
    start.push_back(std::log(guess.*entry.value));
  }
  const auto at = [&](const std::vector<double>& x) {
    return with_cited(devices, parameters_at(x));
  };
  return at(bench::minimized(
      std::move(start), [&](const std::vector<double>& x) { return loss(sets, devices, at(x)); }));
}

void print_table(const std::vector<MeasuredSet>& sets, const KernelParameters& parameters) {
  fmt::print("{:<10} {:<8} {:>6}  {:>22}  {:>22}\n", "device", "class", "n",
             "model: median bias p90", "roofline: median bias");
  for (const MeasuredSet& set : sets) {
    const Errors model = errors_of(set, [&](const MeasuredSet& of, const MeasuredKernel& kernel) {
      return predicted_seconds(of, kernel, parameters);
    });
    const Errors roof = errors_of(set, roofline_seconds);
    fmt::print("{:<10} {:<8} {:>6}  {:>8.1f}% {:>+5.1f}% {:>5.1f}%  {:>14.1f}% {:>+5.1f}%\n",
               set.device, set.kernel_class, model.kernels, 100 * model.median, 100 * model.bias,
               100 * model.ninetieth, 100 * roof.median, 100 * roof.bias);
  }
}

int run(int argc, char** argv) {
  if (argc < 2) bench::end_with_usage(kBench, "no folder of measurements", kUsage);
  const std::string_view devices = argc > 2 ? argv[2] : "";
  if (argc > 2 && devices != "both" && devices != "v100_pcie" && devices != "t4") {
    bench::end_with_usage(kBench, fmt::format("unknown device '{}'", devices), kUsage);
  }
  const std::vector<MeasuredSet> sets = read_measured_kernels(argv[1]);
  if (sets.empty()) {
    bench::end_with(
        fmt::format("{}: error: has no measured kernels\n  hint: it is to hold "
                    "v100_pcie_*.csv and t4_*.csv of NeuSight",
                    argv[1]));
  }
  KernelParameters parameters = kernel_parameters();
  if (!devices.empty()) {
    parameters = fitted(sets, devices);
    for (const KernelParameterEntry& entry : kernel_parameter_entries()) {
      fmt::print("{} {:.4g}\n", entry.name, parameters.*entry.value);
    }
  }
  print_table(sets, parameters);
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { return agpcs::run(argc, argv); }
