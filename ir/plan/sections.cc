// SPDX-License-Identifier: Apache-2.0
// The sections of a plan's text from its stages to its buckets.
#include "ir/plan/sections.h"

#include "ir/base/all_values.h"
#include "ir/base/diagnostics.h"
#include "ir/plan/choices.h"
#include "ir/plan/flow.h"
#include "ir/plan/lines.h"
#include "ir/plan/text.h"

#include <agpcs/plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

std::vector<std::string> algorithm_names() {
  std::vector<std::string> names;
  for (const AllReduce algorithm : kAllReduces) names.emplace_back(name_of(algorithm));
  names.emplace_back("flow:f0");
  return names;
}

template <typename List>
void read_list(PlanLineReader& in, const char* key, List& list,
               std::optional<List> (*parse)(std::string_view), const char* example) {
  const std::string_view text = in.value(std::string(key));
  if (!in.ok()) return;
  std::optional<List> parsed = parse(text);
  if (!parsed) return in.fail(fmt::format("{} is '{}', not a list such as {}", key, text, example));
  list = std::move(*parsed);
}

CutTensor read_tensor(const PlanLine& line, Diagnostics& diagnostics) {
  PlanLineReader in(line, diagnostics, {"type", "shape", "gradient"});
  CutTensor tensor;
  tensor.name = in.name("a tensor");
  tensor.type = in.type_value("type");
  const std::string_view shape = in.value("shape");
  tensor.batched = false;
  if (in.ok() && shape != "scalar") {
    bool first = true;
    for (const std::string_view part : split_outside_quotes(shape, 'x')) {
      const std::optional<std::int64_t> dim = parse_integer(part);
      if (first && part == "samples") {
        tensor.batched = true;
      } else if (dim) {
        tensor.dims.push_back(*dim);
      } else {
        in.fail(fmt::format("shape is '{}', not a shape such as samplesx512x28x28", shape));
      }
      first = false;
    }
  }
  tensor.gradient = in.yes_no_value("gradient");
  in.finish();
  return tensor;
}

/// Reads "ring" or "flow:f0".
void read_algorithm(PlanLineReader& in, PlanBucket& bucket) {
  constexpr std::string_view kFlow = "flow:f";
  const std::string_view text = in.value("algorithm");
  if (const auto named = all_reduce_named(text)) {
    bucket.algorithm = *named;
  } else if (text.substr(0, kFlow.size()) == kFlow) {
    const auto index = parse_integer(text.substr(kFlow.size()));
    bucket.algorithm = AllReduce::kFlow;
    bucket.flow = static_cast<int>(std::clamp<std::int64_t>(index.value_or(-1), -1, 1 << 30));
    if (bucket.flow < 0) in.fail(fmt::format("'{}' is no flow such as flow:f0", text));
  } else {
    in.fail(fmt::format("unknown algorithm '{}'", text),
            did_you_mean(text, algorithm_names(), "algorithms"));
  }
}

void read_parts(PlanLineReader& in, PlanBucket& bucket) {
  const std::string_view state = in.value("state");
  if (const auto level = dividing_level_named(state)) {
    bucket.state = *level;
  } else if (in.ok()) {
    in.fail(
        fmt::format("state is '{}'", state),
        "state=optimizer, state=gradients, state=parameters, or no state= where every rank keeps "
        "all");
  }
  read_list(in, "parts", bucket.parts, parse_samples, "4096x3,2048");
}

/// Reads `key`=host, which says where `what` lies.
bool read_host(PlanLineReader& in, std::string_view key, std::string_view what) {
  const std::string_view place = in.value(std::string(key));
  if (place == "host") return true;
  in.fail(fmt::format("{} is '{}'", key, place),
          fmt::format("{0}=host, or no {0}= where devices keep {1}", key, what));
  return false;
}

/// Reads what of a stage lies in the memory of hosts.
void read_places(PlanLineReader& in, PlanStage& stage) {
  if (in.next_is("activations-in")) {
    stage.activations_in_host = read_host(in, "activations-in", "activations");
  }
  if (in.next_is("state-in")) {
    stage.state_in_host = read_host(in, "state-in", "the optimizer's state");
  }
}

