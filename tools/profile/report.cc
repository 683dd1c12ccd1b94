// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/report.h"

#include "cost_model/fit/corrections.h"
#include "ir/base/diagnostics.h"
#include "ir/base/units.h"
#include "ir/graph/op_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace agpcs {
namespace {

constexpr std::size_t kSlowest = 8;    // number of operators listed
constexpr std::size_t kColumns = 100;  // width of a terminal

std::string time(double seconds) { return figure(seconds, "s"); }

std::string percent(double fraction) { return fmt::format("{:.1f}%", 100 * fraction); }

std::string shortened(std::string text, std::size_t width) {
  if (text.size() > width) text = text.substr(0, width - 3) + "...";
  return text;
}

// Returns the seconds per sample at the largest number of samples, where the device is used best.
double per_sample(const MeasuredOperator& op) {
  const MeasuredOperator::Point& last = op.points.back();
  return (last.forward.seconds + last.backward.seconds) / static_cast<double>(last.samples);
}

std::string classes_table(const DeviceProfile& device) {
  struct Sum {
    int operators = 0;
    double forward = 0, backward = 0, flops = 0, bytes = 0;
  };
  std::array<Sum, kOpClassCount> classes;
  for (const MeasuredOperator& op : device.operators) {
    const MeasuredOperator::Point& last = op.points.back();
    Sum& sum = classes[static_cast<std::size_t>(op.op_class)];
    ++sum.operators;
    sum.forward += last.forward.seconds;
    sum.backward += last.backward.seconds;
    sum.flops += last.work.forward_flops + last.work.backward_flops;
    sum.bytes += last.work.forward_bytes + last.work.backward_bytes;
  }
  std::string text = fmt::format("  {:<16} {:>9}  {:>9}  {:>9}  {:>8}  {:>6}\n", "class",
                                 "operators", "forward", "backward", "GFLOP/s", "GB/s");
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const Sum& sum = classes[i];
    const double seconds = sum.forward + sum.backward;
    if (sum.operators == 0 || seconds <= 0) continue;
    text += fmt::format("  {:<16} {:>9}  {:>9}  {:>9}  {:>8}  {:>6}\n",
                        name_of(static_cast<OpClass>(i)), sum.operators, time(sum.forward),
                        time(sum.backward), fmt::format("{:.4g}", 1e-9 * sum.flops / seconds),
                        fmt::format("{:.3g}", 1e-9 * sum.bytes / seconds));
  }
  return text;
}

std::string slowest_table(const DeviceProfile& device) {
  std::vector<const MeasuredOperator*> slowest;
  for (const MeasuredOperator& op : device.operators) slowest.push_back(&op);
  std::stable_sort(slowest.begin(), slowest.end(),
                   [](const auto* a, const auto* b) { return per_sample(*a) > per_sample(*b); });
  slowest.resize(std::min(slowest.size(), kSlowest));
  std::string text = fmt::format("  {:>9}  {:>9}  {:>7}  {}\n", "forward", "backward", "samples",
                                 "slowest operators");
  for (const MeasuredOperator* op : slowest) {
    const MeasuredOperator::Point& last = op->points.back();
    text += fmt::format("  {:>9}  {:>9}  {:>7}  {}\n", time(last.forward.seconds),
                        time(last.backward.seconds), last.samples,
                        shortened(op->signature, kColumns - 33));
  }
  return text;
}

std::string device_report(const DeviceProfile& device) {
  std::string text = fmt::format("\n{}:{}{}\n", device.name, device.models.empty() ? "" : " ",
                                 fmt::join(device.models, ", "));
  for (const auto* list : {&device.hardware, &device.software}) {
    std::vector<std::string> words;
    for (const auto& [name, value] : *list) words.push_back(fmt::format("{} {}", name, value));
    if (!words.empty()) text += fmt::format("  {}\n", fmt::join(words, ", "));
  }
  for (const MeasuredUpdate& update : device.updates) {
    text += fmt::format("  update of {} parameters by {}: {}; gradients are zeroed in {}\n",
                        update.elements, update.optimizer, time(update.update.seconds),
                        time(update.begin.seconds));
  }
  if (device.message_overhead > 0) {
    text += fmt::format("  the runtime adds {} to a message\n", time(device.message_overhead));
  }
  if (device.message_compute > 0) {
    text += fmt::format("  a message costs {} of computing\n", time(device.message_compute));
  }
  if (const Overlap& overlap = device.overlap; !overlap.is_none()) {
    text += fmt::format(
        "  computing and communicating at once: {} of computing lost for a MB, messages at {} of "
        "their rate\n",
        time(1e6 * overlap.compute_seconds_per_byte), percent(overlap.communication_factor));
  }
  if (!device.teams.empty()) {
    text += fmt::format("  with what members of teams of {} have of operators\n",
                        fmt::join(device.teams, ", "));
  }
  if (!device.probes.empty()) {
    text += fmt::format("  {} shapes stand for operators like them\n", device.probes.size());
  }
  if (device.operators.empty()) return text;
  return text + "\n" + classes_table(device) + "\n" + slowest_table(device);
}

