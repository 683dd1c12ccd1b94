// SPDX-License-Identifier: Apache-2.0
// The errors of the kernel model and of the roofline against measured kernels, and the fit of the
// model's parameters: kernel_errors FOLDER [both|v100_pcie|t4]. With a device, or both, the
// parameters are fitted to its kernels that are not held aside, starting from values that were set
// beforehand. Of kernel_errors FILE.csv, a list that tests/gpu/kernels.py wrote, nothing is fitted:
// it judges what plans expect.
#include "tests/bench/kernels/measured_kernels.h"
#include "tests/bench/kernels/measured_passes.h"
#include "tests/bench/kernels/simplex.h"
#include "tests/bench/support/mistakes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::string_view kBench = "kernel_errors";
constexpr std::string_view kUsage = "FOLDER [both|v100_pcie|t4], or FILE.csv";
constexpr double kShortestProduct = 1e-3, kShortestStream = 0.2e-3;  // seconds
/// Of our own list, for each kernel of a pass. A plan counts 5 us for a launch. The list has about
/// 2, as the device's queue is full. So launches explain at most 15% of what is judged.
constexpr double kShortestOwn = 20e-6;
constexpr double kStreamWeight = 0.2;  // of a set in the fit
constexpr double kBiasWeight = 0.15;   // of the mean error
constexpr double kMostError = 0.7;     // of one kernel in the fit, as a logarithm

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

Errors errors_of(std::vector<double> signed_errors) {
  if (signed_errors.empty()) return {};
  std::vector<double> sizes = signed_errors;
  for (double& size : sizes) size = std::abs(size);
  return {static_cast<int>(sizes.size()), at_part(sizes, 0.5), at_part(signed_errors, 0.5),
          at_part(sizes, 0.9)};
}

Errors errors_of(const MeasuredSet& set, const Predict& predict) {
  std::vector<double> signed_errors;
  for (const MeasuredKernel& kernel : set.kernels) {
    if (!kernel.held_aside || kernel.seconds < shortest(set)) continue;
    signed_errors.push_back(predict(set, kernel) / kernel.seconds - 1);
  }
  return errors_of(std::move(signed_errors));
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

/// Prints the columns of errors, which all tables share.
void print_errors(const Errors& model, const Errors& roof) {
  fmt::print(" {:>6}  {:>8.1f}% {:>+5.1f}% {:>5.1f}%  {:>14.1f}% {:>+5.1f}%\n", model.kernels,
             100 * model.median, 100 * model.bias, 100 * model.ninetieth, 100 * roof.median,
             100 * roof.bias);
}

void print_heading(std::string_view of) {
  fmt::print("{} {:>6}  {:>22}  {:>22}\n", of, "n", "model: median bias p90",
             "roofline: median bias");
}

void print_table(const std::vector<MeasuredSet>& sets, const KernelParameters& parameters) {
  print_heading(fmt::format("{:<10} {:<8}", "device", "class"));
  for (const MeasuredSet& set : sets) {
    const Errors model = errors_of(set, [&](const MeasuredSet& of, const MeasuredKernel& kernel) {
      return predicted_seconds(of, kernel, parameters);
    });
    fmt::print("{:<10} {:<8}", set.device, set.kernel_class);
    print_errors(model, errors_of(set, roofline_seconds));
  }
}

/// Prints a row by all kernels of a pass that are long enough; none where no kernel is.
void print_pass(const MeasuredPass& pass) {
  std::vector<double> model, roof;
  for (const MeasuredKernel& kernel : pass.set.kernels) {
    if (kernel.seconds < kShortestOwn * pass.kernels_each()) continue;
    const ExpectedSeconds expected = expected_seconds(pass, kernel);
    model.push_back(expected.model / kernel.seconds - 1);
    roof.push_back(expected.roofline / kernel.seconds - 1);
  }
  if (model.empty()) return;
  fmt::print("{:<12} {:<9} {:<8} {:<8}", pass.set.device, name_of(pass.precision),
             pass.set.kernel_class, pass.backward ? "backward" : "forward");
  print_errors(errors_of(std::move(model)), errors_of(std::move(roof)));
}

int judge_passes(const std::string& file) {
  const Result<std::vector<MeasuredPass>> passes = read_measured_passes(file);
  if (!passes.ok()) bench::end_with(passes.status().message());
  print_heading(fmt::format("{:<12} {:<9} {:<8} {:<8}", "device", "precision", "class", "pass"));
  for (const MeasuredPass& pass : *passes) print_pass(pass);
  return 0;
}

/// Judges by a folder of other people's kernels, and fits to it where `devices` are given.
int judge_folder(const std::string& folder, std::string_view devices) {
  const std::vector<MeasuredSet> sets = read_measured_kernels(folder);
  if (sets.empty()) {
    bench::end_with(
        fmt::format("{}: error: has no measured kernels\n  hint: it is to hold "
                    "v100_pcie_*.csv and t4_*.csv of NeuSight",
                    folder));
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

int run(int argc, char** argv) {
  if (argc < 2) bench::end_with_usage(kBench, "no measurements", kUsage);
  const std::string_view devices = argc > 2 ? argv[2] : "";
  if (argc > 2 && devices != "both" && devices != "v100_pcie" && devices != "t4") {
    bench::end_with_usage(kBench, fmt::format("unknown device '{}'", devices), kUsage);
  }
  if (!std::string_view(argv[1]).ends_with(".csv")) return judge_folder(argv[1], devices);
  if (argc > 2) bench::end_with_usage(kBench, "nothing is fitted to a list of our own", kUsage);
  return judge_passes(argv[1]);
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { return agpcs::run(argc, argv); }
