// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/fake_executor.h"

#include "ir/plan/body/body.h"
#include "ir/plan/body/groups.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"

#include <agpcs/transport.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::quiet_NaN();

double total(const std::vector<double>& values, std::size_t begin, std::size_t count) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
  return std::accumulate(first, first + static_cast<std::ptrdiff_t>(count), 0.0);
}

double total(const std::vector<double>& values) { return total(values, 0, values.size()); }

std::size_t as_size(std::int64_t count) { return static_cast<std::size_t>(count); }

std::size_t row_elements(const CutTensor& tensor) {
  return static_cast<std::size_t>(tensor.elements_per_row());
}

}  // namespace

Status FakeExecutor::compute_stages(const std::vector<int>& stages) {
  return has_several ? Status() : Executor::compute_stages(stages);
}

bool FakeExecutor::has(int stage) const {
  return std::find(stages_.begin(), stages_.end(), stage) != stages_.end();
}

bool FakeExecutor::is_last(int stage) const { return stage + 1 == working_stages(plan_); }

Status FakeExecutor::prepare(const Plan& plan, int rank) {
  plan_ = plan;
  rank_ = rank;
  stages_ = stages_of_rank(plan, rank);
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(stages_.front())];
  replica_ = static_cast<std::size_t>(replica_of(stage, rank));
  member_ = member_of(stage, rank);
  for (std::size_t c = 0; c < plan_.cuts.size(); ++c) {
    const Cut& cut = plan_.cuts[c];
    if (!has(cut.from) && !has(cut.to)) continue;
    for (std::size_t t = 0; t < cut.tensors.size(); ++t) {
      const bool sending = has(cut.from) && !is_local(plan_, cut);
      ends_.push_back({static_cast<int>(c), static_cast<int>(t), sending, &cut.tensors[t]});
    }
  }
  for (const PlanBucket& bucket : plan.buckets) {
    const bool ours = holds(plan, rank, bucket);
    const auto size = static_cast<std::size_t>(ours ? held_by(plan, bucket, rank).elements() : 0);
    first_.push_back(0);
    for (std::size_t m = 0; ours && size < as_size(bucket.elements()) && m < member_; ++m) {
      first_.back() += as_size(member_elements(plan, bucket, stages_.front(), m, replica_));
    }
    buckets_.emplace_back(size, 0.0);
    parameters_.emplace_back(size, 0.0);
    momentum_.emplace_back(size, kNotYet);
    sums_.emplace_back(bucket.divides_gradients() ? size : 0, 0.0);
    filled_.resize(std::max(filled_.size(), sums_.back().size()));
    owned_.push_back(ours && bucket.is_sharded()
                         ? owned_elements(plan, bucket, rank)
                         : ElementRange{0, static_cast<std::int64_t>(size)});
    std::fill_n(momentum_.back().begin() + owned_.back().begin, owned_.back().size(), 0.0);
    const bool divided = size > 0 && bucket.divides_parameters();
    parts_.emplace_back(divided ? static_cast<std::size_t>(owned_.back().size()) : 0, 0.0);
    gathered_.emplace_back();
    for (auto& memory : gathered_.back().memory) memory.assign(divided ? size : 0, kNotYet);
  }
  return {};
}

Status FakeExecutor::begin_step(std::int64_t step) {
  batch_ = step * batches;
  loss_ = 0;
  evaluates_ = false;
  told_sent.clear();
  clear_batch();
  for (auto& bucket : buckets_) std::fill(bucket.begin(), bucket.end(), 0.0);
  for (auto& sum : sums_) std::fill(sum.begin(), sum.end(), 0.0);
  return {};
}

Status FakeExecutor::next_batch() {
  ++batch_;
  clear_batch();
  return {};
}

Result<bool> FakeExecutor::begin_evaluation(std::int64_t batch) {
  if (batch == 0) evaluation_ = {};
  batch_ = batch;
  evaluates_ = true;
  clear_batch();
  return batch < 2;
}

void FakeExecutor::clear_batch() {
  activations_.clear();
  gradients_.clear();
  values_.clear();
  returned_.clear();
  finished_.clear();
}

