// SPDX-License-Identifier: Apache-2.0
#include "cost_model/fit/corrections.h"

#include "cost_model/fit/robust_fit.h"
#include "cost_model/kernel/terms.h"
#include "ir/graph/op_signature.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kFewestSights = 3;  // of different sizes
constexpr std::size_t kFewestShapes = 3;  // for a factor
constexpr double kMostFactor = 2;
constexpr int kTurns = 3;

/// A pass of a probe for one number of samples.
struct Sight {
  std::string group;
  OpClass op_class = OpClass::kElementwise;
  std::size_t shape = 0;  // of the probe
  std::int64_t samples = 0;
  std::vector<double> terms, rough;  // of its group, and those that all groups have
  double seconds = 0;
};

struct Sights {
  std::vector<Sight> forward, backward;
};

void add_probe(const MeasuredOperator& probe, std::size_t shape,
               const std::optional<KernelDevice>& kernels, Sights& sights) {
  const bool input = probe.signature.rfind(std::string(kInputGroup) + "(", 0) == 0;
  if (!input && probe.op_class == OpClass::kView) return;  // takes no time in plans
  const std::optional<Graph> graph = graph_of_signature(probe.signature);
  if (!graph) return;
  const std::string group = input ? kInputGroup : correction_group(*graph, 0);
  for (const MeasuredOperator::Point& point : probe.points) {
    const OpCost& work = point.work;
    OperatorTerms terms;
    if (input) {
      terms.forward = input_terms(work.forward_bytes);
    } else {
      terms = operator_terms(*graph, 0, point.samples, work, kernels);
    }
    const auto keep = [&](std::vector<double>& of, double flops, double bytes, double seconds,
                          std::vector<Sight>& to) {
      if (of.empty() || seconds <= 0) return;
      to.push_back(
          {group, probe.op_class, shape, point.samples, std::move(of), {1, flops, bytes}, seconds});
    };
    keep(terms.forward, work.forward_flops, work.forward_bytes, point.forward.seconds,
         sights.forward);
    keep(terms.backward, work.backward_flops, work.backward_bytes, point.backward.seconds,
         sights.backward);
  }
}

Sights sights_of(const DeviceProfile& device, const DeviceKind& kind) {
  const std::optional<KernelDevice> kernels =
      kernel_device(kind, kernel_parameters(), Precision::kFp32);
  Sights sights;
  for (std::size_t i = 0; i < device.probes.size(); ++i) {
    add_probe(device.probes[i], i, kernels, sights);
  }
  return sights;
}

/// Returns the sights that `wanted` holds for.
template <typename Wanted>
std::vector<const Sight*> chosen(const std::vector<Sight>& sights, const Wanted& wanted) {
  std::vector<const Sight*> found;
  for (const Sight& sight : sights) {
    if (wanted(sight)) found.push_back(&sight);
  }
  return found;
}

/// Sets factors by which sights of a number of samples differ from what their terms explain: the
/// median over shapes, where there are enough of them.
void set_factors(const std::vector<const Sight*>& sights, std::vector<double> Sight::*terms,
                 CorrectionFit& fit) {
  std::map<std::int64_t, std::vector<double>> ratios;
  const CorrectionFit plain = {fit.coefficients, {}, {}};
  for (const Sight* const sight : sights) {
    const double explained = explained_seconds(sight->*terms, sight->samples, plain);
    if (explained > 0) ratios[sight->samples].push_back(sight->seconds / explained);
  }
  fit.samples.clear();
  fit.factors.clear();
  for (auto& [samples, values] : ratios) {
    if (values.size() < kFewestShapes) continue;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    fit.samples.push_back(samples);
    fit.factors.push_back(std::clamp(*middle, 1 / kMostFactor, kMostFactor));
  }
}

