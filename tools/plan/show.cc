// SPDX-License-Identifier: Apache-2.0
#include "ir/base/units.h"
#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "ir/plan/text.h"
#include "tools/common/joined_rows.h"
#include "tools/common/words/plan_words.h"
#include "tools/plan/team/plan_teams.h"
#include "tools/plan/views.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Returns the expected figure of that name as the plan spells it; "-" if there is none.
std::string spell_expected(const Plan& plan, std::string_view name) {
  const Expectation* e = find_expectation(plan, name);
  return e == nullptr ? "-" : figure(e->value, e->unit);
}

/// Returns the part of a step that a device computes: "87%".
std::string busy(const Plan& plan, const std::string& device) {
  const Expectation* e = find_expectation(plan, "utilization " + device);
  return e == nullptr ? "-" : fmt::format("{:.0f}%", 100 * e->value);
}

/// Returns "activations of 5 segments lie in the memory of hosts, those of 40 of 120 operators on
/// devices".
std::string host_activations_text(const PlanStage& stage) {
  if (stage.segments.empty()) return "activations lie in the memory of hosts";
  const std::int64_t all = operator_count(stage);
  const std::int64_t moved =
      std::accumulate(stage.segments.begin(), stage.segments.end(), std::int64_t{0});
  std::string text = fmt::format("activations of {} lie in the memory of hosts",
                                 plural(std::ssize(stage.segments), "segment"));
  if (moved == all) return text;
  return text + fmt::format(", those of {} of {} on devices", all - moved, plural(all, "operator"));
}

/// Returns "1024", or "1024 or 1023".
std::string micro_batch_sizes(const Plan& plan) {
  const std::int64_t larger = plan.micro_batch_size(0);
  const std::int64_t smaller = plan.micro_batch_size(plan.micro_batches - 1);
  return larger == smaller ? fmt::to_string(larger) : fmt::format("{} or {}", larger, smaller);
}

std::string training_line(const Plan& plan) {
  const Training& t = plan.training;
  std::string text =
      fmt::format("batch {} in {} of {}, {}, {}; loss {}", t.batch,
                  plural(plan.micro_batches, "micro-batch", "es"), micro_batch_sizes(plan),
                  name_of(plan.schedule), name_of(t.precision), name_of(t.loss.kind));
  for (std::size_t i = 0; i < t.loss.outputs.size(); ++i) {
    text += fmt::format("{} {}", i == 0 ? " of" : ",", t.loss.outputs[i].first);
  }
  if (t.loss.ignore_index) text += fmt::format(", label {} does not count", *t.loss.ignore_index);
  if (t.loss.label_smoothing != 0) text += fmt::format(", smoothing {}", t.loss.label_smoothing);
  if (!t.loss.next_token.empty()) text += fmt::format(", next token of {}", t.loss.next_token);
  text += fmt::format("; {} with learning rate {}", name_of(t.optimizer.kind),
                      t.optimizer.learning_rate);
  if (t.optimizer.momentum != 0) {
    text += fmt::format(", {}momentum {}", t.optimizer.nesterov ? "Nesterov's " : "",
                        t.optimizer.momentum);
  }
  if (t.optimizer.clips()) text += fmt::format(", norm at most {}", t.optimizer.max_norm);
  if (t.attention != AttentionForm::kSteps) text += "; attention is fused";
  if (t.wire_type) text += fmt::format("; gradients travel in {}", name_of(*t.wire_type));
  return text;
}

std::string header(const Plan& plan) {
  std::string text = fmt::format("{} on {}: {} over {}\n", plan.model, plan.cluster,
                                 plan_kind(plan), devices_in_use(plan));
  const MadeBy& by = plan.made_by;
  text += fmt::format("  made by       AGPCS {}, seeder {}, refiner {} ({}{}), seed {}\n",
                      by.version, by.seeder, by.refiner, plural(by.evaluations, "evaluation"),
                      by.interrupted ? ", interrupted" : "", by.seed);
  text += fmt::format("  training      {}\n", training_line(plan));
  for (const auto& [name, value] : plan.dims) {
    text += fmt::format("  dim           {} = {}\n", name, value);
  }
  for (const std::string& name : plan.frozen) {
    text += fmt::format("  frozen        {}\n", name);
  }
  for (const std::string& name : plan.trained) {
    text += fmt::format("  trained       {}\n", name);
  }
  for (const std::string& type : plan.fused) {
    text += fmt::format("  fused         {}\n", type);
  }
  if (plan.expect.empty()) return text;
  return text + fmt::format("  expected      {} a step, {}\n", spell_expected(plan, "step"),
                            spell_expected(plan, "throughput"));
}

