// SPDX-License-Identifier: Apache-2.0
#include "tests/system/training/harness.h"

#include "codegen/lower.h"
#include "codegen/stage_program.h"
#include "codegen/timetable.h"
#include "frontend/onnx/import_onnx.h"
#include "ir/base/check.h"
#include "ir/graph/training_graph.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/stage_memory.h"
#include "planner/team/choose.h"
#include "runtime/support/state_part.h"
#include "runtime/torch/data/npy.h"
#include "tests/support/builders.h"
#include "tests/support/shard_plan.h"

#include <agpcs/loopback.h>
#include <agpcs/replayer.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <thread>
#include <utility>

namespace agpcs::testing {
namespace {

template <typename T>
T take(Result<T> result) {
  AGPCS_CHECK(result.ok(), "{}", result.status().message());
  return std::move(result).value();
}

// Moves each boundary on until the strategy is valid: operators that cannot be parted (a shared
// parameter, a tensor that may not cross) then lie together.
Strategy cut_evenly(const Graph& graph, const Cluster& cluster, Strategy strategy,
                    std::int64_t batch) {
  const std::size_t stages = strategy.stages.size(), ops = graph.ops.size();
  std::vector<std::size_t> begin(stages + 1, ops);
  const std::function<bool(std::size_t)> place = [&](std::size_t stage) {
    if (stage == stages) {
      for (std::size_t s = 0; s < stages; ++s) {
        std::fill(strategy.stage_of.begin() + static_cast<std::ptrdiff_t>(begin[s]),
                  strategy.stage_of.begin() + static_cast<std::ptrdiff_t>(begin[s + 1]),
                  static_cast<int>(s));
      }
      return verify_strategy(strategy, graph, cluster, batch).ok();
    }
    const std::size_t ideal = stage * ops / stages;
    for (std::size_t shift = 0; shift < (stage == 0 ? 1 : ops / (2 * stages)); ++shift) {
      begin[stage] = ideal + shift;
      if (place(stage + 1)) return true;
    }
    return false;
  };
  strategy.stage_of.assign(ops, 0);
  AGPCS_CHECK(place(0), "no cut into {} stages", stages);
  return strategy;
}

void add_buckets(const Graph& graph, Strategy& strategy) {
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    std::vector<TensorId> parameters;
    for (TensorId id : graph.parameters()) {
      const std::vector<int> stages = stages_reading(graph, strategy.stage_of, id);
      if (stages == std::vector{static_cast<int>(s)}) parameters.push_back(id);
    }
    std::reverse(parameters.begin(), parameters.end());
    const auto half = parameters.begin() + static_cast<std::ptrdiff_t>(parameters.size() / 2);
    for (auto [first, last] :
         {std::pair(parameters.begin(), half), std::pair(half, parameters.end())}) {
      if (first != last)
        strategy.buckets.push_back({static_cast<int>(s), AllReduce::kRing, {first, last}});
    }
  }
  for (TensorId id : graph.parameters()) {
    const std::vector<int> stages = stages_reading(graph, strategy.stage_of, id);
    if (stages.size() < 2) continue;
    strategy.buckets.push_back({stages.front(), AllReduce::kTree, {id}});
    strategy.buckets.back().shared_with.assign(stages.begin() + 1, stages.end());
  }
}

Cluster cpus(std::size_t devices) {
  return cluster_of(
      fmt::format("kind cpu memory=16e9 bandwidth=10e9 fp32=50e9\nhost a cpu {}\n", devices));
}

Plan lowered(const Graph& graph, const Cluster& cluster, const Training& training,
             const Strategy& strategy) {
  const MadeBy made_by{"0.1.0", 7, "test", "none"};
  Plan plan = take(lower(graph, cluster, training, strategy, made_by));
  for (const std::string& name : expectation_names(plan)) {
    plan.expect.push_back({name, 1, std::string(expectation_unit(name))});
  }
  const Status valid = verify_plan(plan);
  AGPCS_CHECK(valid.ok(), "{}", valid.message());
  return plan;
}

/// Adds the body that is best for such parts, and returns its number.
int add_body(const Graph& graph, Strategy& strategy, int stage,
             const std::vector<std::int64_t>& parts, double link) {
  TeamProblem problem{graph, {}, parts, 2, strategy.micro_batches, Precision::kFp32, {}};
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    if (strategy.stage_of[static_cast<std::size_t>(op)] == stage) problem.ops.push_back(op);
  }
  const int number = static_cast<int>(strategy.bodies.size());
  if (parts.size() == 1) {
    strategy.bodies.push_back(lone_body(graph, problem.ops));
    return number;
  }
  TeamSpeeds speeds{{}, {}, link, 0};
  for (const std::int64_t part : parts) {
    speeds.flops.push_back(static_cast<double>(part) * 1e9);
    speeds.memory.push_back(static_cast<double>(part) * 1e9);
  }
  problem.costs = roofline_costs(graph, speeds, problem.samples, problem.precision);
  strategy.bodies.push_back(take(choose_team_body(problem)).body);
  return number;
}