/// Returns the fit that explains the sights; without coefficients for too few. Coefficients and
/// factors are fitted in turns.
CorrectionFit fit_sights(const std::vector<const Sight*>& sights,
                         std::vector<double> Sight::*terms) {
  std::set<std::vector<double>> sizes;
  for (const Sight* const sight : sights) sizes.insert(sight->*terms);
  CorrectionFit fit;
  if (sizes.size() < kFewestSights) return fit;
  for (int turn = 0; turn < kTurns; ++turn) {
    CorrectionFit factor = fit;
    factor.coefficients = {1};
    std::vector<Observation> observations;
    for (const Sight* const sight : sights) {
      Observation seen{sight->*terms, sight->seconds};
      const double by = explained_seconds({1}, sight->samples, factor);
      for (double& term : seen.terms) term *= by;
      observations.push_back(std::move(seen));
    }
    fit.coefficients = fit_robustly(observations).coefficients;
    set_factors(sights, terms, fit);
  }
  return fit;
}

CorrectionFit fit_group(const std::vector<Sight>& sights, const std::string& group) {
  return fit_sights(chosen(sights, [&](const Sight& s) { return s.group == group; }),
                    &Sight::terms);
}

struct LeftOut {
  double predicted = 0, measured = 0;
};

/// Returns the sights of `group`, each predicted without those of its shape.
std::vector<LeftOut> leave_out(const std::vector<Sight>& sights, const std::string& group) {
  std::set<std::size_t> shapes;
  for (const Sight& sight : sights) {
    if (sight.group == group) shapes.insert(sight.shape);
  }
  std::vector<LeftOut> all;
  for (const std::size_t shape : shapes) {
    const auto own = std::find_if(sights.begin(), sights.end(),
                                  [&](const Sight& s) { return s.shape == shape; });
    const OpClass op_class = own->op_class;
    const CorrectionFit alike = fit_sights(
        chosen(sights, [&](const Sight& s) { return s.group == group && s.shape != shape; }),
        &Sight::terms);
    const bool of_group = !alike.coefficients.empty();
    const CorrectionFit fit =
        of_group ? alike
                 : fit_sights(chosen(sights,
                                     [&](const Sight& s) {
                                       return s.op_class == op_class && s.shape != shape;
                                     }),
                              &Sight::rough);
    if (fit.coefficients.empty()) continue;
    for (const Sight& sight : sights) {
      if (sight.shape != shape) continue;
      const std::vector<double>& terms = of_group ? sight.terms : sight.rough;
      all.push_back({explained_seconds(terms, sight.samples, fit), sight.seconds});
    }
  }
  return all;
}

double median_error(const std::vector<LeftOut>& all) {
  if (all.empty()) return -1;
  std::vector<double> errors;
  errors.reserve(all.size());
  for (const LeftOut& each : all) errors.push_back(std::abs(each.predicted / each.measured - 1));
  const auto middle = errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2);
  std::nth_element(errors.begin(), middle, errors.end());
  return *middle;
}

}  // namespace

std::vector<Correction> fit_corrections(const DeviceProfile& device, const DeviceKind& kind) {
  const Sights sights = sights_of(device, kind);
  std::set<std::string> groups;
  for (const auto* list : {&sights.forward, &sights.backward}) {
    for (const Sight& sight : *list) groups.insert(sight.group);
  }
  std::vector<Correction> corrections;
  for (const std::string& group : groups) {
    Correction correction{group, fit_group(sights.forward, group),
                          fit_group(sights.backward, group)};
    if (correction.forward.coefficients.empty()) continue;  // the group counts for its class alone
    corrections.push_back(std::move(correction));
  }
  return corrections;
}

ExpectedErrors expected_errors(const DeviceProfile& device, const DeviceKind& kind) {
  const Sights sights = sights_of(device, kind);
  std::map<std::string, std::set<std::size_t>> shapes;
  for (const Sight& sight : sights.forward) shapes[sight.group].insert(sight.shape);
  ExpectedErrors errors;
  double predicted = 0, measured = 0, off = 0;
  for (const auto& [group, members] : shapes) {
    const std::vector<LeftOut> forward = leave_out(sights.forward, group);
    const std::vector<LeftOut> backward = leave_out(sights.backward, group);
    errors.groups.push_back({group, members.size(), median_error(forward), median_error(backward)});
    for (const auto* list : {&forward, &backward}) {
      for (const LeftOut& each : *list) {
        predicted += each.predicted;
        measured += each.measured;
        off += std::abs(each.predicted - each.measured);
      }
    }
  }
  if (measured > 0) {
    errors.typical = off / measured;
    errors.bias = predicted / measured - 1;
  }
  return errors;
}

}  // namespace agpcs
