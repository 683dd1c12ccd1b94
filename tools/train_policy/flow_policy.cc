// SPDX-License-Identifier: Apache-2.0
#include "tools/train_policy/flow_policy.h"

#include "ir/base/check.h"
#include "ir/base/rng.h"
#include "planner/learn/dqn_plugin.h"
#include "tools/common/interrupt.h"
#include "tools/train_policy/policy.h"

#include <fmt/format.h>

#include <memory>
#include <ostream>
#include <utility>

namespace agpcs {
namespace {

class FlowPolicyTraining {
 public:
  FlowPolicyTraining(const TrainFlowPolicyOptions& options, const std::atomic<bool>& interrupted,
                     Console console)
      : options_(options),
        interrupted_(interrupted),
        console_(console),
        on_terminal_(is_terminal(2)),
        progress_(console.err, on_terminal_),
        held_aside_(validation_topologies()) {}

  Result<TrainedFlowPolicy> run() {
    std::optional<FlowPolicy> from;
    if (!options_.from.empty()) {
      AGPCS_TRY(const std::string text, read_input(options_.from, {"policy"}));
      AGPCS_TRY(from, parse_flow_policy(text, options_.from));
    }
    AGPCS_TRY(trainer_,
              load_flow_trainer(options_.training, from ? &*from : nullptr, options_.seed));
    validate();
    while (iteration_ < options_.iterations && !interrupted_) {
      turn(FlowLevel::kTrees, options_.tree_steps);
      turn(FlowLevel::kWorkloads, options_.workload_steps);
      ++iteration_;
      if (iteration_ % options_.validate_every != 0 && iteration_ < options_.iterations) continue;
      validate();
      if (!options_.log.empty()) {
        AGPCS_RETURN_IF_ERROR(write_file(options_.log, log_, console_));
      }
    }
    progress_.done();
    TrainedFlowPolicy result = {std::move(*best_), std::move(log_),
                                iteration_ < options_.iterations};
    result.policy.made_by = options_.made_by;
    if (result.interrupted) {
      result.policy.made_by += fmt::format(" (interrupted after {} iterations)", iteration_);
    }
    return result;
  }

 private:
  /// Runs lines 4 to 7 or 8 to 11 of Algorithm 1.
  void turn(FlowLevel level, std::int64_t steps) {
    const char* const name = level == FlowLevel::kTrees ? "trees" : "workloads";
    for (std::int64_t step = 0; step < steps && !interrupted_; ++step, ++drawn_) {
      const Topology topology = draw_training_topology(drawn_, options_.seed);
      Rng rng = Rng(options_.seed).fork(fmt::format("forest {}", drawn_));
      const int sub_chunks = 1 + static_cast<int>(rng.below(2));
      const bool overlapped = rng.below(4) == 0;
      const ForestOptions trees = {ForestKind::kBalanced, sub_chunks, rng.next()};
      const FlowForest forest = make_forest(topology, trees, overlapped);
      const FlowTrainingLog log = trainer_->train(
          topology, forest, overlapped ? FlowPhases::kOverlapped : FlowPhases::kGather, level, rng);
      log_ +=
          fmt::format("{},{},\"{}\",{},{},{:.4g},{:.4g},{:.4g},{:.4g},{:.4g},{:.4g}\n", iteration_,
                      name, topology.name, sub_chunks, overlapped ? "overlapped" : "gather",
                      log.rounds, log.bound, log.returns, log.selected, log.loss, log.entropy);
      if (!on_terminal_) continue;
      progress_.step(fmt::format("iteration {}/{}: {}, {}: {:.1f} rounds, bound {:.0f}", iteration_,
                                 options_.iterations, name, topology.name, log.rounds, log.bound));
    }
  }

  /// Keeps the policy if it is the best so far.
  void validate() {
    const double mean = validate_flow_policy(trainer_->averaged(), held_aside_);
    if (!best_ || mean < best_mean_) {
      best_mean_ = mean;
      best_ = trainer_->averaged();
    }
    progress_.done();
    console_.err << fmt::format(
        "iteration {}/{}: rounds over the bound held aside {:.5f}, best {:.5f}\n", iteration_,
        options_.iterations, mean, best_mean_);
  }