/// Gives a stage bodies for its shape.
void add_bodies(const Graph& graph, Strategy& strategy, int stage, const TeamsShape& shape,
                double link) {
  StageSpec& spec = strategy.stages[static_cast<std::size_t>(stage)];
  spec.body = static_cast<int>(strategy.bodies.size());
  if (shape.unlike.empty()) {
    add_body(graph, strategy, stage, shape.parts, link);
    return;
  }
  std::map<std::vector<std::int64_t>, int> known;  // by parts
  for (const std::vector<std::int64_t>& parts : shape.unlike) {
    if (!known.contains(parts)) known[parts] = add_body(graph, strategy, stage, parts, link);
    spec.bodies.push_back(known[parts]);
  }
}

struct RankRun {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> values;
  Evaluation evaluation;
};

RankRun run_rank(const Graph& graph, const Plan& plan, int rank, int steps, TorchOptions options,
                 LoopbackHub& hub) {
  const std::unique_ptr<Transport> transport = hub.join(rank);
  options.threads = 1;
  ReplayOptions replay;
  replay.batches = options.batches;
  const bool evaluates = options.evaluation != nullptr;
  const std::unique_ptr<TorchExecutor> executor = make_torch_executor(graph, std::move(options));
  const auto replayer = take(Replayer::create(plan, rank, *transport, *executor, replay));
  RankRun run;
  for (int i = 0; i < steps; ++i) run.losses.push_back(take(replayer->run_step()).loss);
  if (evaluates) run.evaluation = take(replayer->evaluate());
  for (const StateItem& item : executor->state()) {  // NaN: another rank has the element
    if (item.slot != kValueSlot) continue;
    std::vector<float>& values = run.values[item.tensor];
    values.resize(static_cast<std::size_t>(item.elements), std::numeric_limits<float>::quiet_NaN());
    const ElementRange has = item.range();
    std::vector<float> own(static_cast<std::size_t>(item.size()));
    const Status read = executor->read_state(item, has.begin, has.size(), own.data());
    AGPCS_CHECK(read.ok(), "{}", read.message());
    unpack(item, has.begin, has.size(), own.data(), values.data() + has.begin);
  }
  return run;
}

}  // namespace

Graph training_graph(const std::string& path) {
  Loss loss;
  return training_graph(path, loss);
}

Graph training_graph(const std::string& path, Loss& loss, const std::vector<std::string>& freeze) {
  ImportOptions options;
  options.freeze = freeze;
  options.read_weights = true;
  Graph graph = take(import_onnx(path, options)).graph;
  return take(derive_backward(take(attach_loss(std::move(graph), loss))));
}

void set_dropout(Graph& graph, double ratio) {
  const auto value = static_cast<float>(ratio);
  for (const Op& op : graph.ops) {
    if (op.type != "Dropout") continue;
    Tensor& input = graph.tensor(op.inputs[1]);
    AGPCS_CHECK(input.type == DType::kFp32, "the ratio of {} is {}", op.name, name_of(input.type));
    input.constant.bytes.resize(sizeof value);
    std::memcpy(input.constant.bytes.data(), &value, sizeof value);
  }
}

