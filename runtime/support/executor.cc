// SPDX-License-Identifier: Apache-2.0
#include <agpcs/executor.h>

#include <fmt/format.h>

#include <algorithm>

namespace agpcs {
namespace {

Status stateless(const StateItem& item) {
  return internal_error(
      fmt::format("this executor has no state, not {} of '{}'", item.slot, item.tensor));
}

}  // namespace

std::int64_t StateItem::count_of(std::int64_t first, std::int64_t count) const {
  const std::int64_t begin = std::max(first, before),
                     end = std::min(first + count, elements - after);
  if (end <= begin) return 0;
  if (period == 0) return end - begin;
  const auto before_of = [&](std::int64_t element) {
    std::int64_t sum = 0;
    for (const ElementRange& run : runs) {
      sum += element / period * run.size() +
             std::clamp(element % period - run.begin, std::int64_t{0}, run.size());
    }
    return sum;
  };
  return before_of(end) - before_of(begin);
}

bool StateItem::is_same_part(const StateItem& other) const {
  return elements == other.elements && before == other.before && after == other.after &&
         period == other.period &&
         std::equal(runs.begin(), runs.end(), other.runs.begin(), other.runs.end(),
                    [](const ElementRange& a, const ElementRange& b) {
                      return a.begin == b.begin && a.end == b.end;
                    });
}

Status Executor::compute_stages(const std::vector<int>& /*stages*/) {
  return {StatusCode::kUnavailable,
          "the executor computes one stage on each rank\n"
          "  hint: a plan whose schedule is not interleaved"};
}

void Executor::sent(const InstructionId& /*send*/) {}

Status Executor::backward_input(const StagePass& /*pass*/) {
  return {StatusCode::kUnavailable,
          "the executor does not part backward passes\n"
          "  hint: a plan made with --without zero-bubble"};
}

Status Executor::backward_weight(const StagePass& pass, bool /*last*/,
                                 GradientListener& /*listener*/) {
  return backward_input(pass);
}

Status Executor::next_batch() {
  return {StatusCode::kUnavailable,
          "the executor does not add up the gradients of several batches"};
}

Result<bool> Executor::begin_evaluation(std::int64_t /*batch*/) {
  return Status(StatusCode::kUnavailable, "the executor has no samples to evaluate on");
}

Result<Buffer> Executor::member_gradient(int /*bucket*/, std::size_t /*member*/) {
  return Status(StatusCode::kUnavailable, "the executor has no gradients outside of its buckets");
}

Result<Buffer> Executor::values(int bucket) {
  return Status(StatusCode::kUnavailable,
                fmt::format("bucket {} divides its state among ranks, and the executor cannot "
                            "update a part of its parameters\n"
                            "  hint: a plan made with --without state",
                            bucket));
}

Status Executor::fill_bucket(int bucket) {
  return Status(StatusCode::kUnavailable,
                fmt::format("bucket {} divides its gradients among ranks, and the executor cannot "
                            "sum them after each micro-batch\n"
                            "  hint: a plan made with --without gradients",
                            bucket));
}

Status Executor::keep_part(int bucket) {
  return internal_error(fmt::format("bucket {} was never filled", bucket));
}

Status Executor::gather_with(ParameterSource& /*source*/) {
  return {StatusCode::kUnavailable,
          "the plan divides parameters among ranks, and the executor cannot gather them for its "
          "passes\n"
          "  hint: a plan made with --without parameters"};
}

Result<Buffer> Executor::gather(int bucket) {
  return internal_error(fmt::format("bucket {} is gathered by an executor that cannot", bucket));
}

Status Executor::exchange_with(const TeamExchanges& /*over*/) {
  return {StatusCode::kUnavailable,
          "the plan has teams, and the executor does not divide operators among ranks\n"
          "  hint: plan with --without teams"};
}

Result<double> Executor::squares(int /*bucket*/) { return scale(1); }

Status Executor::scale(double /*factor*/) {
  return {StatusCode::kUnavailable,
          "the plan's optimizer has a max-norm, and the executor cannot clip gradients\n"
          "  hint: a plan without max_norm in cluster.yaml"};
}

Result<Buffer> Executor::round_bucket(int /*bucket*/, DType type) {
  return Status(StatusCode::kUnavailable,
                fmt::format("the executor does not round gradients to {} on its accelerator\n"
                            "  hint: plan without --wire-type",
                            name_of(type)));
}

Status Executor::widen_bucket(int bucket) {
  return internal_error(fmt::format("bucket {} was never rounded", bucket));
}

Status Executor::read_state(const StateItem& item, std::int64_t /*first*/, std::int64_t /*count*/,
                            float* /*out*/) const {
  return stateless(item);
}

Status Executor::write_state(const StateItem& item, std::int64_t /*first*/, std::int64_t /*count*/,
                             const float* /*values*/) {
  return stateless(item);
}

}  // namespace agpcs