struct Passes {
  Opcode opcode;
  int first, last;
};

/// Returns the stage's passes as runs of one kind over ascending micro-batches.
std::vector<Passes> runs_of(const Program& program) {
  std::vector<Passes> runs;
  for (const Instruction& instruction : program.instructions) {
    const InstructionId& id = instruction.id;
    if (stream_of(id.opcode) != StreamKind::kCompute || id.micro_batch < 0) continue;
    if (!runs.empty() && runs.back().opcode == id.opcode &&
        runs.back().last + 1 == id.micro_batch) {
      ++runs.back().last;
    } else {
      runs.push_back({id.opcode, id.micro_batch, id.micro_batch});
    }
  }
  return runs;
}

std::string range_text(const Passes& run) {
  return run.first == run.last ? fmt::format("{} {}", name_of(run.opcode), run.first)
                               : fmt::format("{} {}-{}", name_of(run.opcode), run.first, run.last);
}

/// Returns "forward 0-2, then backward 0-4 and forward 3-7 in turns, backward 5-7".
std::string passes_text(const Program& program) {
  const std::vector<Passes> runs = runs_of(program);
  std::string text;
  for (std::size_t i = 0; i < runs.size();) {
    std::size_t end = i;  // end of a sequence of single passes, which alternate
    while (end < runs.size() && runs[end].first == runs[end].last) ++end;
    std::string part = range_text(runs[i]);
    std::size_t taken = 1;
    if (end - i >= 4) {
      taken = (end - i) / 2 * 2;
      const Passes a = {runs[i].opcode, runs[i].first, runs[i + taken - 2].last};
      const Passes b = {runs[i + 1].opcode, runs[i + 1].first, runs[i + taken - 1].last};
      part = fmt::format("{} and {} in turns", range_text(a), range_text(b));
    }
    text += (text.empty() ? "" : ", then ") + part;
    i += taken;
  }
  return text;
}

/// Returns "6 forward passes, then backward and forward in turns; micro-batches go through s0, s2
/// in rounds of 4, 4, 3" for ranks that have several stages, and for their other stages "as in s0".
std::string order_text(const Plan& plan, int stage) {
  const int index = plan.program_of(stage);
  const Program& program = plan.programs[static_cast<std::size_t>(index)];
  if (!plan.interleaves()) return passes_text(program);
  if (program.stage != stage) {
    return fmt::format("as in {}", plan.stages[static_cast<std::size_t>(program.stage)].name);
  }
  std::int64_t ahead = 0;
  for (const Passes& run : runs_of(program)) {
    if (run.opcode != Opcode::kForward) break;
    ahead += run.last - run.first + 1;
  }
  const std::vector<int> rounds =
      rounds_of_micro_batches(static_cast<int>(plan.micro_batches), plan.round_size());
  std::vector<std::string> sizes;
  for (std::size_t i = 0; i < rounds.size();) {
    const auto end = std::find_if(rounds.begin() + static_cast<std::ptrdiff_t>(i), rounds.end(),
                                  [&](int size) { return size != rounds[i]; });
    const auto count = static_cast<std::size_t>(end - rounds.begin()) - i;
    sizes.push_back(count == 1 ? fmt::format("{}", rounds[i])
                               : fmt::format("{} x {}", count, rounds[i]));
    i += count;
  }
  return fmt::format(
      "{}, then backward and forward in turns; rounds of {} micro-batches go through {}",
      plural(ahead, "forward pass", "es"), fmt::join(sizes, " and "), names_of_stages(plan, stage));
}

/// Returns ", shared with s1" for the other stages of a bucket, as `stage` sees it.
std::string sharers_text(const Plan& plan, const PlanBucket& bucket, int stage) {
  std::vector<std::string> others;
  for (const int other : stages_of(bucket)) {
    if (other != stage) others.push_back(plan.stages[static_cast<std::size_t>(other)].name);
  }
  return others.empty() ? "" : fmt::format(", shared with {}", fmt::join(others, ", "));
}

