// SPDX-License-Identifier: Apache-2.0
// An executor whose numbers are small integers, so that every sum is exact: a row that is lost,
// doubled or mixed up, or a gradient that is not summed exactly once, changes the result.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/plan.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {

/// What each stage computes, for the sample of number g in the batch, in batch t of all steps:
///   value = 1 + g + t                                       in stage 0
///   value = stage + sum of the received tensors' elements   in the others
///   a sent row's element e = value + e, and for a tensor of all samples: stage + mb + t + e
///   gradient = value (last stage) or the sum of the received gradients' elements
///   every element of a returned gradient = gradient; of a tensor of all samples: sum over samples
///   bucket element i += (i + 1) x (value + 3 x gradient), and += what came back for whole tensors
/// and update adds the buckets to the parameters; loss = sum of the last stage's values. Of a
/// parted backward pass, the first part makes `gradient`, and the second adds to the buckets. All
/// members of a team compute the same, and meet at each pass; of a bucket each has what it holds.
class FakeExecutor : public Executor {
 public:
  Status prepare(const Plan& plan, int rank) override;
  Status begin_step(std::int64_t step) override;
  Status next_batch() override;
  /// There are two batches: 0 and 1 of training.
  Result<bool> begin_evaluation(std::int64_t batch) override;
  Evaluation evaluation() const override { return evaluation_; }
  Status compute_stages(const std::vector<int>& stages) override;
  Status forward(const StagePass& pass) override;
  Status backward(const StagePass& pass, bool last, GradientListener& listener) override;
  Status backward_input(const StagePass& pass) override;
  Status backward_weight(const StagePass& pass, bool last, GradientListener& listener) override;
  Status update() override;
  Result<Buffer> activation(int cut, const Transfer& transfer, int micro_batch) override;
  Result<Buffer> gradient(int cut, const Transfer& transfer, int micro_batch) override;
  /// Overwrites what the message has carried, so that whoever reads it later ends with no number.
  void sent(const InstructionId& send) override;
  Result<Buffer> bucket(int bucket) override;
  Result<Buffer> values(int bucket) override;
  Result<double> squares(int bucket) override;
  Status scale(double factor) override;
  Status fill_bucket(int bucket) override;
  Status keep_part(int bucket) override;
  Status gather_with(ParameterSource& source) override;
  Result<Buffer> gather(int bucket) override;
  Status exchange_with(const TeamExchanges& over) override;
  double loss() const override { return loss_; }

  /// The parameters, and the momentum of those that this rank owns if it `remembers`, by the bytes
  /// of their doubles: two elements each.
  std::vector<StateItem> state() const override;
  Status read_state(const StateItem& item, std::int64_t first, std::int64_t count,
                    float* out) const override;
  Status write_state(const StateItem& item, std::int64_t first, std::int64_t count,
                     const float* values) override;

  /// By bucket of the plan: the first of its elements that this rank holds.
  const std::vector<std::size_t>& first_elements() const { return first_; }
  /// By bucket of the plan; empty for those of other ranks. Those that ranks divide are those that
  /// the last pass has read.
  const std::vector<std::vector<double>>& parameters() const { return parameters_; }
  int batches = 1;          ///< of a step
  bool remembers = false;   ///< update adds to the parameters the sum of the buckets of all steps
  bool divides = true;      ///< it can update a part of its parameters
  bool clips = true;        ///< it can scale gradients
  bool has_several = true;  ///< it can compute several stages
  std::vector<InstructionId> told_sent;  ///< arguments of `sent` in this step
  /// Called before each forward and backward, or part of it; an error of it is the executor's.
  std::function<Status(const char* what, int micro_batch)> before;

 private:
  using Key = std::tuple<int, int, int, int>;  // cut, tensor, micro-batch, peer (-1: all)
  using PassKey = std::pair<int, int>;         // stage, micro-batch
  static PassKey key_of(const StagePass& pass) { return {pass.stage, pass.micro_batch}; }
  struct End {
    int cut = 0, tensor = 0;
    bool sending = false;
    const CutTensor* of = nullptr;
  };
  void clear_batch();
  Status meet(int pass);
  void write_made(int cut, int tensor, int mb, std::vector<double>& values);
  /// Takes what other stages of this rank have made for a pass, which no message carries.
  Status take(const StagePass& pass);
  void go_back(const StagePass& pass);
  Status finish(const StagePass& pass, bool last, GradientListener& listener);
  bool has(int stage) const;
  bool is_last(int stage) const;
  bool divides_parameters(std::size_t bucket) const;
  /// Reads a bucket's parameters in a pass, and frees them.
  Status read(std::size_t bucket);
  std::int64_t first_sample(int micro_batch) const;
  std::int64_t samples(int micro_batch) const;
  /// Where the item's bytes lie; an error when this rank lacks any of these elements.
  Result<const char*> bytes_of(const StateItem& item, std::int64_t first_of_whole,
                               std::int64_t count) const;
  std::vector<double>& memory(std::map<Key, std::vector<double>>& where, const End& end, int mb,
                              int peer);
  Result<Buffer> rows(std::map<Key, std::vector<double>>& where, int cut, const Transfer& transfer,
                      int mb, bool computed);

  Plan plan_;
  int rank_ = 0;
  std::vector<int> stages_;  // of the rank
  std::size_t replica_ = 0, member_ = 0;
  TeamExchanges over_;
  std::vector<std::size_t> first_;  // by bucket
  std::int64_t batch_ = 0;          // of all steps
  bool evaluates_ = false;
  Evaluation evaluation_;
  std::vector<End> ends_;
  std::map<Key, std::vector<double>> activations_, gradients_;
  std::map<PassKey, std::vector<double>> values_;  // own samples; set by forward
  struct Back {
    std::vector<double> gradient;
    double whole = 0;  // what came back for tensors of all samples
  };
  std::map<PassKey, Back> returned_;  // passes whose gradients are back
  std::map<PassKey, bool> finished_;  // those whose buckets have them
  std::vector<std::vector<double>> buckets_, parameters_;
  std::vector<std::vector<double>> sums_;      // kept of buckets of which ranks divide gradients
  std::vector<double> filled_;                 // the memory of the one that is summed
  int filling_ = -1;                           // that bucket; -1: none
  std::vector<std::vector<double>> momentum_;  // no number where another rank owns the element
  std::vector<ElementRange> owned_;            // by bucket
  /// Of buckets of which ranks divide parameters: what this rank owns, and the memory of passes,
  /// which holds no number between them. The next pass may gather a bucket while this one reads it.
  struct Gathered {
    std::array<std::vector<double>, 2> memory;
    std::size_t gathers = 0, reads = 0;
  };
  std::vector<std::vector<double>> parts_;
  std::vector<Gathered> gathered_;
  ParameterSource* source_ = nullptr;
  double loss_ = 0;
};

/// What the parameters are after `steps` steps, of `batches` batches each, of one process that
/// computes all samples, and the loss of the last step. `remembers`: FakeExecutor::remembers.
struct FakeOutcome {
  std::vector<std::vector<double>> parameters;
  double loss = 0;
};
FakeOutcome fake_reference(const Plan& plan, int steps, int batches = 1, bool remembers = false);

}  // namespace agpcs
