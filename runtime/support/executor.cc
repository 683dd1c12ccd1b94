// SPDX-License-Identifier: Apache-2.0
#include <agpcs/executor.h>

#include <fmt/format.h>

namespace agpcs {
namespace {

Status stateless(const StateItem& item) {
  return internal_error(
      fmt::format("this executor has no state, not {} of '{}'", item.slot, item.tensor));
}

}  // namespace

void Executor::sent(const InstructionId& /*send*/) {}

Status Executor::backward_input(int /*micro_batch*/) {
  return {StatusCode::kUnavailable,
          "the executor does not part backward passes\n"
          "  hint: a plan made with --without zero-bubble"};
}

Status Executor::backward_weight(int micro_batch, bool /*last*/, GradientListener& /*listener*/) {
  return backward_input(micro_batch);
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
