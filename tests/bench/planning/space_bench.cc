// SPDX-License-Identifier: Apache-2.0
// What each dimension of the space of plans is worth: models planned with all of them and without
// one. Run it in the root of the repository.
//
//     space_bench DIMENSION                  all rows of a dimension: state, gradients, parameters,
//                                            schedules, zero-bubble, interleaved, segments,
//                                            offload or activations
//     space_bench DIMENSION MODEL CLUSTER    one row: state "gpt-1.3b" "v100x8"
//     space_bench all MODEL CLUSTER          one row: with all dimensions, without each of them in
//                                            turn, and without all
//
// * state: GPTs that hardly fit, in fp16 with Adam.
// * gradients: most of these, and others with fewer devices or longer sequences; without it, state
//   is still divided.
// * schedules: slow links between stages and unequal stages.
// * offload: GPTs for which there are few devices. There and with all dimensions, each device has a
//   PCIe x16 link to its host, which has 256 GB: of the generation and with the part of its
//   bandwidth that the catalog has (3.0 of P100 and V100, 4.0 of the others).
// * activations: likewise, with longer sequences, too; without it, the state may be in hosts.
// * interleaved: few micro-batches, over fast and over slow links.
#include "frontend/cluster/catalog/catalog.h"
#include "frontend/cluster/file.h"
#include "ir/base/check.h"
#include "planner/plan_problem.h"
#include "planner/refine/dqn.h"
#include "tests/bench/planning/chain.h"
#include "tests/bench/planning/gpt.h"
#include "tests/bench/planning/uses.h"
#include "tests/support/builders.h"

#include <agpcs/plan.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

struct Model {
  bench::GptSize size;
  std::int64_t batch = 0;
};

constexpr std::string_view kChain = "chain-26";
constexpr std::int64_t kChainBatch = 1024;

/// The shapes of GPT-3 (Brown et al., 2020, table 2.1), sequences of 1,024 or 2,048 tokens, and of
/// BERT (Devlin et al., 2019), sequences of 128 and 512.
const std::map<std::string_view, Model>& models() {
  static const std::map<std::string_view, Model> all = {
      {"gpt-1.3b", {{24, 2048, 1024, 50257, 4}, 256}},
      {"gpt-2.7b", {{32, 2560, 1024, 50257, 4}, 256}},
      {"gpt-6.7b", {{32, 4096, 1024, 50257, 4}, 256}},
      {"gpt-6.7b-of-32", {{32, 4096, 1024, 50257, 4}, 32}},
      {"gpt-6.7b-of-8", {{32, 4096, 1024, 50257, 4}, 8}},
      {"gpt-1.3b-2k", {{24, 2048, 2048, 50257, 4}, 128}},
      {"gpt-2.7b-2k", {{32, 2560, 2048, 50257, 4}, 128}},
      {"gpt-350m-8k", {{24, 1024, 8192, 50257, 4, false}, 32}},
      {"gpt-1.3b-8k", {{24, 2048, 8192, 50257, 4, false}, 32}},
      {"bert-base", {{12, 768, 128, 30522, 4}, 512}},
      {"bert-large", {{24, 1024, 512, 30522, 4}, 256}},
  };
  return all;
}

/// `hosts` hosts of one device each.
std::string hosts_of_one(int hosts, std::string_view kind, std::string_view nic) {
  std::string text;
  for (int host = 0; host < hosts; ++host) {
    text += fmt::format("host h{} {} 1 nic={} nic-latency=30e-6\n", host, kind, nic);
  }
  return text;
}

constexpr std::string_view kKinds =
    "kind a100-40 memory=40e9 bandwidth=1555e9 fp32=19.5e12 fp16=312e12\n"
    "kind v100-16 memory=16e9 bandwidth=900e9 fp32=15.7e12 fp16=125e12\n"
    "kind rtx3090 memory=24e9 bandwidth=936e9 fp32=35.6e12 fp16=142e12\n";

