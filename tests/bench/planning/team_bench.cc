// SPDX-License-Identifier: Apache-2.0
// How long it takes to choose what the teams of a stage do, and what a micro-batch takes then.
//
//     team_bench MODEL CLUSTER BATCH MICRO_BATCHES [PRECISION]
//
// For 1, 2, 4 and 8 stages of equally many blocks, and teams of the first 2, 4 and 8 devices: the
// first stage that has no embedding (the only one of one). A second choice, with other samples,
// finds its costs known.
#include "ir/base/check.h"
#include "planner/problem/shares.h"
#include "planner/team/stage_teams.h"
#include "tools/compile/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }  // of the processor

std::vector<OpId> middle_stage(const Problem& problem, int stages) {
  std::vector<OpId> ops;
  const int blocks = problem.blocks.size();
  const int first = stages == 1 ? 0 : blocks / stages;
  for (int block = first; block < first + blocks / stages; ++block) {
    const std::vector<OpId>& own = problem.blocks.blocks[static_cast<std::size_t>(block)].ops;
    ops.insert(ops.end(), own.begin(), own.end());
  }
  std::sort(ops.begin(), ops.end());
  return ops;
}

void print_row(const Problem& problem, StageTeams& teams, int stages, int members,
               std::int64_t micro_batches, bool spare_memory) {
  TeamOrder order{middle_stage(problem, stages), {{}}, micro_batches, {}, {}, spare_memory};
  for (DeviceId id = 0; id < members; ++id) order.teams[0].push_back(id);
  double alone = 0;
  const std::int64_t samples = largest_micro_batch(problem, micro_batches);
  for (const OpId op : order.ops) {
    alone += problem.costs.seconds(problem.cluster.devices[0].kind, op, samples).sum();
  }
  const double begin = now();
  const std::optional<FormedStage> made = teams.make(order);
  const double first = now() - begin;
  AGPCS_CHECK(made.has_value(), "no team of {}", members);
  const double seconds = teams.seconds(order, *made);
  order.micro_batches *= 2;
  const double again = now();
  if (micro_batches * 2 <= problem.training.batch) AGPCS_CHECK(teams.make(order), "none");
  fmt::print("| {} | {} | {} | {} | {:.4g} | {:.4g} | {:.2f} | {:.3f} | {:.3f} | {} |\n", stages,
             order.ops.size(), members, spare_memory ? "yes" : "no", alone, seconds,
             alone / seconds, first, now() - again, made->exact ? "yes" : "no");
  std::fflush(stdout);
}

int run(const std::vector<std::string>& words) {
  CompileOptions options;
  options.model = words[1];
  options.cluster = words[2];
  options.batch = std::stoll(words[3]);
  if (words.size() > 5) options.precision = words[5];
  Result<TrainedModel> read = read_trained_model(options);
  AGPCS_CHECK(read.ok(), "{}", read.status().message());
  auto problem = Problem::make(std::move(read->graph), std::move(read->cluster), read->training);
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  fmt::print(
      "| stages | operators | members | spares memory | alone s | team s | faster | choice s | "
      "again s | proven |\n|{}\n",
      " --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
  for (const int stages : {1, 2, 4, 8}) {
    StageTeams teams(**problem);
    for (const int members : {2, 4, 8}) {
      if (members > (*problem)->cluster.device_count()) continue;
      for (const bool spare : {false, true}) {
        print_row(**problem, teams, stages, members, std::stoll(words[4]), spare);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  if (words.size() < 5) {
    std::fputs("usage: team_bench MODEL CLUSTER BATCH MICRO_BATCHES [PRECISION]\n", stderr);
    return 2;
  }
  return agpcs::run(words);
}