// Shows the first and the last point: the latency, and the rate of large messages.
std::string messages(const std::vector<MeasuredMessages>& points) {
  if (points.empty()) return "nothing measured";
  const MeasuredMessages &small = points.front(), &large = points.back();
  return fmt::format("{} in {}, {} in {} ({:.3g} GB/s)", byte_figure(small.bytes),
                     time(small.time.seconds), byte_figure(large.bytes), time(large.time.seconds),
                     1e-9 * static_cast<double>(large.bytes) / large.time.seconds);
}

}  // namespace

std::string steps_report(const std::vector<ProfiledBatch>& steps) {
  std::string text = fmt::format("{:<24} {:>7}  {:>9}  {:>9}  {:>6}  {:>7}  {:>8}\n", "model",
                                 "samples", "step", "samples/s", "steps", "stretch", "observer");
  for (const ProfiledBatch& step : steps) {
    text += fmt::format("{:<24} {:>7}  {:>9}  {:>9.4g}  {:>6}  {:>7.3f}  {:>8}\n",
                        shortened(step.model, 24), step.samples, time(step.step),
                        static_cast<double>(step.samples) / step.step, step.steps, step.stretch,
                        fmt::format("{:+.1f}%", 100 * (step.observer - 1)));
  }
  return text;
}

std::string profile_report(const Profile& profile) {
  std::string text;
  for (const DeviceProfile& device : profile.devices) text += device_report(device);
  if (!profile.paths.empty()) text += "\nmessages\n";
  for (const MeasuredPath& path : profile.paths) {
    text += fmt::format("  {} to {}: {}\n", path.from, path.to, messages(path.points));
  }
  if (!profile.collectives.empty()) text += "\nall-reduces\n";
  for (const MeasuredCollective& collective : profile.collectives) {
    text += fmt::format("  {} over {}: {}\n", name_of(collective.algorithm),
                        fmt::join(collective.devices, ", "), messages(collective.points));
  }
  return text;
}

std::string expected_errors_report(const Profile& profile, const Cluster& cluster) {
  std::string text;
  for (const DeviceProfile& device : profile.devices) {
    if (device.probes.empty()) continue;
    const auto kind = std::find_if(cluster.kinds.begin(), cluster.kinds.end(),
                                   [&](const DeviceKind& k) { return k.name == device.name; });
    const ExpectedErrors errors =
        expected_errors(device, kind != cluster.kinds.end() ? *kind : DeviceKind());
    text += fmt::format("\n{:<44} {:>6}  {:>8}  {:>9}\n",
                        shortened(fmt::format("expected errors on {}", device.name), 44), "shapes",
                        "forward", "backward");
    const auto median = [](double error) { return error < 0 ? "-" : percent(error); };
    for (const ExpectedError& e : errors.groups) {
      text += fmt::format("{:<44} {:>6}  {:>8}  {:>9}\n", shortened(e.group, 44), e.shapes,
                          median(e.forward), median(e.backward));
    }
    text += fmt::format(
        "an operator is expected to be off by {} of its time, all of them together by {:+.1f}%\n",
        percent(errors.typical), 100 * errors.bias);
  }
  return text;
}

std::string fits_report(const std::vector<FitReport>& fits) {
  if (fits.empty()) return {};
  std::string text = fmt::format("\n{:<44} {:>6}  {:>8}  {:>12}  {:>11}\n", "fit", "points",
                                 "outliers", "median error", "worst error");
  for (const FitReport& fit : fits) {
    text += fmt::format("{:<44} {:>6}  {:>8}  {:>12}  {:>11}{}\n", shortened(fit.what, 44),
                        fit.points, fit.outliers, percent(fit.median_error),
                        percent(fit.worst_error), fit.explains() ? "" : "  does not explain it");
  }
  return text;
}

}  // namespace agpcs
