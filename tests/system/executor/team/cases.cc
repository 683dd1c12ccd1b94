// SPDX-License-Identifier: Apache-2.0
#include "tests/system/executor/team/cases.h"

#include "frontend/onnx/import_onnx.h"
#include "runtime/torch/stage.h"
#include "tests/support/team_models.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <numeric>
#include <utility>

namespace agpcs::testing {
namespace {

TeamCase whole(std::string name, Graph graph) {
  TeamCase one{std::move(name), std::move(graph), {}};
  one.ops.resize(one.graph.ops.size());
  std::iota(one.ops.begin(), one.ops.end(), 0);
  return one;
}

TeamCase of_file(const std::string& path) {
  Result<Imported> imported = import_onnx(path);
  AGPCS_CHECK(imported.ok(), "{}", imported.status().message());
  Loss loss;
  loss.by_shape = true;
  Result<Graph> graph = attach_loss(std::move(imported->graph), loss);
  AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
  graph = derive_backward(*std::move(graph));
  AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
  return whole(path, *std::move(graph));
}

/// The operators from `first` on, before `end`.
TeamCase stage(TeamCase of, const std::string& first, const std::string& end) {
  const OpId from = of.graph.find_op(first), to = of.graph.find_op(end);
  AGPCS_CHECK(from != kNone && to > from, "no stage {}..{}", first, end);
  of.name += fmt::format(", {}..{}", first, end);
  of.ops.resize(static_cast<std::size_t>(to - from));
  std::iota(of.ops.begin(), of.ops.end(), from);
  return of;
}

void widen_constant(Tensor& tensor) {
  if (tensor.constant.bytes.empty()) return;
  const Result<at::Tensor> value = constant_tensor(tensor, 1);
  AGPCS_CHECK(value.ok(), "{}", value.status().message());
  const at::Tensor wide = value->to(at::kDouble).contiguous();
  tensor.constant.bytes.resize(wide.nbytes());
  std::memcpy(tensor.constant.bytes.data(), wide.data_ptr(), wide.nbytes());
}

}  // namespace

std::vector<TeamCase> whole_models() {
  const TransformerSize grouped{2, 6, 48, 12, 6, 64, 40};
  std::vector<TeamCase> all;
  all.push_back(whole("GPT", gpt_graph()));
  all.push_back(whole("Llama", llama_graph(grouped)));
  all.push_back(whole("CNN", cnn_graph()));
  all.push_back(of_file("tests/system/training/models/bert.onnx"));
  return all;
}

TeamCase middle_stage() { return stage(whole("GPT", gpt_graph()), "h0_proj0", "h1_up0"); }

TeamCase in_fp64(TeamCase one) {
  for (Tensor& tensor : one.graph.tensors) {
    if (!is_floating(tensor.type)) continue;
    widen_constant(tensor);
    tensor.type = DType::kFp64;
  }
  for (Op& op : one.graph.ops) {
    if (op.type != "Cast" || !is_floating(one.graph.tensor(op.outputs[0]).type)) continue;
    op.attributes["to"] = std::int64_t{11};  // ONNX's number of fp64
  }
  return one;
}

TeamProblem problem_of(const TeamCase& one, const std::vector<std::int64_t>& parts,
                       std::int64_t samples, double link, double latency) {
  TeamSpeeds speeds{{}, {}, link, latency};
  for (const std::int64_t part : parts) {
    speeds.flops.push_back(static_cast<double>(part) * 1e9);
    speeds.memory.push_back(static_cast<double>(part) * 1e9);
  }
  TeamProblem problem{one.graph, one.ops, parts, samples, 2, Precision::kFp32, {}};
  problem.costs = roofline_costs(one.graph, speeds, samples, problem.precision);
  return problem;
}

std::optional<TeamBody> random_body(const TeamProblem& problem, Rng& rng) {
  const TeamSpace space = team_space(problem);
  std::vector<int> options;
  for (const std::vector<TeamOption>& of : space.options) {
    options.push_back(static_cast<int>(rng.below(of.size())));
  }
  return team_body(problem, space, options, std::vector<int>(problem.graph.tensors.size(), kNone));
}

}  // namespace agpcs::testing
