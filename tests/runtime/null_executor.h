// SPDX-License-Identifier: Apache-2.0
// An executor that computes nothing and allocates in `prepare` only, and a transport whose messages
// are done at once: what is left of a step is the replayer's own cost.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/transport.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace agpcs {

class NullExecutor : public Executor {
 public:
  Status prepare(const Plan& plan, int rank) override {
    const int stage = plan.stage_of_rank(rank);
    std::size_t largest = 0;
    for (std::size_t c = 0; c < plan.cuts.size(); ++c) {
      for (const Transfer& t : transfers(plan, static_cast<int>(c), rank, 0)) {
        const CutTensor& tensor = plan.cuts[c].tensors[static_cast<std::size_t>(t.tensor)];
        largest = std::max(largest, static_cast<std::size_t>(t.rows * tensor.elements_per_row()) *
                                        size_of(tensor.type));
      }
    }
    rows_.assign(largest, 0);
    sizes_.resize(plan.cuts.size());
    for (std::size_t c = 0; c < plan.cuts.size(); ++c) {
      for (const CutTensor& tensor : plan.cuts[c].tensors) {
        sizes_[c].push_back(static_cast<std::size_t>(tensor.elements_per_row()) *
                            size_of(tensor.type));
      }
    }
    for (const PlanBucket& bucket : plan.buckets) {
      const bool ours = bucket.stage == stage;
      buckets_.emplace_back(
          ours ? static_cast<std::size_t>(bucket.elements()) * size_of(bucket.type) : 0);
      types_.push_back(bucket.type);
      divides_.push_back(bucket.divides_gradients());
      if (ours) ours_.push_back(static_cast<int>(buckets_.size()) - 1);
    }
    return {};
  }
  Status begin_step(std::int64_t /*step*/) override { return {}; }
  Status forward(const StagePass& /*pass*/) override { return {}; }
  Status backward(const StagePass& /*pass*/, bool last, GradientListener& listener) override {
    for (const int bucket : ours_) {
      if (last || divides_[static_cast<std::size_t>(bucket)]) listener.bucket_ready(bucket);
    }
    return {};
  }
  Status update() override { return {}; }
  Result<Buffer> activation(int cut, const Transfer& transfer, int /*micro_batch*/) override {
    return rows(cut, transfer);
  }
  Result<Buffer> gradient(int cut, const Transfer& transfer, int /*micro_batch*/) override {
    return rows(cut, transfer);
  }
  Result<Buffer> bucket(int bucket) override {
    auto& bytes = buckets_[static_cast<std::size_t>(bucket)];
    return Buffer{bytes.data(), bytes.size(), types_[static_cast<std::size_t>(bucket)], false};
  }
  Result<Buffer> values(int bucket) override { return this->bucket(bucket); }
  Status fill_bucket(int /*bucket*/) override { return {}; }
  Status keep_part(int /*bucket*/) override { return {}; }
  double loss() const override { return 0; }

 private:
  // Messages of several micro-batches share one memory: nobody looks at what they bring.
  Result<Buffer> rows(int cut, const Transfer& transfer) {
    const std::size_t row =
        sizes_[static_cast<std::size_t>(cut)][static_cast<std::size_t>(transfer.tensor)];
    return Buffer{rows_.data(), static_cast<std::size_t>(transfer.rows) * row, DType::kUint8,
                  false};
  }
  std::vector<char> rows_;
  std::vector<std::vector<std::size_t>> sizes_;  // by cut, tensor: bytes of a row
  std::vector<std::vector<char>> buckets_;
  std::vector<DType> types_;
  std::vector<bool> divides_;  // by bucket: ranks divide its gradients
  std::vector<int> ours_;
};

/// Rank `rank` of `size` whose messages are done at once. Sums are as if all other ranks had
/// nothing to add; but the ranks' agreement on the plan finds that all have this rank's digest.
class InstantTransport : public Transport {
 public:
  InstantTransport(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status open_group(int, const std::vector<int>&, const std::vector<int>&) override { return {}; }
  Status open_flow(int, int, const PlanFlow&) override { return {}; }
  Result<Ticket> send(const Buffer&, int, std::uint64_t) override { return ++tickets_[0]; }
  Result<Ticket> recv(const Buffer&, int, std::uint64_t) override { return ++tickets_[1]; }
  Result<Ticket> all_reduce(const Buffer& buffer, int, AllReduce) override {
    if (buffer.type == DType::kInt64) {
      const std::size_t each = buffer.bytes / static_cast<std::size_t>(size_);
      char* all = static_cast<char*>(buffer.data);
      const char* mine = all + each * static_cast<std::size_t>(rank_);
      for (int r = 0; r < size_; ++r) {
        if (r != rank_) std::copy(mine, mine + each, all + each * static_cast<std::size_t>(r));
      }
    }
    return ++tickets_[2];
  }
  Result<Ticket> reduce_scatter(const Buffer&, const std::vector<std::int64_t>&, int,
                                AllReduce) override {
    return ++tickets_[2];
  }
  Result<Ticket> all_gather(const Buffer&, const std::vector<std::int64_t>&, int,
                            AllReduce) override {
    return ++tickets_[2];
  }
  Result<Ticket> all_to_all(const Buffer&, const std::vector<std::int64_t>&, int) override {
    return ++tickets_[2];
  }
  Result<Ticket> all_reduce_flow(const Buffer&, int) override { return ++tickets_[2]; }
  Status wait(Stream, Ticket, std::chrono::milliseconds) override { return {}; }
  OperationTime time_of(Stream, Ticket) const override { return {1, 1}; }
  void abort(const Status&) override {}

 private:
  const int rank_, size_;
  std::array<Ticket, 3> tickets_ = {};
};

}  // namespace agpcs