Training training_of(std::int64_t batch) {
  Training training;
  training.batch = batch;
  training.loss.outputs = {{"logits", 1.0}};
  training.optimizer.learning_rate = 0.05;
  training.optimizer.momentum = 0.9;
  training.optimizer.weight_decay = 1e-4;
  return training;
}

Plan plan_with(const Graph& graph, const Training& training,
               const std::vector<std::vector<std::int64_t>>& shares, std::int64_t micro_batches,
               const Recomputation& recompute, const std::vector<std::int64_t>& in_flight,
               Schedule schedule) {
  std::size_t devices = 0;
  for (const auto& stage : shares) devices += stage.size();
  const Cluster cluster = cpus(devices);
  Strategy strategy;
  strategy.micro_batches = micro_batches;
  strategy.schedule = schedule;
  for (const auto& stage : shares) {
    StageSpec spec;
    spec.shares = stage;
    spec.recompute = recompute;
    if (!in_flight.empty()) spec.in_flight = in_flight[strategy.stages.size()];
    const int first = strategy.stages.empty() ? 0 : strategy.stages.back().devices.back() + 1;
    spec.devices.resize(stage.size());
    std::iota(spec.devices.begin(), spec.devices.end(), first);
    strategy.stages.push_back(std::move(spec));
  }
  strategy = cut_evenly(graph, cluster, std::move(strategy), training.batch);
  add_buckets(graph, strategy);
  return lowered(graph, cluster, training, strategy);
}

Plan interleaved_plan(const Graph& graph, const Training& training,
                      const std::vector<std::vector<std::int64_t>>& round, std::size_t each,
                      std::int64_t micro_batches, const Recomputation& recompute) {
  Strategy strategy;
  strategy.micro_batches = micro_batches;
  strategy.schedule = Schedule::kInterleaved;
  DeviceId next = 0;
  for (const auto& shares : round) {
    StageSpec& spec = strategy.stages.emplace_back();
    spec.shares = shares;
    spec.recompute = recompute;
    for (std::size_t i = 0; i < shares.size(); ++i) spec.devices.push_back(next++);
  }
  while (strategy.stages.size() < each * round.size()) {
    strategy.stages.push_back(strategy.stages[strategy.stages.size() - round.size()]);
  }
  const Cluster cluster = cpus(static_cast<std::size_t>(next));
  strategy = cut_evenly(graph, cluster, std::move(strategy), training.batch);
  add_buckets(graph, strategy);
  return lowered(graph, cluster, training, strategy);
}

Plan plan_with_teams(const Graph& graph, const Training& training,
                     const std::vector<TeamsShape>& stages, std::int64_t micro_batches,
                     double link) {
  Strategy strategy;
  strategy.micro_batches = micro_batches;
  std::vector<std::vector<std::vector<DeviceId>>> further(stages.size());
  DeviceId next = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    StageSpec spec;
    spec.shares = stages[s].shares;
    for (std::size_t i = 0; i < spec.shares.size(); ++i) {
      const bool unlike = !stages[s].unlike.empty();
      const std::size_t parts = (unlike ? stages[s].unlike[i] : stages[s].parts).size();
      std::vector<DeviceId> members(std::max<std::size_t>(parts, 1));
      std::iota(members.begin(), members.end(), next);
      next = members.back() + 1;
      if (stages[s].backwards) std::reverse(members.begin(), members.end());
      spec.devices.push_back(members.front());
      further[s].emplace_back(members.begin() + 1, members.end());
    }
    strategy.stages.push_back(std::move(spec));
  }
  const Cluster cluster = cpus(static_cast<std::size_t>(next));
  strategy = cut_evenly(graph, cluster, std::move(strategy), training.batch);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].parts.empty() && stages[s].unlike.empty()) continue;
    strategy.stages[s].further = further[s];
    add_bodies(graph, strategy, static_cast<int>(s), stages[s], link);
  }
  add_buckets(graph, strategy);
  const Status sound = verify_strategy(strategy, graph, cluster, training.batch);
  AGPCS_CHECK(sound.ok(), "{}", sound.message());
  return lowered(graph, cluster, training, strategy);
}