Cluster cluster_named(std::string_view name, const Graph& graph) {
  const std::map<std::string_view, std::string> hosts = {
      {"v100x8", "host h0 v100-16 8 bandwidth=150e9 latency=3e-6 nic=12.5e9\n"},
      {"v100x2", "host h0 v100-16 2 bandwidth=150e9 latency=3e-6 nic=12.5e9\n"},
      {"v100x4", "host h0 v100-16 4 bandwidth=150e9 latency=3e-6 nic=12.5e9\n"},
      {"rtx3090x1", "host h0 rtx3090 1 nic=12.5e9\n"},
      {"a100x16",
       "host h0 a100-40 8 bandwidth=250e9 latency=2e-6 nic=25e9\n"
       "host h1 a100-40 8 bandwidth=250e9 latency=2e-6 nic=25e9\n"},
      {"a100x2x4-10gbit",
       "host h0 a100-40 2 bandwidth=250e9 latency=2e-6 nic=1.25e9 nic-latency=30e-6\n"
       "host h1 a100-40 2 bandwidth=250e9 latency=2e-6 nic=1.25e9 nic-latency=30e-6\n"
       "host h2 a100-40 2 bandwidth=250e9 latency=2e-6 nic=1.25e9 nic-latency=30e-6\n"
       "host h3 a100-40 2 bandwidth=250e9 latency=2e-6 nic=1.25e9 nic-latency=30e-6\n"},
      {"a100x1x8-10gbit", hosts_of_one(8, "a100-40", "1.25e9")},
      {"v100x1x8-1gbit", hosts_of_one(8, "v100-16", "0.125e9")},
      {"four-kinds-10gbit",
       "host h0 a100-40 1 nic=1.25e9 nic-latency=30e-6\n"
       "host h1 v100-16 1 nic=1.25e9 nic-latency=30e-6\n"
       "host h2 rtx3090 1 nic=1.25e9 nic-latency=30e-6\n"
       "host h3 v100-16 1 nic=1.25e9 nic-latency=30e-6\n"},
  };
  if (name == "chain-8") return bench::chain_cluster(2, 4, 6e9, graph);
  if (name == "chain-32") return bench::chain_cluster(8, 4, 6e9, graph);
  if (name == "chain-1x8-1gbit") return bench::chain_cluster(8, 1, 0.125e9, graph);
  const auto found = hosts.find(name);
  if (found != hosts.end()) return testing::cluster_of(std::string(kKinds) + found->second);
  Result<ClusterFile> file = read_cluster(fmt::format("samples/clusters/{}.yaml", name));
  AGPCS_CHECK(file.ok(), "{}", file.status().message());
  return std::move(file->cluster);
}

struct Row {
  std::optional<double> seconds;
  double bound = 0, processor = 0;
  std::string uses;
};

void give_links_to_hosts(Cluster& cluster) {
  for (DeviceKind& kind : cluster.kinds) {
    const bool old = kind.name.starts_with("p100") || kind.name.starts_with("v100");
    const std::string_view pcie = old ? "pcie3x16" : "pcie4x16";
    const NetworkKind* const link = catalog().find_network(pcie);
    kind.host_link = {std::string(pcie), link->bandwidth * link->efficiency, link->latency};
  }
  for (Host& host : cluster.hosts) host.memory_bytes = 256'000'000'000;
}

/// The space of plans.
struct Space {
  ProblemOptions options;
  bool interleave = false;
  bool has_links = false;  ///< between devices and the memory of hosts
};

Row plan(std::string_view model, std::string_view cluster, const Space& space) {
  Graph graph = model == kChain ? bench::chain_of_layers() : bench::gpt(models().at(model).size);
  Cluster devices = cluster_named(cluster, graph);
  if (space.has_links) give_links_to_hosts(devices);
  Training training;
  training.batch = model == kChain ? kChainBatch : models().at(model).batch;
  training.precision = Precision::kFp16;
  training.optimizer.kind = OptimizerKind::kAdam;
  auto problem = Problem::make(std::move(graph), std::move(devices), training, space.options);
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  const auto refiner = make_dqn_refiner(shipped_policy());
  PlanOptions plan_options;
  plan_options.refiner = refiner.get();
  plan_options.threads = 1;
  plan_options.interleave = space.interleave;
  const std::clock_t begin = std::clock();
  const Result<Planned> planned = plan_problem(**problem, plan_options);
  Row row;
  row.processor = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  if (!planned.ok()) {
    AGPCS_CHECK(planned.status().code() == StatusCode::kInfeasible, "{}",
                planned.status().message());
    return row;
  }
  row.seconds = planned->best.estimate.step_seconds;
  row.bound = planned->bound->any.seconds;
  row.uses = bench::uses(planned->best.strategy);
  return row;
}