  const TrainFlowPolicyOptions& options_;
  const std::atomic<bool>& interrupted_;
  Console console_;
  bool on_terminal_;
  Progress progress_;
  std::vector<Topology> held_aside_;
  std::unique_ptr<FlowTrainer> trainer_;
  std::string log_ =
      "iteration,level,topology,sub_chunks,phases,rounds,bound,return,selected,loss,"
      "entropy\n";
  std::int64_t iteration_ = 0, drawn_ = 0;
  std::optional<FlowPolicy> best_;
  double best_mean_ = 0;
};

}  // namespace

Topology draw_training_topology(std::int64_t index, std::uint64_t seed) {
  Rng rng = Rng(seed).fork(fmt::format("topology {}", index));
  const auto pick = [&](std::uint64_t least, std::uint64_t most) {
    return least + rng.below(most - least + 1);
  };
  std::string spec;
  switch (index % 3) {
    case 0:
      spec = rng.below(4) == 0 ? "bcube:2,2" : fmt::format("bcube:{},1", pick(3, 4));
      break;
    case 1:
      spec = fmt::format("dcell:{},1", pick(2, 3));
      break;
    default:
      spec = fmt::format("jellyfish:{},{}", 2 * pick(4, 8), pick(3, 4));
  }
  spec += fmt::format(",seed={}", rng.next() % 1'000'000);
  const std::uint64_t change = rng.below(3);
  Result<Topology> topology = make_topology(spec + (change == 1 ? ",fail=0.1" : ""));
  if (!topology.ok()) topology = make_topology(spec);  // every cable is needed
  AGPCS_CHECK(topology.ok(), "{}", topology.status().message());
  for (std::size_t l = 0; change == 2 && l + 1 < topology->links.size(); l += 2) {
    topology->links[l].capacity = topology->links[l + 1].capacity =
        1 + static_cast<std::int64_t>(rng.below(3));
  }
  return std::move(*topology);
}

std::vector<Topology> validation_topologies() {
  std::vector<Topology> topologies;
  for (const char* spec :
       {"bcube:5,1", "bcube:3,2", "dcell:4,1", "dcell:5,1,fail=0.05,seed=901",
        "jellyfish:18,4,seed=902", "jellyfish:24,3,seed=903", "jellyfish:20,4,fail=0.1,seed=904"}) {
    topologies.push_back(*make_topology(spec));
  }
  return topologies;
}

double validate_flow_policy(const FlowPolicy& policy, const std::vector<Topology>& topologies) {
  double sum = 0, count = 0;
  for (const Topology& topology : topologies) {
    for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
      const ForestOptions trees = {ForestKind::kBalanced, seed % 2 == 0 ? 1 : 2, seed};
      const FlowForest forest = make_forest(topology, trees, false);
      const FlowSchedule schedule = play_policy(topology, forest, FlowPhases::kGather, policy);
      sum += static_cast<double>(schedule.sub_rounds()) / heaviest_link(topology, forest, true);
      ++count;
    }
  }
  return sum / count;
}

Result<TrainedFlowPolicy> train_flow_policy(const TrainFlowPolicyOptions& options,
                                            const std::atomic<bool>& interrupted, Console console) {
  return FlowPolicyTraining(options, interrupted, console).run();
}

int train_flow_policy_command(const std::vector<std::string>& args, Console console) {
  TrainFlowPolicyOptions options;
  if (const auto code = parse_train_flow_policy(args, console, options)) return *code;
  const InterruptFlag interrupt;
  const Result<TrainedFlowPolicy> trained = train_flow_policy(options, interrupt.flag(), console);
  if (!trained.ok()) return finish(trained.status(), kTrainPolicyCommand, console);
  Status status = write_file(options.output, print_flow_policy(trained->policy), console);
  if (status.ok() && !options.log.empty()) {
    status = write_file(options.log, trained->log, console);
  }
  if (!status.ok()) return finish(status, kTrainPolicyCommand, console);
  console.err << fmt::format("wrote {}\n", options.output);
  return trained->interrupted ? 130 : 0;  // the exit code of kCancelled
}

}  // namespace agpcs