Plan divided(const Graph& graph, Plan plan, const std::vector<std::int64_t>& weights,
             StateLevel level) {
  plan = sharded(std::move(plan), weights, std::min(level, StateLevel::kGradients));
  if (level != StateLevel::kParameters) return plan;
  for (PlanBucket& bucket : plan.buckets) {
    if (bucket.divides_gradients()) bucket.state = StateLevel::kParameters;
  }
  std::vector<std::int64_t> in_flight;
  for (const Program& program : plan.programs) in_flight.push_back(most_in_flight(program));
  const Timetable timetable(plan, in_flight);
  const auto ops = take(operators_of_stages(plan, graph));
  for (int stage = 0; stage < static_cast<int>(plan.stages.size()); ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    const StageParts parts = parts_of_stage(plan, graph, stage, ops[s]);
    plan.programs[s] = stage_program(plan, timetable, stage, parts.uses);
  }
  const Status valid = verify_plan(plan);
  AGPCS_CHECK(valid.ok(), "{}", valid.message());
  return plan;
}

Trained train(const Graph& graph, const Plan& plan, int steps, const MakeOptions& options,
              Check check) {
  const int ranks = plan.rank_count();
  LoopbackHub hub(ranks);
  std::vector<RankRun> runs(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      runs[static_cast<std::size_t>(rank)] = run_rank(graph, plan, rank, steps, options(), hub);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Trained trained{runs[0].losses, {}, runs[0].evaluation};
  for (const RankRun& run : runs) {
    EXPECT_EQ(run.losses, trained.losses);
    for (const auto& [name, value] : run.values) {
      const bool state = graph.tensor(graph.find_tensor(name)).kind == TensorKind::kState;
      if (state && check == Check::kParameters) continue;
      const auto [at, added] = trained.values.emplace(name, value);
      for (std::size_t i = 0; i < value.size(); ++i) {
        if (std::isnan(at->second[i])) at->second[i] = value[i];
        if (std::isnan(value[i]) || at->second[i] == value[i]) continue;
        ADD_FAILURE() << name << ": element " << i << " is " << value[i] << " and "
                      << at->second[i];
        break;
      }
    }
  }
  return trained;
}

std::vector<float> read_floats(const std::string& path) {
  NpyFile file = NpyFile::open(path).value();
  std::vector<float> values(static_cast<std::size_t>(file.rows()) * file.row_bytes() /
                            sizeof(float));
  EXPECT_TRUE(file.read_rows(0, file.rows(), values.data()).ok());
  return values;
}

std::vector<double> read_doubles(const std::string& path) {
  NpyFile file = NpyFile::open(path).value();
  std::vector<double> values(static_cast<std::size_t>(file.rows()));
  EXPECT_TRUE(file.read_rows(0, file.rows(), values.data()).ok());
  return values;
}

void expect_equal_training(const Trained& got, const Trained& want, double tolerance) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * std::fabs(want.losses[i]))
        << "step " << i;
  }
  ASSERT_EQ(got.values.size(), want.values.size());
  for (const auto& [name, value] : want.values) {
    ASSERT_EQ(got.values.count(name), 1u) << name;
    const std::vector<float>& other = got.values.at(name);
    ASSERT_EQ(other.size(), value.size()) << name;
    double largest = 1e-6, distance = 0;
    for (std::size_t i = 0; i < value.size(); ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(value[i])));
      distance = std::max(distance,
                          std::fabs(static_cast<double>(value[i]) - static_cast<double>(other[i])));
    }
    EXPECT_LE(distance, tolerance * largest) << name;
  }
}

}  // namespace agpcs::testing