struct Case {
  std::string_view dimension, model, cluster;
};

constexpr Case kCases[] = {
    {"state", "gpt-1.3b", "v100x4-rtx3090x4"},
    {"state", "gpt-1.3b", "mixed-32"},
    {"state", "gpt-1.3b", "v100x8"},
    {"state", "gpt-1.3b", "a100x16"},
    {"state", "gpt-2.7b", "v100x4-rtx3090x4"},
    {"state", "gpt-2.7b", "mixed-32"},
    {"state", "gpt-2.7b", "v100x8"},
    {"state", "gpt-2.7b", "a100x16"},
    {"state", "gpt-6.7b", "v100x4-rtx3090x4"},
    {"state", "gpt-6.7b", "mixed-32"},
    {"state", "gpt-6.7b", "v100x8"},
    {"state", "gpt-6.7b", "a100x16"},
    {"gradients", "gpt-1.3b", "v100x4-rtx3090x4"},
    {"gradients", "gpt-1.3b", "v100x8"},
    {"gradients", "gpt-2.7b", "v100x4-rtx3090x4"},
    {"gradients", "gpt-2.7b", "v100x8"},
    {"gradients", "gpt-2.7b", "a100x16"},
    {"gradients", "gpt-6.7b", "v100x4-rtx3090x4"},
    {"gradients", "gpt-6.7b", "mixed-32"},
    {"gradients", "gpt-6.7b", "v100x8"},
    {"gradients", "gpt-6.7b", "a100x16"},
    {"gradients", "gpt-1.3b", "v100x2"},
    {"gradients", "gpt-1.3b", "v100x4"},
    {"gradients", "gpt-2.7b", "v100x4"},
    {"gradients", "gpt-2.7b-2k", "v100x8"},
    {"gradients", "gpt-350m-8k", "v100x2"},
    {"gradients", "gpt-1.3b-8k", "v100x4"},
    {"gradients", "gpt-1.3b-8k", "v100x8"},
    {"parameters", "gpt-1.3b", "v100x2"},
    {"parameters", "gpt-2.7b", "v100x4"},
    {"parameters", "gpt-6.7b", "v100x8"},
    {"parameters", "gpt-6.7b", "v100x4-rtx3090x4"},
    {"parameters", "gpt-6.7b", "a100x16"},
    {"parameters", "gpt-2.7b-2k", "v100x8"},
    {"schedules", "chain-26", "chain-8"},
    {"schedules", "chain-26", "chain-32"},
    {"schedules", "chain-26", "chain-1x8-1gbit"},
    {"schedules", "gpt-1.3b", "a100x2x4-10gbit"},
    {"schedules", "gpt-6.7b", "a100x1x8-10gbit"},
    {"schedules", "gpt-1.3b", "v100x1x8-1gbit"},
    {"schedules", "bert-large", "v100x1x8-1gbit"},
    {"schedules", "bert-base", "v100x4-rtx3090x4"},
    {"schedules", "gpt-1.3b", "mixed-32"},
    {"schedules", "gpt-2.7b", "v100x4-rtx3090x4"},
    {"schedules", "gpt-1.3b", "four-kinds-10gbit"},
    {"zero-bubble", "chain-26", "chain-8"},
    {"zero-bubble", "chain-26", "chain-32"},
    {"zero-bubble", "chain-26", "chain-1x8-1gbit"},
    {"zero-bubble", "gpt-1.3b", "a100x2x4-10gbit"},
    {"zero-bubble", "gpt-6.7b", "a100x1x8-10gbit"},
    {"zero-bubble", "gpt-1.3b", "v100x1x8-1gbit"},
    {"zero-bubble", "bert-large", "v100x1x8-1gbit"},
    {"zero-bubble", "bert-base", "v100x4-rtx3090x4"},
    {"zero-bubble", "gpt-1.3b", "mixed-32"},
    {"zero-bubble", "gpt-2.7b", "v100x4-rtx3090x4"},
    {"zero-bubble", "gpt-1.3b", "four-kinds-10gbit"},
    {"interleaved", "gpt-6.7b-of-8", "v100x8"},
    {"interleaved", "gpt-6.7b-of-32", "v100x8"},
    {"interleaved", "gpt-6.7b", "v100x8"},
    {"interleaved", "gpt-6.7b-of-32", "a100x1x8-10gbit"},
    {"interleaved", "gpt-6.7b-of-32", "v100x4-rtx3090x4"},
    {"segments", "bert-base", "v100x4-rtx3090x4"},
    {"segments", "bert-large", "v100x1x8-1gbit"},
    {"segments", "gpt-1.3b", "v100x4-rtx3090x4"},
    {"segments", "gpt-1.3b", "mixed-32"},
    {"segments", "gpt-1.3b-2k", "v100x8"},
    {"segments", "gpt-1.3b-2k", "v100x4-rtx3090x4"},
    {"segments", "gpt-1.3b-2k", "mixed-32"},
    {"segments", "gpt-1.3b-2k", "a100x16"},
    {"segments", "gpt-1.3b-2k", "four-kinds-10gbit"},
    {"segments", "gpt-2.7b-2k", "v100x8"},
    {"segments", "gpt-2.7b-2k", "v100x4-rtx3090x4"},
    {"segments", "gpt-2.7b-2k", "mixed-32"},
    {"segments", "gpt-2.7b-2k", "a100x16"},
    {"segments", "gpt-350m-8k", "v100x4-rtx3090x4"},
    {"segments", "gpt-350m-8k", "v100x8"},
    {"segments", "gpt-350m-8k", "four-kinds-10gbit"},
    {"segments", "gpt-350m-8k", "v100x2"},
    {"segments", "gpt-350m-8k", "rtx3090x1"},
    {"segments", "gpt-1.3b-8k", "v100x4"},
    {"segments", "gpt-1.3b-8k", "v100x4-rtx3090x4"},
    {"segments", "gpt-1.3b-8k", "v100x8"},
    {"segments", "gpt-1.3b-8k", "a100x16"},
    {"segments", "gpt-1.3b-8k", "mixed-32"},
    {"segments", "gpt-6.7b", "a100x1x8-10gbit"},
    {"offload", "gpt-1.3b", "rtx3090x1"},
    {"offload", "gpt-2.7b", "rtx3090x1"},
    {"offload", "gpt-1.3b", "v100x2"},
    {"offload", "gpt-2.7b", "v100x2"},
    {"offload", "gpt-2.7b", "v100x4"},
    {"offload", "gpt-6.7b", "v100x4"},
    {"offload", "gpt-6.7b", "v100x8"},
    {"offload", "gpt-6.7b", "v100x4-rtx3090x4"},
    {"activations", "gpt-1.3b", "rtx3090x1"},
    {"activations", "gpt-1.3b", "v100x2"},
    {"activations", "gpt-1.3b", "v100x8"},
    {"activations", "gpt-2.7b", "v100x4"},
    {"activations", "gpt-1.3b-2k", "v100x8"},
    {"activations", "gpt-2.7b-2k", "v100x8"},
    {"activations", "gpt-350m-8k", "rtx3090x1"},
    {"activations", "gpt-350m-8k", "v100x2"},
    {"activations", "gpt-1.3b-8k", "v100x4"},
    {"activations", "gpt-1.3b-8k", "v100x8"},
};

