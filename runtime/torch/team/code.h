// SPDX-License-Identifier: Apache-2.0
// TeamCode: the body of a team as one member computes it, bound to kernels and ready to run on a
// number of samples.
#pragma once

#include "ir/team/body.h"
#include "runtime/torch/ops/ops.h"
#include "runtime/torch/stage.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace agpcs {

/// Forms of a tensor between which no exchange lies share memory, a gradient, or both. Of each such
/// set, one form stands for all.
struct SharedForms {
  std::vector<int> value;     ///< by form: the one that has its memory
  std::vector<int> gradient;  ///< by form: the one to whose gradient its own is added
  std::vector<int> variable;  ///< by form: the one of which it has both
  /// By form: those that stand for a set and have its memory.
  std::vector<std::vector<int>> variables;
};
SharedForms shared_forms(const Graph& graph, const TeamBody& body);

class TeamCode {
 public:
  /// An operator of the body as the member computes it.
  struct Step {
    Op op;  ///< with the member's numbers
    OpSplit split;
    UnitRange units;
    double mean_part = 1;   ///< what an output is multiplied by that lies as a mean
    RandomSource random;    ///< but for seed and first sample
    Tensors constants;      ///< by input: on the device; undefined: it is none
    Tensors host;           ///< the same in host memory
    std::vector<int> dead;  ///< forms whose memory is last used here
  };
  /// Operators between two exchanges of either pass: a piece of autograd's graph.
  struct Region {
    int first = 0, last = 0;   ///< indices of steps
    std::vector<int> results;  ///< forms that it makes and that others read, exchange or keep
  };
  /// What a pass does next: a region, or an exchange.
  struct Action {
    int region = kNone, form = kNone;
    std::vector<int> dead;  ///< forward, an exchange: forms whose memory is last used here
  };

  /// Binds the operators for `samples` samples on `device`. Needs: the body verifies. Errors: a
  /// constant has no values, or operators have no kernel.
  static Result<TeamCode> compile(const Graph& graph, const TeamBody& body, std::size_t member,
                                  std::int64_t samples, at::Device device);

  std::int64_t samples() const { return samples_; }
  const SharedForms& shared() const { return shared_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Region>& regions() const { return regions_; }
  const std::vector<Action>& forward() const { return forward_; }
  const std::vector<Action>& backward() const { return backward_; }

 private:
  TeamCode(const Graph& graph, const TeamBody& body, std::size_t member, std::int64_t samples)
      : graph_(&graph),
        body_(&body),
        member_(member),
        samples_(samples),
        shared_(shared_forms(graph, body)) {}
  /// What has the same value in each pass.
  struct Fixed {
    struct Own {
      at::Tensor host, here;  // in host memory, and on the device
    };
    FixedTensors whole;
    std::map<int, Own> own;  // by form: what the member has, for all operators that read it
  };
  void bind(const TeamOp& op, Fixed& fixed, at::Device device);
  void load_constants(const TeamOp& op, Step& step, Fixed& fixed, at::Device device) const;
  void find_random(const TeamOp& op, Step& step) const;
  void find_regions();
  void find_results();
  void find_last_uses();

  const Graph* graph_;
  const TeamBody* body_;
  std::size_t member_;
  std::int64_t samples_;
  SharedForms shared_;
  std::vector<Step> steps_;
  std::vector<Region> regions_;
  std::vector<Action> forward_, backward_;
};

/// Returns, ascending, the tensors that a body reads and does not make, except constants.
std::vector<TensorId> body_inputs(const Graph& graph, const TeamBody& body);
/// Returns the form in which a tensor leaves a body; kNone: there is none.
int leaving_form(const TeamBody& body, TensorId tensor);

}  // namespace agpcs
