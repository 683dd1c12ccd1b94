// SPDX-License-Identifier: Apache-2.0
// What one process that computes all samples has, in the numbers of FakeExecutor.
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "tests/runtime/fake_executor.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

// One step of one sample: what each stage computes for it.
struct SampleTrace {
  std::vector<double> value, gradient;
};

double sum_of_elements(const CutTensor& tensor, double base) {
  const auto n = static_cast<double>(tensor.elements_per_row());
  return n * base + n * (n - 1) / 2;
}

SampleTrace trace_sample(const Plan& plan, std::int64_t sample, std::int64_t step) {
  const auto stages = static_cast<std::size_t>(working_stages(plan));
  std::int64_t mb = 0;
  while (plan.first_sample(mb + 1) <= sample) ++mb;
  SampleTrace trace{std::vector<double>(stages), std::vector<double>(stages, 0.0)};
  for (std::size_t s = 0; s < stages; ++s) {
    trace.value[s] = s == 0 ? static_cast<double>(1 + sample + step) : static_cast<double>(s);
    for (const Cut& cut : plan.cuts) {
      if (cut.to != static_cast<int>(s)) continue;
      for (const CutTensor& tensor : cut.tensors) {
        const double base = tensor.batched ? trace.value[static_cast<std::size_t>(cut.from)]
                                           : static_cast<double>(cut.from + mb + step);
        trace.value[s] += sum_of_elements(tensor, base);
      }
    }
  }
  trace.gradient.back() = trace.value.back();
  for (std::size_t s = stages - 1; s-- > 0;) {
    for (const Cut& cut : plan.cuts) {
      if (cut.from != static_cast<int>(s)) continue;
      for (const CutTensor& tensor : cut.tensors) {
        if (!tensor.gradient || !tensor.batched) continue;
        trace.gradient[s] += static_cast<double>(tensor.elements_per_row()) *
                             trace.gradient[static_cast<std::size_t>(cut.to)];
      }
    }
  }
  return trace;
}

// What comes back to stage `s` for tensors of all samples because of one sample.
double whole_gradient(const Plan& plan, int s, const SampleTrace& trace) {
  double sum = 0;
  for (const Cut& cut : plan.cuts) {
    for (const CutTensor& tensor : cut.tensors) {
      if (cut.from != s || tensor.batched || !tensor.gradient) continue;
      sum += static_cast<double>(tensor.elements_per_row()) *
             trace.gradient[static_cast<std::size_t>(cut.to)];
    }
  }
  return sum;
}

double clipping_factor(const Plan& plan, const std::vector<std::vector<double>>& sums) {
  const double most = plan.training.optimizer.max_norm;
  if (most == 0) return 1;
  double squares = 0;
  for (const auto& bucket : sums) {
    for (const double sum : bucket) squares += sum * sum;
  }
  return std::min(1.0, most / (std::sqrt(squares) + 1e-6));
}

}  // namespace

FakeOutcome fake_reference(const Plan& plan, int steps, int batches, bool remembers) {
  FakeOutcome outcome;
  for (const PlanBucket& bucket : plan.buckets) {
    outcome.parameters.emplace_back(static_cast<std::size_t>(bucket.elements()), 0.0);
  }
  std::vector<std::vector<double>> sums = outcome.parameters;  // of a step's gradients
  std::vector<std::vector<double>> momentum = outcome.parameters;
  for (int batch = 0; batch < steps * batches; ++batch) {
    if (batch % batches == 0) {
      outcome.loss = 0;
      for (auto& sum : sums) std::fill(sum.begin(), sum.end(), 0.0);
    }
    for (std::int64_t sample = 0; sample < plan.training.batch; ++sample) {
      const SampleTrace trace = trace_sample(plan, sample, batch);
      outcome.loss += trace.value.back();
      for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
        for (const int stage : stages_of(plan.buckets[b])) {
          const auto s = static_cast<std::size_t>(stage);
          auto& sum = sums[b];
          for (std::size_t i = 0; i < sum.size(); ++i) {
            sum[i] += static_cast<double>(i + 1) * (trace.value[s] + 3 * trace.gradient[s]) +
                      whole_gradient(plan, stage, trace);
          }
        }
      }
    }
    if ((batch + 1) % batches != 0) continue;
    const double factor = clipping_factor(plan, sums);
    for (std::size_t b = 0; b < sums.size(); ++b) {
      for (std::size_t i = 0; i < sums[b].size(); ++i) {
        momentum[b][i] = factor * sums[b][i] + (remembers ? momentum[b][i] : 0);
        outcome.parameters[b][i] += momentum[b][i];
      }
    }
  }
  return outcome;
}

}  // namespace agpcs