constexpr std::string_view kDimensions[] = {"state",       "gradients",   "parameters", "schedules",
                                            "zero-bubble", "interleaved", "segments",   "offload",
                                            "activations", "teams"};

/// Leaves a dimension out.
void leave_out(std::string_view dimension, Space& space) {
  ProblemOptions& options = space.options;
  if (dimension == "state") options.most_divided = StateLevel::kWhole;
  if (dimension == "gradients") options.most_divided = StateLevel::kOptimizer;
  if (dimension == "parameters") options.most_divided = StateLevel::kGradients;
  if (dimension == "schedules") options.choose_in_flight = options.part_backward = false;
  if (dimension == "zero-bubble") options.part_backward = false;
  if (dimension == "interleaved") space.interleave = false;
  if (dimension == "segments") options.choose_segments = false;
  if (dimension == "offload") options.offload = options.offload_activations = false;
  if (dimension == "activations") options.offload_activations = false;
  if (dimension == "teams") options.choose_teams = false;
}

std::string seconds_of(const Row& row) {
  return row.seconds ? fmt::format("{:.4f}", *row.seconds) : std::string("does not fit");
}

void print_row(const Case& of) {
  Space space;
  space.interleave = of.dimension == "interleaved";
  space.has_links = of.dimension == "offload" || of.dimension == "activations";
  const Row whole = plan(of.model, of.cluster, space);
  leave_out(of.dimension, space);
  const Row without = plan(of.model, of.cluster, space);
  const std::string worth = whole.seconds && without.seconds
                                ? fmt::format("{:.3f}", *without.seconds / *whole.seconds)
                                : "";
  fmt::print("| {} | {} | {} | {:.3f} | {} | {} | {} | {} | {:.1f} | {:.1f} |\n", of.model,
             of.cluster, seconds_of(whole), whole.bound, seconds_of(without), worth, whole.uses,
             without.uses, whole.processor, without.processor);
  std::fflush(stdout);
}