std::int64_t FakeExecutor::first_sample(int micro_batch) const {
  const PlanStage& stage = plan_.stages[static_cast<std::size_t>(stages_.front())];
  std::int64_t first = plan_.first_sample(micro_batch);
  for (std::size_t i = 0; i < replica_; ++i) {
    first += stage.samples_of(i, plan_.is_smaller(micro_batch));
  }
  return first;
}

std::int64_t FakeExecutor::samples(int micro_batch) const {
  const PlanStage& stage = plan_.stages[static_cast<std::size_t>(stages_.front())];
  return stage.samples_of(replica_, plan_.is_smaller(micro_batch));
}

std::vector<double>& FakeExecutor::memory(std::map<Key, std::vector<double>>& where, const End& end,
                                          int mb, int peer) {
  auto& values = where[{end.cut, end.tensor, mb, end.of->batched ? -1 : peer}];
  const auto rows = static_cast<std::size_t>(end.of->batched ? samples(mb) : 1);
  if (values.empty()) values.assign(rows * row_elements(*end.of), kNotYet);
  return values;
}

void FakeExecutor::sent(const InstructionId& send) {
  told_sent.push_back(send);
  for (auto& [key, values] : send.opcode == Opcode::kSend ? activations_ : gradients_) {
    const auto& [cut, tensor, mb, peer] = key;
    if (cut != send.object || mb != send.micro_batch) continue;
    std::fill(values.begin(), values.end(), kNotYet);
  }
}

bool FakeExecutor::divides_parameters(std::size_t bucket) const {
  return !gathered_[bucket].memory[0].empty();
}

Status FakeExecutor::gather_with(ParameterSource& source) {
  if (!divides) return Executor::gather_with(source);
  source_ = &source;
  return {};
}

Result<Buffer> FakeExecutor::gather(int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  std::vector<double>& whole = gathered_[b].memory[gathered_[b].gathers++ % 2];
  std::fill(whole.begin(), whole.end(), kNotYet);
  std::copy(parts_[b].begin(), parts_[b].end(), whole.begin() + owned_[b].begin);
  return Buffer{whole.data(), whole.size() * sizeof(double), DType::kFp64, false};
}

Status FakeExecutor::read(std::size_t bucket) {
  AGPCS_RETURN_IF_ERROR(source_->need(static_cast<int>(bucket)));
  std::vector<double>& whole = gathered_[bucket].memory[gathered_[bucket].reads++ % 2];
  parameters_[bucket] = whole;
  std::fill(whole.begin(), whole.end(), kNotYet);
  return {};
}

Status FakeExecutor::exchange_with(const TeamExchanges& over) {
  over_ = over;
  return {};
}

/// Tells each other member which pass this is, and hears the same from each.
Status FakeExecutor::meet(int pass) {
  const PlanStage& stage = plan_.stages[static_cast<std::size_t>(stages_.front())];
  if (!stage.has_teams() || stage.members(replica_).size() == 1) return {};
  if (over_.transport == nullptr) return internal_error("a member meets nobody");
  std::vector<int> ranks = stage.members(replica_);
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::int64_t> parts;
  for (int way = 0; way < 2; ++way) {
    for (const int rank : ranks) parts.push_back(rank == rank_ ? 0 : 1);
  }
  const std::int64_t mine = 1'000 * batch_ + pass;
  std::vector<std::int64_t> said(2 * (ranks.size() - 1), -1);
  std::fill_n(said.begin(), ranks.size() - 1, mine);
  const Buffer buffer{said.data(), said.size() * sizeof mine, DType::kInt64, false};
  AGPCS_TRY(const Ticket ticket, over_.transport->all_to_all(buffer, parts, over_.group));
  AGPCS_RETURN_IF_ERROR(over_.transport->wait(Stream::kCollective, ticket, over_.limit));
  if (said == std::vector<std::int64_t>(said.size(), mine)) return {};
  return internal_error(fmt::format("members are in other passes than {}", mine));
}

