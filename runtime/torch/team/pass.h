// SPDX-License-Identifier: Apache-2.0
// TeamPass: the passes of one micro-batch through a stage, as a member of a team computes them.
//
// Autograd differentiates each region of operators by itself. Between regions, tensors and their
// gradients are this class's: it exchanges them with the other members, adds gradients up, and
// frees what nobody reads any more. Between the passes it holds no values, but what operators have
// saved.
#pragma once

#include "runtime/torch/device/clock.h"
#include "runtime/torch/stage.h"
#include "runtime/torch/team/code.h"
#include "runtime/torch/team/link.h"

#include <cstddef>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// What the passes of a stage share.
struct TeamContext {
  const Graph& graph;
  const TeamBody& body;
  at::Device device;
  TeamLink link;
  SharedForms shared;
  std::map<TensorId, TeamPlacement> held;  ///< how the stage holds parameters and states
  Tensors step_gradients;                  ///< by form: of parameters, sums over the step so far

  const TeamForm& form(int id) const { return body.forms[static_cast<std::size_t>(id)]; }
  const Tensor& tensor_of(int id) const { return graph.tensor(form(id).tensor); }
  /// Makes a form's gradient that of the form that it was made of. Zeros stand for no gradient.
  at::Tensor exchange_gradient(int form, at::Tensor own, std::int64_t samples);
};

/// Adds `x`, if it is defined, to a sum, which may begin undefined.
void add_gradient(at::Tensor& sum, const at::Tensor& x);
/// Adds `x` to the gradient that autograd knows of a leaf.
void add_to_leaf(const at::Tensor& leaf, at::Tensor x);

/// It must stay where it is from a forward pass to the backward pass.
class TeamPass {
 public:
  using Values = std::unordered_map<TensorId, at::Tensor>;
  explicit TeamPass(TeamContext& context);
  ~TeamPass();
  TeamPass(const TeamPass&) = delete;
  TeamPass& operator=(const TeamPass&) = delete;

  /// See `TeamStage`. Of the tensors `keep`, `values` has afterwards those that the body makes,
  /// too, as copies and without gradients; all members name the same ones.
  void forward(const TeamCode& code, Values& values, const StageCode::Run& run,
               const std::vector<TensorId>& keep = {});
  void backward(const Values& gradients);

 private:
  struct Roots;
  void begin(Values& values);
  void run_region(std::size_t region, const StageCode::Run& run);
  void run_step(std::size_t index, const StageCode::Run& run);
  void keep_whole(int form);
  Tensors outputs_of(const TeamCode::Step& step, const TeamOp& op, const StageCode::Run& run);
  /// Returns a form as an operator of the region that runs reads it.
  at::Tensor read(int form);
  void outside_of_operators();  ///< tells the clock, if there is one
  void exchange(const TeamCode::Action& action);
  void free(const std::vector<int>& dead);
  void go_back(std::size_t region);
  void exchange_gradient(int form);
  void add(int form, const at::Tensor& gradient);

  TeamContext& context_;
  const TeamCode* code_ = nullptr;
  PassClock* clock_ = nullptr;  // of the pass, and of the backward pass that follows
  Tensors values_;              // by form: those of forms that stand for others, between regions
  Tensors live_;                // by form: variables of the region that runs
  Tensors leaves_;              // by form: leaves of autograd's graph that the caller has given
  Tensors gradients_;           // by form: sums so far
  Values kept_;                 // undefined: it is not made yet
  std::vector<Roots> roots_;    // by region
};

}  // namespace agpcs
