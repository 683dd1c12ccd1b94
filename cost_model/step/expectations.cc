// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/simulator.h"
#include "ir/base/check.h"
#include "ir/base/units.h"

namespace agpcs {
namespace {

/// Returns the values in the order of `expectation_names`.
std::vector<double> expected_values(const Plan& plan, const Estimate& estimate) {
  std::vector<double> values = {estimate.step_seconds, estimate.samples_per_second};
  for (std::size_t s = 0; s < estimate.stages.size(); ++s) {
    if (plan.stages[s].idle()) continue;
    const StageEstimate& stage = estimate.stages[s];
    values.push_back(stage.forward_seconds);
    values.push_back(stage.backward_seconds);
    if (plan.stages[s].ranks.size() > 1) values.push_back(stage.all_reduce_seconds);
  }
  for (const DeviceEstimate& device : estimate.devices) {
    values.push_back(device.utilization);
    if (sends(plan, device.rank)) values.push_back(device.send_seconds);
    values.push_back(static_cast<double>(device.memory.total()));
    values.push_back(static_cast<double>(device.bytes_sent));
  }
  return values;
}

/// Returns the value that the plan's text will have.
double rounded(double value, std::string_view unit) {
  const std::string text = figure(value, unit);
  const std::optional<double> read = read_figure(text, unit);
  AGPCS_CHECK(read.has_value(), "figure '{}' of {} cannot be read", text, value);
  return *read;
}

}  // namespace

std::vector<Expectation> expectations(const Plan& plan, const Estimate& estimate) {
  const std::vector<std::string> names = expectation_names(plan);
  const std::vector<double> values = expected_values(plan, estimate);
  AGPCS_CHECK(names.size() == values.size(), "{} expectations, {} values", names.size(),
              values.size());
  std::vector<Expectation> expect;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view unit = expectation_unit(names[i]);
    expect.push_back({names[i], rounded(values[i], unit), std::string(unit)});
  }
  return expect;
}

}  // namespace agpcs