std::string bucket_text(const Plan& plan, const PlanBucket& bucket, int stage) {
  const bool alone = !is_reduced(plan, bucket);
  const DType travels = travelling_type(bucket.type, plan.training.wire_type);
  const bool rounded = !alone && travels != bucket.type;
  std::string text = fmt::format(
      "    {:<5} {}, {}{}: {}", bucket.name, alone ? "not reduced" : algorithm_text(plan, bucket),
      byte_figure(rounded ? travelling_bytes(plan.training, bucket) : bucket.bytes()),
      rounded ? fmt::format(" in {}", name_of(travels)) : "", bucket.members.front().parameter);
  if (bucket.members.size() > 1) {
    text += fmt::format(" .. {} ({} gradients)", bucket.members.back().parameter,
                        bucket.members.size());
  }
  if (const PlanStage& own = plan.stages[static_cast<std::size_t>(stage)]; own.has_teams()) {
    std::vector<std::string> of_bodies;
    for (std::size_t i = 0, next = 0; i < own.ranks.size(); ++i) {
      if (own.body_of(i) != own.body + static_cast<int>(next)) continue;  // there before
      ++next;
      std::vector<std::string> held;
      for (std::size_t m = 0; m < own.members(i).size(); ++m) {
        held.push_back(byte_figure(member_elements(plan, bucket, stage, m, i) *
                                   static_cast<std::int64_t>(size_of(bucket.type))));
      }
      of_bodies.push_back(fmt::format("{}", fmt::join(held, ", ")));
    }
    text += fmt::format(", of which members hold {}", fmt::join(of_bodies, "; "));
  }
  if (bucket.is_sharded()) {
    text += fmt::format(", state{} divided {}",
                        bucket.divides_parameters()  ? ", gradients and parameters"
                        : bucket.divides_gradients() ? " and gradients"
                                                     : "",
                        print_samples(bucket.parts));
  }
  return text + sharers_text(plan, bucket, stage) + "\n";
}

std::string flow_text(const PlanFlow& flow) {
  return fmt::format("    {:<5} {} of {}, {}{}\n", flow.name,
                     plural(static_cast<std::int64_t>(flow.steps.size()), "step"),
                     plural(flow.message_count(), "message"),
                     flow.sub_chunks == 1
                         ? std::string("a chunk for each rank")
                         : fmt::format("{} sub-chunks for each rank", flow.sub_chunks),
                     flow.order == FlowOrder::kReceivers ? "" : ", in rounds");
}

/// Returns the bytes that a cut carries per sample, one way. Tensors without a sample axis count
/// once.
std::int64_t bytes_of(const Cut& cut) {
  std::int64_t bytes = 0;
  for (const CutTensor& tensor : cut.tensors) {
    bytes += static_cast<std::int64_t>(size_of(tensor.type)) * tensor.elements_per_row();
  }
  return bytes;
}

std::string cut_text(const Plan& plan, const Cut& cut) {
  return fmt::format("    {:<5} to {}: {}, {} a sample\n", cut.name,
                     plan.stages[static_cast<std::size_t>(cut.to)].name,
                     plural(static_cast<std::int64_t>(cut.tensors.size()), "tensor"),
                     byte_figure(bytes_of(cut)));
}

/// Returns an expected figure of a row; "-" if there is none.
RowFigure expected_figure(const Plan& plan, const std::string& name, std::string text) {
  const Expectation* e = find_expectation(plan, name);
  return {e == nullptr ? 0 : e->value, std::move(text), ""};
}

/// Returns the row of a rank, which has `samples` samples of a micro-batch.
TableRow device_row(const Plan& plan, int rank, const std::string& device, std::int64_t samples) {
  const std::string memory = "peak-memory " + device, sent = "bytes-sent " + device;
  TableRow row;
  row.name = device;
  row.figures = {{static_cast<double>(rank), fmt::format("{}", rank), ""},
                 {static_cast<double>(samples), fmt::format("{}", samples), ""},
                 expected_figure(plan, "utilization " + device, busy(plan, device)),
                 expected_figure(plan, memory, spell_expected(plan, memory)),
                 expected_figure(plan, sent, spell_expected(plan, sent))};
  row.alike = {row.figures[1].text, ""};
  return row;
}