// Operators read the last bucket first.
Status FakeExecutor::forward(const StagePass& pass) {
  const auto [stage, micro_batch] = pass;
  if (before) AGPCS_RETURN_IF_ERROR(before("forward", micro_batch));
  AGPCS_RETURN_IF_ERROR(meet(2 * micro_batch));
  for (std::size_t b = buckets_.size(); b-- > 0;) {
    if (divides_parameters(b)) AGPCS_RETURN_IF_ERROR(read(b));
  }
  AGPCS_RETURN_IF_ERROR(take(pass));
  std::vector<double>& values = values_[key_of(pass)];
  if (!values.empty()) return internal_error(fmt::format("two forwards of mb {}", micro_batch));
  for (std::int64_t i = 0; i < samples(micro_batch); ++i) {
    double value = stage == 0 ? static_cast<double>(1 + first_sample(micro_batch) + i + batch_)
                              : static_cast<double>(stage);
    for (const auto& [key, received] : activations_) {
      const auto& [cut, tensor, mb, peer] = key;
      const CutTensor& of =
          plan_.cuts[static_cast<std::size_t>(cut)].tensors[static_cast<std::size_t>(tensor)];
      if (mb != micro_batch || plan_.cuts[static_cast<std::size_t>(cut)].to != stage) continue;
      const std::size_t width = row_elements(of);
      value += of.batched ? total(received, static_cast<std::size_t>(i) * width, width)
                          : total(received);
    }
    values.push_back(value);
    if (!is_last(stage) || member_ > 0) continue;
    (evaluates_ ? evaluation_.loss : loss_) += value;
  }
  return {};
}

/// Writes the rows of a tensor that a stage of this rank has made.
void FakeExecutor::write_made(int cut, int tensor, int mb, std::vector<double>& values) {
  const Cut& of = plan_.cuts[static_cast<std::size_t>(cut)];
  const CutTensor& shape = of.tensors[static_cast<std::size_t>(tensor)];
  const std::size_t width = row_elements(shape);
  const std::vector<double>& made = values_[{of.from, mb}];
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double base =
        shape.batched ? made[i / width] : static_cast<double>(of.from + mb + batch_);
    values[i] = base + static_cast<double>(i % width);
  }
}

Status FakeExecutor::take(const StagePass& pass) {
  for (const End& end : ends_) {
    const Cut& cut = plan_.cuts[static_cast<std::size_t>(end.cut)];
    if (cut.to != pass.stage || !is_local(plan_, cut)) continue;
    const PassKey made = {cut.from, pass.micro_batch};
    if (values_.count(made) == 0 || returned_.count(made) > 0) {
      return internal_error(fmt::format("mb {} of {} is read when its stage has not got it",
                                        pass.micro_batch, cut.name));
    }
    write_made(end.cut, end.tensor, pass.micro_batch,
               memory(activations_, end, pass.micro_batch, -1));
  }
  return {};
}

Status FakeExecutor::backward(const StagePass& pass, bool last, GradientListener& listener) {
  if (plan_.parts_backward()) return internal_error("the plan parts backward passes");
  if (before) AGPCS_RETURN_IF_ERROR(before("backward", pass.micro_batch));
  AGPCS_RETURN_IF_ERROR(meet(2 * pass.micro_batch + 1));
  go_back(pass);
  return finish(pass, last, listener);
}

Status FakeExecutor::backward_input(const StagePass& pass) {
  if (before) AGPCS_RETURN_IF_ERROR(before("backward_input", pass.micro_batch));
  if (values_.count(key_of(pass)) == 0 || returned_.count(key_of(pass)) > 0) {
    return internal_error(fmt::format("input pass of mb {} at a wrong time", pass.micro_batch));
  }
  go_back(pass);
  return {};
}

Status FakeExecutor::backward_weight(const StagePass& pass, bool last, GradientListener& listener) {
  if (before) AGPCS_RETURN_IF_ERROR(before("backward_weight", pass.micro_batch));
  if (returned_.count(key_of(pass)) == 0 || finished_.count(key_of(pass)) > 0) {
    return internal_error(fmt::format("weight pass of mb {} at a wrong time", pass.micro_batch));
  }
  return finish(pass, last, listener);
}