/// Reads "members=4,2", the numbers of ranks of replicas with unlike bodies.
std::vector<std::int64_t> read_members(PlanLineReader& in, const PlanStage& stage) {
  std::vector<std::int64_t> members;
  read_list(in, "members", members, parse_samples, "4,2");
  if (!in.ok()) return members;
  std::int64_t left = static_cast<std::int64_t>(stage.ranks.size());
  bool fits = members.size() == stage.samples.size() && stage.bodies.size() == members.size() &&
              stage.devices.size() == stage.ranks.size();
  for (const std::int64_t of : members) {
    fits = fits && of >= 1 && of <= left;
    left -= fits ? of : 0;
  }
  if (fits && left == 0) return members;
  in.fail(fmt::format("stage {} has {} ranks, {} devices and {} bodies for {} replicas, of {} "
                      "members",
                      stage.name, stage.ranks.size(), stage.devices.size(), stage.bodies.size(),
                      stage.samples.size(), print_samples(members)),
          "with several bodies, body= and members= have one for each number of samples, and "
          "members are all of the ranks");
  return members;
}

/// Reads "body=t0", or "body=t0,t1 members=4,2", and takes the ranks and devices of the stage apart
/// into teams.
void read_teams(PlanLineReader& in, PlanStage& stage) {
  std::vector<int> bodies = in.references_value("body", 't');
  if (!in.ok()) return;
  stage.body = *std::min_element(bodies.begin(), bodies.end());
  const std::size_t ranks = stage.ranks.size(), replicas = stage.samples.size();
  std::vector<std::int64_t> members;
  if (bodies.size() > 1) {
    stage.bodies = std::move(bodies);
    members = read_members(in, stage);
  } else if (replicas == 0 || ranks % replicas != 0 || stage.devices.size() != ranks) {
    in.fail(fmt::format("stage {} has {} ranks and {} devices for {} replicas", stage.name, ranks,
                        stage.devices.size(), replicas),
            "with body=, each number of samples is that of a team, and all teams have equally many "
            "ranks");
  } else {
    members.assign(replicas, static_cast<std::int64_t>(ranks / replicas));
  }
  if (!in.ok()) return;
  PlanStage teams;
  std::size_t next = 0;
  for (const std::int64_t count : members) {
    const auto end = next + static_cast<std::size_t>(count);
    teams.ranks.push_back(stage.ranks[next]);
    teams.devices.push_back(stage.devices[next]);
    std::vector<int>& further = teams.further_ranks.emplace_back();
    std::vector<std::string>& devices = teams.further_devices.emplace_back();
    for (++next; next < end; ++next) {
      further.push_back(stage.ranks[next]);
      devices.push_back(stage.devices[next]);
    }
  }
  stage.ranks = std::move(teams.ranks);
  stage.devices = std::move(teams.devices);
  stage.further_ranks = std::move(teams.further_ranks);
  stage.further_devices = std::move(teams.further_devices);
}

}  // namespace

PlanStage read_stage(const PlanLine& line, PlanLines& lines, Diagnostics& diagnostics) {
  PlanLineReader in(line, diagnostics,
                    {"ranks", "devices", "samples", "odd", "body", "members", "recompute",
                     "segments", "activations-in", "state-in", "operators"});
  PlanStage stage;
  stage.name = in.name("a stage");
  read_list(in, "ranks", stage.ranks, parse_ranks, "0-3,6");
  read_list(in, "devices", stage.devices, parse_devices, "host/0-3");
  read_list(in, "samples", stage.samples, parse_samples, "16x4,20");
  if (in.next_is("odd")) stage.odd = static_cast<int>(in.integer_value("odd"));
  if (in.next_is("body")) read_teams(in, stage);
  stage.recompute = in.yes_no_value("recompute");
  if (in.next_is("segments")) {
    read_list(in, "segments", stage.segments, parse_samples, "40x11,52");
  }
  read_places(in, stage);
  const std::int64_t operators = in.integer_value("operators");
  in.finish();
  std::int64_t found = 0;
  while (const PlanLine* item = lines.next_item("operators")) {
    PlanLineReader reader(*item, diagnostics, {"count"});
    PlanStage::Run run;
    run.first = reader.name("an operator");
    if (reader.word("'..'") != "..") reader.fail("not '..' between first and last operator");
    run.last = reader.name("an operator");
    run.count = reader.integer_value("count");
    reader.finish();
    if (run.count < 0 || run.count > std::numeric_limits<std::int32_t>::max()) {
      reader.fail(fmt::format("count is {}", run.count));
    }
    if (diagnostics.ok()) found += run.count;
    stage.operators.push_back(std::move(run));
  }
  check_total(line, diagnostics, "operators", operators, found);
  return stage;
}