std::string device_table(const Plan& plan, const PlanStage& stage) {
  const std::vector<std::string> devices = devices_of_ranks(plan);
  std::vector<TableRow> rows;
  for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
    const std::vector<int> members = stage.members(i);
    for (std::size_t m = 0; m < members.size(); ++m) {
      const int rank = members[m];
      rows.push_back(
          device_row(plan, rank, devices[static_cast<std::size_t>(rank)], stage.samples[i]));
      if (!stage.has_teams()) continue;
      TableRow& row = rows.back();
      const PlanBody& body = plan.bodies[static_cast<std::size_t>(stage.body_of(i))];
      row.figures.insert(row.figures.begin() + 2, {0, part_text(body, m), ""});
      const std::string number =
          stage.has_unlike_teams() ? fmt::format("{} {}", body.name, m) : fmt::format("{}", m);
      row.alike.front() += fmt::format(" member {}", number);
      row.alike.back() = fmt::format("member {}", number);
    }
  }
  std::vector<std::vector<std::string>> cells;
  for (const TableRow& row : joined_rows(std::move(rows))) {
    cells.push_back(cells_of(row));
    cells.back().insert(cells.back().begin() + 1, row.name);
    cells.back().insert(cells.back().begin(), "");  // the indentation
  }
  std::vector<TableColumn> columns = {{"", 0, true}, {"rank", 4}, {"device", 6, true}, {"samples"}};
  if (stage.has_teams()) columns.push_back({"part", 4});
  columns.insert(columns.end(), {{"busy", 5}, {"peak memory"}, {"sent", 8}});
  return table_text(columns, cells);
}

std::string stage_text(const Plan& plan, int index) {
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(index)];
  if (stage.idle()) {
    return fmt::format("\nstage {}: idle, without work: {}\n", stage.name,
                       fmt::join(stage.devices, ", "));
  }
  std::string cuts, local, flows, buckets;
  for (const Cut& cut : plan.cuts) {
    if (cut.from == index) (is_local(plan, cut) ? local : cuts) += cut_text(plan, cut);
  }
  for (const PlanFlow& flow : plan.flows) {
    if (flow.stage == index) flows += flow_text(flow);
  }
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.is_of(index)) buckets += bucket_text(plan, bucket, index);
  }
  std::string text =
      fmt::format("\nstage {}: {} from {} to {}, {}{}{}\n", stage.name,
                  plural(operator_count(stage), "operator"), stage.operators.front().first,
                  stage.operators.back().last, plural(parameter_count(plan, index), "parameter"),
                  stage.recompute ? ", " : "", recomputation_text(stage));
  if (stage.has_teams()) {
    text += fmt::format("  {}\n", teams_text(plan, stage));
    for (const int body : bodies_of(stage)) {
      text += body_text(plan.bodies[static_cast<std::size_t>(body)]);
    }
  }
  text += device_table(plan, stage);
  if (stage.activations_in_host) text += fmt::format("  {}\n", host_activations_text(stage));
  if (stage.state_in_host) text += "  the optimizer's state lies in the memory of hosts\n";
  text += fmt::format("  a micro-batch takes {} forward, {} backward\n",
                      spell_expected(plan, "forward " + stage.name),
                      spell_expected(plan, "backward " + stage.name));
  text += fmt::format("  order: {}\n", order_text(plan, index));
  if (const std::string in_flight = in_flight_text(plan, index); !in_flight.empty()) {
    text += fmt::format("  {}\n", in_flight);
  }
  if (!cuts.empty()) text += "  sends\n" + cuts;
  if (!local.empty()) text += "  keeps for a later stage of its ranks\n" + local;
  if (!flows.empty()) text += "  schedules of all-reduces\n" + flows;
  if (!buckets.empty()) text += "  buckets, in the order in which they are summed\n" + buckets;
  return text;
}

}  // namespace

std::string recomputation_text(const PlanStage& stage) {
  if (!stage.recompute) return "";
  if (stage.segments.empty()) return "recomputed";
  const std::int64_t operators = operator_count(stage), recomputed = recomputed_operators(stage);
  std::string text = fmt::format("recomputed in {}", plural(std::ssize(stage.segments), "segment"));
  if (recomputed == operators) return text;
  return text +
         fmt::format(", {} of {} kept", operators - recomputed, plural(operators, "operator"));
}

std::string in_flight_text(const Plan& plan, int stage) {
  if (plan.stages[static_cast<std::size_t>(stage)].idle() || plan.interleaves()) return "";
  const std::int64_t most = most_in_flight(plan, stage);
  const std::int64_t usual = usual_in_flight(plan, stage);
  if (most == usual) return "";
  return fmt::format("{} in flight ({}: {})", plural(most, "micro-batch", "es"),
                     name_of(plan.schedule), usual);
}

std::string show_plan(const Plan& plan) {
  std::string text = header(plan);
  for (int i = 0; i < static_cast<int>(plan.stages.size()); ++i) text += stage_text(plan, i);
  return text;
}

}  // namespace agpcs