void FakeExecutor::go_back(const StagePass& pass) {
  const auto [stage, micro_batch] = pass;
  auto& [gradient, whole] = returned_[key_of(pass)];
  gradient.assign(static_cast<std::size_t>(samples(micro_batch)), 0.0);
  if (is_last(stage)) gradient = values_[key_of(pass)];
  for (const auto& [key, received] : gradients_) {
    const auto& [cut, tensor, mb, peer] = key;
    const Cut& of = plan_.cuts[static_cast<std::size_t>(cut)];
    if (mb != micro_batch || of.from != stage) continue;
    const CutTensor& shape = of.tensors[static_cast<std::size_t>(tensor)];
    if (!shape.batched) whole += total(received);
    for (std::size_t i = 0; shape.batched && i < gradient.size(); ++i) {
      gradient[i] += total(received, i * row_elements(shape), row_elements(shape));
    }
  }
  for (const End& end : ends_) {
    const bool is_ours = plan_.cuts[static_cast<std::size_t>(end.cut)].to == stage;
    if (end.sending || !is_ours || !end.of->gradient) continue;
    const std::size_t width = row_elements(*end.of);
    auto& out = gradients_[{end.cut, end.tensor, micro_batch, -1}];
    out.assign(width * (end.of->batched ? gradient.size() : 1), total(gradient));
    for (std::size_t i = 0; end.of->batched && i < out.size(); ++i) out[i] = gradient[i / width];
  }
}

Status FakeExecutor::finish(const StagePass& pass, bool last, GradientListener& listener) {
  const auto& [gradient, whole] = returned_.at(key_of(pass));
  const std::vector<double>& values = values_[key_of(pass)];
  // Buckets get ready last to first, but where passes come to one after the other.
  const bool in_order = std::any_of(gathered_.begin(), gathered_.end(),
                                    [](const Gathered& of) { return !of.memory[0].empty(); });
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::size_t b = in_order ? i : buckets_.size() - 1 - i;
    if (buckets_[b].empty() || !plan_.buckets[b].is_of(pass.stage)) continue;
    if (divides_parameters(b)) AGPCS_RETURN_IF_ERROR(read(b));
    for (std::size_t e = 0; e < buckets_[b].size(); ++e) {
      buckets_[b][e] += whole;
      for (std::size_t n = 0; n < gradient.size(); ++n) {
        buckets_[b][e] += static_cast<double>(first_[b] + e + 1) * (values[n] + 3 * gradient[n]);
      }
    }
    if (last || !sums_[b].empty()) listener.bucket_ready(static_cast<int>(b));
  }
  finished_[key_of(pass)] = true;
  return {};
}

Result<double> FakeExecutor::squares(int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  const std::vector<double>& sums = sums_[b].empty() ? buckets_[b] : sums_[b];
  const bool is_copy = sums.size() == as_size(plan_.buckets[b].elements());
  if (is_copy && member_ > 0) return 0.0;
  double squares = 0;
  for (auto i = static_cast<std::size_t>(owned_[b].begin);
       i < static_cast<std::size_t>(owned_[b].end); ++i) {
    squares += sums[i] * sums[i];
  }
  return squares;
}

Status FakeExecutor::scale(double factor) {
  if (!clips) return Executor::scale(factor);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (double& sum : sums_[b].empty() ? buckets_[b] : sums_[b]) sum *= factor;
  }
  return {};
}

Status FakeExecutor::update() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (auto i = static_cast<std::size_t>(owned_[b].begin);
         i < static_cast<std::size_t>(owned_[b].end); ++i) {
      const double sum = (sums_[b].empty() ? buckets_ : sums_)[b][i];
      momentum_[b][i] = sum + (remembers ? momentum_[b][i] : 0);
      double& parameter = divides_parameters(b)
                              ? parts_[b][i - static_cast<std::size_t>(owned_[b].begin)]
                              : parameters_[b][i];
      parameter += momentum_[b][i];
    }
  }
  return {};
}