Cut read_cut(const PlanLine& line, PlanLines& lines, Diagnostics& diagnostics) {
  PlanLineReader in(line, diagnostics, {"from", "to", "tensors"});
  Cut cut;
  cut.name = in.name("a cut");
  cut.from = in.reference_value("from", 's');
  cut.to = in.reference_value("to", 's');
  const std::int64_t tensors = in.integer_value("tensors");
  in.finish();
  while (const PlanLine* item = lines.next_item("tensor")) {
    cut.tensors.push_back(read_tensor(*item, diagnostics));
  }
  check_total(line, diagnostics, "tensors", tensors, static_cast<std::int64_t>(cut.tensors.size()));
  return cut;
}

PlanFlow read_flow(const PlanLine& line, const std::vector<PlanStage>& stages, PlanLines& lines,
                   Diagnostics& diagnostics) {
  PlanLineReader in(line, diagnostics, {"stage", "sub-chunks", "order", "steps", "messages"});
  PlanFlow flow;
  flow.name = in.name("a flow");
  flow.stage = in.reference_value("stage", 's');
  flow.sub_chunks = read_sub_chunks(in);
  if (in.next_is("order")) flow.order = read_flow_order(in);
  const std::int64_t steps = in.integer_value("steps");
  const std::int64_t messages = in.integer_value("messages");
  in.finish();
  if (in.ok() && flow.stage >= static_cast<int>(stages.size())) {
    in.fail(fmt::format("stage s{} of {} stages", flow.stage, stages.size()));
  }
  while (const PlanLine* item = lines.next_item("")) {
    if (!in.ok()) continue;  // the meaning of its lines is unknown
    flow.steps.push_back(parse_flow_step(*item, diagnostics, flow.sub_chunks,
                                         stages[static_cast<std::size_t>(flow.stage)]));
  }
  check_total(line, diagnostics, "steps", steps, static_cast<std::int64_t>(flow.steps.size()));
  check_total(line, diagnostics, "messages", messages, flow.message_count());
  return flow;
}

PlanBucket read_bucket(const PlanLine& line, PlanLines& lines, Diagnostics& diagnostics) {
  PlanLineReader in(
      line, diagnostics,
      {"stage", "shared-with", "algorithm", "type", "state", "parts", "gradients", "elements"});
  PlanBucket bucket;
  bucket.name = in.name("a bucket");
  bucket.stage = in.reference_value("stage", 's');
  if (in.next_is("shared-with")) bucket.shared_with = in.references_value("shared-with", 's');
  read_algorithm(in, bucket);
  bucket.type = in.type_value("type");
  if (in.next_is("state")) read_parts(in, bucket);
  const std::int64_t gradients = in.integer_value("gradients");
  const std::int64_t elements = in.integer_value("elements");
  in.finish();
  while (const PlanLine* item = lines.next_item("gradient")) {
    PlanLineReader reader(*item, diagnostics, {"elements"});
    BucketMember member;
    member.parameter = reader.name("a parameter");
    member.elements = reader.integer_value("elements");
    if (member.elements < 1 || member.elements > (std::int64_t{1} << 40)) {
      reader.fail(fmt::format("elements is {}", member.elements));
    }
    reader.finish();
    bucket.members.push_back(std::move(member));
  }
  check_total(line, diagnostics, "gradients", gradients,
              static_cast<std::int64_t>(bucket.members.size()));
  if (diagnostics.ok()) check_total(line, diagnostics, "elements", elements, bucket.elements());
  return bucket;
}

}  // namespace agpcs