/// Prints a row of a model and a cluster: the step with the whole space, and for each dimension the
/// step without it by that with it; last without all.
void print_all(std::string_view model, std::string_view cluster) {
  fmt::print("| model | cluster | step s | bound s | plan | processor s |");
  for (const std::string_view dimension : kDimensions) fmt::print(" without {} |", dimension);
  fmt::print(" without all |\n|");
  for (std::size_t i = 0; i < std::size(kDimensions) + 7; ++i) fmt::print(" --- |");
  fmt::print("\n");
  Space all;
  all.interleave = all.has_links = all.options.choose_teams = true;
  const Row whole = plan(model, cluster, all);
  fmt::print("| {} | {} | {} | {:.3f} | {} | {:.1f} |", model, cluster, seconds_of(whole),
             whole.bound, whole.uses, whole.processor);
  const auto print_without = [&](const Space& space) {
    const Row row = plan(model, cluster, space);
    const bool both = whole.seconds && row.seconds;
    fmt::print(" {} ({:.1f} s) |",
               both ? fmt::format("{:.3f}", *row.seconds / *whole.seconds) : seconds_of(row),
               row.processor);
    std::fflush(stdout);
  };
  std::fflush(stdout);
  Space none = all;
  for (const std::string_view dimension : kDimensions) {
    Space less = all;
    leave_out(dimension, less);
    leave_out(dimension, none);
    print_without(less);
  }
  print_without(none);
  fmt::print("\n");
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  const std::string_view dimension = argc > 1 ? argv[1] : "";
  if (dimension == "all" && argc == 4) {
    agpcs::print_all(argv[2], argv[3]);
    return 0;
  }
  const bool known =
      std::ranges::find(agpcs::kDimensions, dimension) != std::end(agpcs::kDimensions) &&
      dimension != "teams";
  if ((argc != 2 && argc != 4) || !known) {
    std::fputs(
        "space_bench state|gradients|parameters|schedules|zero-bubble|interleaved|segments|offload|"
        "activations [MODEL CLUSTER]\n"
        "space_bench all MODEL CLUSTER\n",
        stderr);
    return 2;
  }
  fmt::print(
      "| model | cluster | step s | bound s | without {} s | without / with | plan | without | "
      "processor s | without: processor s |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
      dimension);
  for (const agpcs::Case& of : agpcs::kCases) {
    if (of.dimension != dimension) continue;
    if (argc == 2 || (of.model == argv[2] && of.cluster == argv[3])) agpcs::print_row(of);
  }
  return 0;
}
