// SPDX-License-Identifier: Apache-2.0
#include "cost_model/fit/calibrate.h"

#include "cost_model/fit/calibrate_parts.h"
#include "cost_model/fit/corrections.h"
#include "cost_model/fit/robust_fit.h"
#include "cost_model/step/cost_table.h"
#include "ir/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

namespace agpcs {

void FitLog::add(const std::string& file, std::string what,
                 const std::vector<Observation>& observations, const RobustFit& fit) {
  FitReport report;
  report.what = std::move(what);
  report.points = observations.size();
  report.outliers = fit.outliers;
  std::vector<double> errors;
  errors.reserve(observations.size());
  for (const Observation& o : observations) {
    errors.push_back(relative_error(o, fit.coefficients));
  }
  std::sort(errors.begin(), errors.end());
  const std::size_t count = errors.size();
  // Errors are rounded to a millionth; smaller differences come from the machine's arithmetic.
  const auto rounded = [](double error) { return std::round(error * 1e6) / 1e6; };
  report.median_error = rounded((errors[(count - 1) / 2] + errors[count / 2]) / 2);
  report.worst_error = rounded(errors.back());
  reports.push_back(std::move(report));
  files.push_back(file);
}

namespace {

/// Measurements of fewer sizes than coefficients do not show how time depends on size.
constexpr std::size_t kFewestSizes = 3;
/// The most fits that a warning names.
constexpr std::size_t kNamedFits = 6;

enum class Pass : std::uint8_t { kForward, kBackward };

std::string_view name_of(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

/// Returns an observation for every point of `pass` that took time and has work, for the classes
/// wanted.
std::vector<Observation> observations_of(const DeviceProfile& device, Pass pass,
                                         const std::function<bool(OpClass)>& wanted) {
  std::vector<Observation> observations;
  for (const MeasuredOperator& op : device.operators.empty() ? device.probes : device.operators) {
    if (!wanted(op.op_class)) continue;
    for (const MeasuredOperator::Point& point : op.points) {
      const bool forward = pass == Pass::kForward;
      const double seconds = forward ? point.forward.seconds : point.backward.seconds;
      const double flops = forward ? point.work.forward_flops : point.work.backward_flops;
      const double bytes = forward ? point.work.forward_bytes : point.work.backward_bytes;
      if (seconds > 0 && (flops > 0 || bytes > 0)) {
        observations.push_back({{1, flops, bytes}, seconds});
      }
    }
  }
  return observations;
}

bool enough(const std::vector<Observation>& observations) {
  std::set<std::vector<double>> sizes;
  for (const Observation& o : observations) sizes.insert(o.terms);
  return sizes.size() >= kFewestSizes;
}

PassFit pass_fit(const RobustFit& fit, bool fitted) {
  return {fitted, fit.coefficients[0], fit.coefficients[1], fit.coefficients[2]};
}

/// Fits one pass of every class to a kind's measurements. A class with too few measurements takes
/// the fit of all classes with the same bound, or else of all classes.
class PassFits {
 public:
  PassFits(const DeviceProfile& device, Pass pass, const std::string& file, FitLog& log)
      : device_(device), pass_(pass), file_(file), log_(log) {}

  PassFit of(OpClass op_class) {
    const auto own = observations_of(device_, pass_, [&](OpClass c) { return c == op_class; });
    if (!enough(own)) return of_others(op_class);
    const RobustFit fit = fit_robustly(own);
    log_.add(file_,
             fmt::format("{} {} on {}", agpcs::name_of(op_class), name_of(pass_), device_.name),
             own, fit);
    log_.reports.back().stands_in = true;
    return pass_fit(fit, true);
  }

 private:
  PassFit of_others(OpClass op_class) const {
    const bool arithmetic = bound_by_arithmetic(op_class);
    auto others = observations_of(device_, pass_,
                                  [&](OpClass c) { return bound_by_arithmetic(c) == arithmetic; });
    if (!enough(others)) others = observations_of(device_, pass_, [](OpClass) { return true; });
    if (others.empty()) return {};
    return pass_fit(fit_robustly(others), false);
  }

  const DeviceProfile& device_;
  Pass pass_;
  const std::string& file_;
  FitLog& log_;
};

/// Returns what a step of `optimizer` takes by the fit of elementwise operators, which it consists
/// of. It separates tensors from elements where measurements do not (those of one model).
std::pair<double, double> update_by_elementwise(const DeviceProfile& device, const KindFit& kind,
                                                const std::string& optimizer) {
  const PassFit& fit = kind.classes[static_cast<std::size_t>(OpClass::kElementwise)].forward;
  const double per_element = update_bytes(optimizer, device.precision) * fit.per_byte;
  if (per_element > 0) return {fit.overhead, per_element};
  return {0, 1};
}

bool proportional(const std::vector<Observation>& observations) {
  const std::vector<double>& first = observations.front().terms;
  return std::all_of(observations.begin(), observations.end(), [&](const Observation& o) {
    return o.terms[0] * first[1] == o.terms[1] * first[0];
  });
}

UpdateFit update_fit(const DeviceProfile& device, const KindFit& kind, const std::string& optimizer,
                     std::vector<Observation> observations, const std::string& file, FitLog& log) {
  std::pair<double, double> unit = {1, 1};
  const bool together = proportional(observations);
  if (together) {
    unit = update_by_elementwise(device, kind, optimizer);
    for (Observation& o : observations) {
      o.terms = {o.terms[0] * unit.first + o.terms[1] * unit.second};
    }
  }
  weigh_by_time(observations);
  const RobustFit fit = fit_robustly(observations);
  log.add(file, fmt::format("{} update on {}", optimizer, device.name), observations, fit);
  return {optimizer, fit.coefficients.front() * unit.first, fit.coefficients.back() * unit.second};
}

void fit_updates(const DeviceProfile& device, KindFit& kind, const std::string& file, FitLog& log) {
  std::map<std::string, std::vector<Observation>> updates;
  std::vector<Observation> begins;
  for (const MeasuredUpdate& u : device.updates) {
    const auto tensors = static_cast<double>(u.tensors);
    const auto elements = static_cast<double>(u.elements);
    if (elements <= 0) continue;
    if (u.update.seconds > 0) {
      updates[u.optimizer].push_back({{tensors, elements}, u.update.seconds});
    }
    if (u.begin.seconds > 0) begins.push_back({{elements}, u.begin.seconds});
  }
  kind.updates.clear();
  for (auto& [optimizer, observations] : updates) {
    kind.updates.push_back(update_fit(device, kind, optimizer, std::move(observations), file, log));
  }
  kind.begin_per_element = 0;
  if (begins.empty()) return;
  weigh_by_time(begins);
  const RobustFit fit = fit_robustly(begins);
  kind.begin_per_element = fit.coefficients[0];
  log.add(file, fmt::format("begin of a step on {}", device.name), begins, fit);
}

Status calibrate_kind(const Cluster& cluster, DeviceKind& kind, FitLog& log) {
  const Profile& profile = profile_of(cluster, kind.profile);
  const DeviceProfile* device = profile.find_device(kind.profile.entry);
  AGPCS_CHECK(device != nullptr, "kind '{}' refers to '{}', which {} does not have", kind.name,
              kind.profile.entry, profile.file);
  PassFits forward(*device, Pass::kForward, profile.file, log);
  PassFits backward(*device, Pass::kBackward, profile.file, log);
  bool any = false;
  for (int c = 0; c < kOpClassCount; ++c) {
    KindFit::Class& fit = kind.fit.classes[static_cast<std::size_t>(c)];
    fit = {};
    if (static_cast<OpClass>(c) == OpClass::kView) continue;
    fit.forward = forward.of(static_cast<OpClass>(c));
    fit.backward = backward.of(static_cast<OpClass>(c));
    any = any || fit.forward.overhead + fit.forward.per_flop + fit.forward.per_byte > 0;
  }
  if (!any) {
    return invalid_input(
        fmt::format("{}: error: device '{}' has no operator that was measured, which kind '{}' "
                    "needs\n  hint: profile a model on it",
                    profile.file, device->name, kind.name));
  }
  kind.fit.corrections = fit_corrections(*device, kind);
  fit_updates(*device, kind.fit, profile.file, log);
  return {};
}

/// Returns one warning for each file: the fits that count and do not explain their measurements,
/// the worst first.
std::string warnings_of(const FitLog& log) {
  std::map<std::string, std::vector<const FitReport*>> unexplained;
  for (std::size_t i = 0; i < log.reports.size(); ++i) {
    const FitReport& report = log.reports[i];
    if (!report.explains() && !report.stands_in) unexplained[log.files[i]].push_back(&report);
  }
  std::string text;
  for (auto& [file, fits] : unexplained) {
    std::stable_sort(fits.begin(), fits.end(), [](const FitReport* a, const FitReport* b) {
      return a->median_error > b->median_error;
    });
    std::string names;
    for (std::size_t i = 0; i < std::min(fits.size(), kNamedFits); ++i) {
      names += fmt::format("{}{} (median error {:.0f}% of {} points)", i == 0 ? "" : ", ",
                           fits[i]->what, 100 * fits[i]->median_error, fits[i]->points);
    }
    if (fits.size() > kNamedFits) names += fmt::format(" and {} more", fits.size() - kNamedFits);
    text += fmt::format("{}{}: warning: measurements that their fit does not explain: {}",
                        text.empty() ? "" : "\n", file, names);
  }
  return text;
}

}  // namespace

const Profile& profile_of(const Cluster& cluster, const ProfileRef& ref) {
  AGPCS_CHECK(ref.given() && ref.profile < static_cast<int>(cluster.profiles.size()),
              "profile {} of {}", ref.profile, cluster.profiles.size());
  return cluster.profiles[static_cast<std::size_t>(ref.profile)];
}

Result<Calibrated> calibrate(Cluster cluster) {
  FitLog log;
  for (DeviceKind& kind : cluster.kinds) {
    if (kind.profile.given()) AGPCS_RETURN_IF_ERROR(calibrate_kind(cluster, kind, log));
  }
  AGPCS_RETURN_IF_ERROR(calibrate_links(cluster, log));
  AGPCS_RETURN_IF_ERROR(calibrate_collectives(cluster, log));
  std::string warnings = warnings_of(log);
  return Calibrated{std::move(cluster), std::move(log.reports), std::move(warnings)};
}

}  // namespace agpcs