Result<Buffer> FakeExecutor::rows(std::map<Key, std::vector<double>>& where, int cut,
                                  const Transfer& transfer, int mb, bool computed) {
  const auto it = std::find_if(ends_.begin(), ends_.end(), [&](const End& end) {
    return end.cut == cut && end.tensor == transfer.tensor;
  });
  if (it == ends_.end()) return internal_error("not a cut of this stage");
  const int peer = computed ? -1 : transfer.peer;
  auto& values = memory(where, *it, mb, peer);
  const std::size_t width = row_elements(*it->of);
  const auto first = static_cast<std::size_t>(transfer.first_row) * width;
  const auto count = static_cast<std::size_t>(transfer.rows) * width;
  if (first + count > values.size()) return internal_error("rows beyond this rank's share");
  return Buffer{values.data() + first, count * sizeof(double), DType::kFp64, false};
}

Result<Buffer> FakeExecutor::activation(int cut, const Transfer& transfer, int micro_batch) {
  const Cut& of = plan_.cuts[static_cast<std::size_t>(cut)];
  const bool sending = has(of.from);
  const PassKey pass = {sending ? of.from : of.to, micro_batch};
  const bool computed = values_.count(pass) > 0;
  if (sending != computed) {
    return internal_error(fmt::format("activation of mb {} asked for {} its forward", micro_batch,
                                      sending ? "before" : "after"));
  }
  auto buffer = rows(activations_, cut, transfer, micro_batch, sending);
  if (!buffer.ok() || !sending) return buffer;
  auto& values = activations_[{cut, transfer.tensor, micro_batch, -1}];
  if (values.empty() || !std::isnan(values.front()))
    return buffer;  // another peer is being sent it already
  write_made(cut, transfer.tensor, micro_batch, values);
  return buffer;
}

Result<Buffer> FakeExecutor::gradient(int cut, const Transfer& transfer, int micro_batch) {
  const Cut& of = plan_.cuts[static_cast<std::size_t>(cut)];
  const bool sending = has(of.to);
  if (sending != (returned_.count({sending ? of.to : of.from, micro_batch}) > 0)) {
    return internal_error(fmt::format("gradient of mb {} asked for {} its backward", micro_batch,
                                      sending ? "before" : "after"));
  }
  return rows(gradients_, cut, transfer, micro_batch, sending);
}

// The memory is that of the bucket that was filled last, and holds no number between a bucket that
// was kept and the next that is filled: a sum that comes too early or too late is wrong.
Status FakeExecutor::fill_bucket(int bucket) {
  if (filling_ >= 0) return internal_error(fmt::format("bucket {} is not kept", filling_));
  filling_ = bucket;
  std::vector<double>& fresh = buckets_[static_cast<std::size_t>(bucket)];
  std::copy(fresh.begin(), fresh.end(), filled_.begin());
  std::fill(fresh.begin(), fresh.end(), 0.0);
  return {};
}

Status FakeExecutor::keep_part(int bucket) {
  if (filling_ != bucket) return internal_error(fmt::format("bucket {} is not filled", bucket));
  filling_ = -1;
  const auto b = static_cast<std::size_t>(bucket);
  for (auto i = static_cast<std::size_t>(owned_[b].begin);
       i < static_cast<std::size_t>(owned_[b].end); ++i) {
    sums_[b][i] += filled_[i];
  }
  std::fill(filled_.begin(), filled_.end(), kNotYet);
  return {};
}

Result<Buffer> FakeExecutor::bucket(int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  double* const values = sums_[b].empty() ? buckets_[b].data() : filled_.data();
  return Buffer{values, buckets_[b].size() * sizeof(double), DType::kFp64, false};
}

Result<Buffer> FakeExecutor::values(int bucket) {
  if (!divides) return Executor::values(bucket);
  auto& values = parameters_[static_cast<std::size_t>(bucket)];
  return Buffer{values.data(), values.size() * sizeof(double), DType::kFp64, false};
}

}  // namespace agpcs
