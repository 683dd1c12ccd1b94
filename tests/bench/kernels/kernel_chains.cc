// SPDX-License-Identifier: Apache-2.0
// What errors of kernels cost a plan: kernel_chains FOLDER. Chains of measured kernels are divided
// between V100 and T4 by predicted times, and the result is judged by the measured times, beside
// the best division by these.
#include "ir/base/rng.h"
#include "tests/bench/kernels/measured_kernels.h"
#include "tests/bench/support/mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

constexpr std::string_view kBench = "kernel_chains";
constexpr int kChains = 200;
constexpr std::size_t kLength = 26;
/// Seconds of a kernel: at least on V100, and at most on T4, whose clock falls in longer ones.
constexpr double kShortest = 1e-3, kLongest = 10e-3;
constexpr std::uint64_t kSeed = 20'251;
/// Devices of a pipeline, in its order: 0 is V100, 1 is T4.
constexpr std::array<int, 4> kPipeline = {0, 1, 0, 1};

/// Seconds of a kernel on V100 and on T4.
using Pair = std::array<double, 2>;

struct Kernel {
  Pair measured, model, roofline;
};

/// Returns the kernels of a class that are held aside and were measured on both devices.
std::vector<Kernel> kernels_of_both(const MeasuredSet& v100, const MeasuredSet& t4) {
  std::map<std::array<double, 7>, const MeasuredKernel*> others;
  for (const MeasuredKernel& kernel : t4.kernels) others.emplace(kernel.shape, &kernel);
  std::vector<Kernel> both;
  for (const MeasuredKernel& kernel : v100.kernels) {
    const auto other = others.find(kernel.shape);
    if (!kernel.held_aside || kernel.seconds < kShortest || other == others.end()) continue;
    if (other->second->seconds > kLongest) continue;
    const auto pair = [&](const auto& seconds) {
      return Pair{seconds(v100, kernel), seconds(t4, *other->second)};
    };
    both.push_back({pair([](const MeasuredSet&, const MeasuredKernel& of) { return of.seconds; }),
                    pair([](const MeasuredSet& set, const MeasuredKernel& of) {
                      return predicted_seconds(set, of, kernel_parameters());
                    }),
                    pair(roofline_seconds)});
  }
  return both;
}

/// A division of a chain: where each stage ends, or the part of the samples that V100 has.
struct Division {
  std::array<std::size_t, kPipeline.size()> ends = {};
  double part = 0;
};

using Chain = std::vector<Kernel>;
using Times = Pair Kernel::*;

double bottleneck(const Chain& chain, Times times, const Division& division) {
  double most = 0;
  std::size_t i = 0;
  for (std::size_t stage = 0; stage < kPipeline.size(); ++stage) {
    double seconds = 0;
    for (; i < division.ends[stage]; ++i) {
      seconds += (chain[i].*times)[static_cast<std::size_t>(kPipeline[stage])];
    }
    most = std::max(most, seconds);
  }
  return most;
}

/// Returns the contiguous stages with the shortest bottleneck, by trying all.
Division best_cuts(const Chain& chain, Times times) {
  Division best;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t a = 0; a <= chain.size(); ++a) {
    for (std::size_t b = a; b <= chain.size(); ++b) {
      for (std::size_t c = b; c <= chain.size(); ++c) {
        const Division division = {{a, b, c, chain.size()}, 0};
        const double seconds = bottleneck(chain, times, division);
        if (seconds >= least) continue;
        least = seconds;
        best = division;
      }
    }
  }
  return best;
}

Pair sums(const Chain& chain, Times times) {
  Pair total = {};
  for (const Kernel& kernel : chain) {
    for (std::size_t d = 0; d < total.size(); ++d) total[d] += (kernel.*times)[d];
  }
  return total;
}

double slower_share(const Chain& chain, Times times, const Division& division) {
  const Pair total = sums(chain, times);
  return std::max(division.part * total[0], (1 - division.part) * total[1]);
}

Division best_share(const Chain& chain, Times times) {
  const Pair total = sums(chain, times);
  return {{}, total[1] / (total[0] + total[1])};
}

void print_row(std::string_view chains, std::string_view what, std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  double mean = 0;
  for (const double ratio : ratios) mean += ratio / static_cast<double>(ratios.size());
  const auto within =
      static_cast<double>(std::upper_bound(ratios.begin(), ratios.end(), 1.05) - ratios.begin());
  fmt::print("| {} | {} | {:.1f}% | {:.1f}% | {:.1f}% | {:.0f}% |\n", chains, what,
             100 * (mean - 1), 100 * (ratios[ratios.size() * 9 / 10] - 1),
             100 * (ratios.back() - 1), 100 * within / static_cast<double>(ratios.size()));
}

void judge(std::string_view name, const std::vector<Kernel>& kernels) {
  if (kernels.empty()) return;
  std::map<std::string, std::vector<double>> ratios;
  Rng rng = Rng(kSeed).fork(name);
  for (int i = 0; i < kChains; ++i) {
    Chain chain;
    while (chain.size() < kLength) chain.push_back(kernels[rng.below(kernels.size())]);
    const auto add = [&](std::string_view of, const auto& divide, const auto& step) {
      const double best = step(chain, &Kernel::measured, divide(chain, &Kernel::measured));
      for (const auto& [by, times] :
           {std::pair{"model", &Kernel::model}, std::pair{"roofline", &Kernel::roofline}}) {
        const double seconds = step(chain, &Kernel::measured, divide(chain, times));
        ratios[fmt::format("{}, {}", of, by)].push_back(seconds / best);
      }
    };
    add("shares", best_share, slower_share);
    add("pipeline", best_cuts, bottleneck);
  }
  for (const auto& [what, values] : ratios) print_row(name, what, values);
}

int run(int argc, char** argv) {
  if (argc != 2) bench::end_with_usage(kBench, "it takes a folder of measurements", "FOLDER");
  const std::vector<MeasuredSet> sets = read_measured_kernels(argv[1]);
  const auto set_of = [&](std::string_view device, std::string_view kernel_class) {
    const auto found = std::find_if(sets.begin(), sets.end(), [&](const MeasuredSet& set) {
      return set.device == device && set.kernel_class == kernel_class;
    });
    if (found == sets.end()) {
      bench::end_with(fmt::format("{}: error: {} has no file {}_{}.csv", kBench, argv[1], device,
                                  kernel_class));
    }
    return *found;
  };
  fmt::print(
      "| chains of | divided by | longer than the best, mean | 9 of 10 | worst | within 5% |\n"
      "| --- | --- | --- | --- | --- | --- |\n");
  std::vector<Kernel> all;
  for (const std::string_view kernel_class : {"linear", "bmm", "conv"}) {
    const std::vector<Kernel> kernels =
        kernels_of_both(set_of("v100_pcie", kernel_class), set_of("t4", kernel_class));
    judge(kernel_class, kernels);
    all.insert(all.end(), kernels.begin(), kernels.end());
  }
  judge("all three", all);
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { return agpcs::run(argc, argv); }
