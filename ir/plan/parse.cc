// SPDX-License-Identifier: Apache-2.0
// The grammar of docs/reference/plan_format.md. `find_faults` checks what a plan means; printing
// the plan again checks that its text is the only spelling of it.
#include "ir/base/all_values.h"
#include "ir/base/diagnostics.h"
#include "ir/base/named.h"
#include "ir/plan/choices.h"
#include "ir/plan/flow.h"
#include "ir/plan/instruction.h"
#include "ir/plan/lines.h"
#include "ir/plan/text.h"
#include "ir/plan/verify.h"

#include <agpcs/plan.h>
#include <agpcs/version.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

const std::vector<std::string> kSections = {"stage", "cut", "flow", "bucket", "program", "expect"};

std::vector<std::string> algorithm_names() {
  std::vector<std::string> names;
  for (const AllReduce algorithm : kAllReduces) names.emplace_back(name_of(algorithm));
  names.emplace_back("flow:f0");
  return names;
}

constexpr std::string_view kMagic = "agpcs-plan ";
constexpr std::string_view kWriter = "\nmade-by agpcs=";

class PlanParser {
 public:
  PlanParser(std::string_view text, std::string_view file)
      : text_(text), diagnostics_(std::string(file), std::string(text)) {}

  Result<Plan> run() {
    AGPCS_RETURN_IF_ERROR(check_first_line());
    lines_ = split_plan_lines(text_, diagnostics_);
    if (diagnostics_.ok()) {
      parse_header();
      parse_sections();
    }
    if (diagnostics_.ok()) verify();
    if (diagnostics_.ok()) check_spelling();
    if (!diagnostics_.ok()) return diagnostics_.status();
    return std::move(plan_);
  }

 private:
  /// Checks the version. The first two lines have the same form in every version of the format.
  Status check_first_line() {
    const std::string_view first = text_.substr(0, text_.find('\n'));
    if (first.substr(0, kMagic.size()) != kMagic) {
      diagnostics_.error({1, 0, 1}, text_.empty() ? "the file is empty" : "not a plan",
                         fmt::format("a plan begins with the line 'agpcs-plan {}'", kPlanVersion));
    } else if (first.back() == '\r') {
      diagnostics_.error({1, 0, 1}, "lines end in CR LF, not in LF",
                         "a tool changed the file; in git, '*.plan text eol=lf' in .gitattributes "
                         "prevents that");
    } else if (first.substr(kMagic.size()) != fmt::to_string(kPlanVersion)) {
      diagnostics_.error(
          {1, static_cast<int>(kMagic.size()) + 1, static_cast<int>(first.size() - kMagic.size())},
          fmt::format("plan format '{}', but AGPCS {} reads format {} only",
                      first.substr(kMagic.size()), version(), kPlanVersion),
          first.substr(kMagic.size()) == "1"
              ? fmt::format("{} wrote it; 'agpcs-plan upgrade' makes a plan of format {} of it",
                            writer(), kPlanVersion)
              : fmt::format("{} wrote it; compile the plan again, or read it with that version",
                            writer()));
    }
    return diagnostics_.status();
  }

  /// Returns which AGPCS wrote the plan, from the second line of any version.
  std::string writer() const {
    const std::size_t at = text_.find(kWriter);
    if (at == std::string_view::npos || at != text_.find('\n')) return "another program";
    const std::string_view rest = text_.substr(at + kWriter.size());
    return fmt::format("AGPCS {}", rest.substr(0, rest.find_first_of(" \n")));
  }

  const PlanLine* peek() const { return next_ < lines_.size() ? &lines_[next_] : nullptr; }

  /// Returns the next line if it is `keyword`. Otherwise reports it, and skips a line that was
  /// meant to be `keyword`.
  const PlanLine* expect_line(const std::string& keyword) {
    const PlanLine* line = peek();
    if (line == nullptr) {
      diagnostics_.error({last_number() + 1, 0, 1},
                         fmt::format("the plan ends where '{}' is expected", keyword));
      return nullptr;
    }
    if (line->keyword() == keyword && !line->indented) return &lines_[next_++];
    const std::string found(line->keyword());
    const bool typo = !nearest(found, {keyword}).empty();
    diagnostics_.error(keyword_range(*line),
                       fmt::format("'{}' where '{}' is expected", found, keyword),
                       typo ? fmt::format("did you mean '{}'?", keyword) : "");
    if (typo) ++next_;
    return nullptr;
  }

  int last_number() const { return lines_.empty() ? 0 : lines_.back().number; }
  static SourceRange keyword_range(const PlanLine& line) {
    return {line.number, line.tokens[0].column, static_cast<int>(line.keyword().size())};
  }

  /// Returns the next item of the section that is being read; null at its end.
  const PlanLine* next_item(const std::string& keyword) {
    while (peek() != nullptr && peek()->indented) {
      const PlanLine* line = &lines_[next_++];
      if (keyword.empty() || line->keyword() == keyword) return line;
      diagnostics_.error(keyword_range(*line),
                         fmt::format("'{}' where '{}' is expected", line->keyword(), keyword));
    }
    return nullptr;
  }

  void parse_header() {
    if (const PlanLine* line = expect_line("made-by")) {
      PlanLineReader in(*line, diagnostics_,
                        {"agpcs", "seed", "seeder", "refiner", "evaluations", "interrupted"});
      plan_.made_by.version = in.name_value("agpcs");
      plan_.made_by.seed = in.unsigned_value("seed");
      plan_.made_by.seeder = in.name_value("seeder");
      plan_.made_by.refiner = in.name_value("refiner");
      plan_.made_by.evaluations = in.integer_value("evaluations");
      plan_.made_by.interrupted = in.yes_no_value("interrupted");
      in.finish();
    }
    if (const PlanLine* line = expect_line("model")) parse_model(*line);
    if (const PlanLine* line = expect_line("cluster")) {
      PlanLineReader in(*line, diagnostics_, {"name", "digest"});
      plan_.cluster = in.name_value("name");
      plan_.cluster_digest = in.name_value("digest");
      in.finish();
    }
    if (const PlanLine* line = expect_line("training")) parse_training(*line);
    if (const PlanLine* line = expect_line("loss")) parse_loss(*line);
    if (const PlanLine* line = expect_line("optimizer")) parse_optimizer(*line);
  }

  void parse_model(const PlanLine& line) {
    PlanLineReader in(line, diagnostics_, {"name", "dims", "digest"});
    plan_.model = in.name_value("name");
    const std::string_view dims = in.value("dims");
    for (const std::string_view item : split_outside_quotes(dims, ',')) {
      if (!in.ok() || dims == "none") break;
      const std::size_t colon = item.rfind(':');
      const std::optional<std::string> name = unquoted(item.substr(0, colon));
      const std::optional<std::int64_t> value =
          colon == std::string_view::npos ? std::nullopt : parse_integer(item.substr(colon + 1));
      if (!name || !value) {
        in.fail(fmt::format("'{}' is not a dim such as seq:128", item));
      } else {
        plan_.dims.emplace_back(*name, *value);
      }
    }
    plan_.model_digest = in.name_value("digest");
    in.finish();
    while (const PlanLine* item = next_item("")) {
      const bool frozen = item->keyword() == "frozen";
      if (!frozen && item->keyword() != "trained") {
        diagnostics_.error(
            keyword_range(*item),
            fmt::format("'{}' where 'frozen' or 'trained' is expected", item->keyword()));
        continue;
      }
      PlanLineReader reader(*item, diagnostics_, {});
      (frozen ? plan_.frozen : plan_.trained).push_back(reader.name("a weight"));
      reader.finish();
    }
  }

  /// Returns the value of `table` that `text` names, or reports that there is none.
  template <typename Table>
  static auto choice(PlanLineReader& in, std::string_view text, const Table& table,
                     std::string_view noun, std::string_view plural) {
    const auto value = value_named(table, text);
    if (!value) {
      in.fail(fmt::format("unknown {} '{}'", noun, text),
              did_you_mean(text, names_in(table), plural));
    }
    return value.value_or(table[0].value);
  }

  void parse_training(const PlanLine& line) {
    PlanLineReader in(line, diagnostics_,
                      {"batch", "micro-batches", "schedule", "precision", "statistics-every",
                       "wire-type", "attention"});
    plan_.training.batch = in.integer_value("batch");
    plan_.micro_batches = in.integer_value("micro-batches");
    const std::string_view schedule = in.value("schedule");
    if (const auto named = schedule_named(schedule)) {
      plan_.schedule = *named;
    } else {
      in.fail(fmt::format("unknown schedule '{}'", schedule),
              did_you_mean(schedule, names_of(kSchedules), "schedules"));
    }
    plan_.training.precision =
        choice(in, in.value("precision"), kPrecisions, "precision", "precisions");
    plan_.training.statistics_every = in.integer_value("statistics-every");
    if (in.next_is("wire-type")) {
      const std::string_view text = in.value("wire-type");
      plan_.training.wire_type = one_named(kWireTypes, text);
      if (!plan_.training.wire_type) {
        in.fail(fmt::format("unknown wire type '{}'", text),
                fmt::format("wire types: {}", fmt::join(names_of(kWireTypes), ", ")));
      }
    }
    if (in.next_is("attention")) {
      plan_.training.attention = choice(in, in.value("attention"), kAttentionForms,
                                        "form of attention", "forms of attention");
    }
    in.finish();
  }

  void parse_loss(const PlanLine& line) {
    PlanLineReader in(line, diagnostics_, {});
    plan_.training.loss.kind = choice(in, in.word("a kind of loss"), kLosses, "loss", "losses");
    while (in.ok() && !in.at_end()) {
      const std::string_view token = in.word("an output and its weight");
      const std::vector<std::string_view> parts = split_outside_quotes(token, '=');
      const std::optional<std::string> output = unquoted(parts[0]);
      const auto weight = parts.size() == 2 ? parse_number(parts[1]) : std::nullopt;
      if (!output || !weight) {
        return in.fail(
            fmt::format("'{}' is not an output and its weight, such as logits=1", token));
      }
      plan_.training.loss.outputs.emplace_back(*output, *weight);
    }
    if (const PlanLine* item = next_item("labels")) parse_labels(*item);
  }

  void parse_labels(const PlanLine& line) {
    Loss& loss = plan_.training.loss;
    PlanLineReader in(line, diagnostics_,
                      {"ignore-index", "smoothing", "class-axis", "next-token"});
    if (in.next_is("ignore-index")) loss.ignore_index = in.integer_value("ignore-index");
    if (in.next_is("smoothing")) loss.label_smoothing = in.number_value("smoothing");
    if (in.next_is("class-axis")) {
      const std::int64_t axis = in.integer_value("class-axis");
      if (axis != 1 && axis != -1)
        in.fail(fmt::format("class-axis is {}", axis), "1, or -1 for the last axis");
      loss.class_axis = static_cast<int>(axis);
    }
    if (in.next_is("next-token")) loss.next_token = in.name_value("next-token");
    in.finish();
  }

  void parse_optimizer(const PlanLine& line) {
    Optimizer& o = plan_.training.optimizer;
    if (line.tokens.size() > 1) {
      o.kind = value_named(kOptimizers, line.tokens[1].text).value_or(o.kind);
    }
    const OptimizerEntry& entry = entry_of(kOptimizers, o.kind);
    std::vector<std::string> keys = {"learning-rate"};
    for (const OptimizerSetting& setting : entry.settings) keys.emplace_back(setting.name);
    if (o.kind == OptimizerKind::kSgd) keys.emplace_back("nesterov");
    keys.emplace_back("weight-decay");
    PlanLineReader in(line, diagnostics_, keys);
    o.kind = choice(in, in.word("a kind of optimizer"), kOptimizers, "optimizer", "optimizers");
    o.learning_rate = in.number_value("learning-rate");
    for (const OptimizerSetting& setting : entry.settings) {
      o.*setting.value = in.number_value(std::string(setting.name));
    }
    if (in.next_is("nesterov")) o.nesterov = in.yes_no_value("nesterov");
    o.weight_decay = in.number_value("weight-decay");
    in.finish();
  }

  void parse_sections() {
    std::size_t reached = 0;
    bool expect_seen = false;
    while (const PlanLine* line = peek()) {
      ++next_;
      std::size_t section = 0;
      while (section < kSections.size() && line->keyword() != kSections[section]) ++section;
      if (line->indented || section == kSections.size()) {
        diagnostics_.error(keyword_range(*line), fmt::format("unknown line '{}'", line->keyword()),
                           did_you_mean(line->keyword(), kSections, "sections"));
        while (next_item("") != nullptr) continue;  // one message is enough for the section
        continue;
      }
      if (section < reached || (expect_seen && line->keyword() == "expect")) {
        diagnostics_.error(
            keyword_range(*line),
            fmt::format("'{}' comes after '{}'", line->keyword(), kSections[reached]),
            "sections come in the order stage, cut, flow, bucket, program, expect");
      }
      reached = std::max(reached, section);
      expect_seen = line->keyword() == "expect";
      parse_section(section, *line);
    }
    if (!expect_seen) {
      diagnostics_.error({last_number() + 1, 0, 1}, "the plan ends where 'expect' is expected");
    }
  }

  void parse_section(std::size_t section, const PlanLine& line) {
    const std::array<void (PlanParser::*)(const PlanLine&), 6> parsers = {
        &PlanParser::parse_stage,  &PlanParser::parse_cut,     &PlanParser::parse_flow,
        &PlanParser::parse_bucket, &PlanParser::parse_program, &PlanParser::parse_expect};
    (this->*parsers[section])(line);
  }

  template <typename List>
  static void read_list(PlanLineReader& in, const char* key, List& list,
                        std::optional<List> (*parse)(std::string_view), const char* example) {
    const std::string_view text = in.value(key);
    if (!in.ok()) return;
    std::optional<List> parsed = parse(text);
    if (!parsed)
      return in.fail(fmt::format("{} is '{}', not a list such as {}", key, text, example));
    list = std::move(*parsed);
  }

  /// Reports a section whose items do not add up to the total in its first line.
  void check_total(const PlanLine& line, std::string_view what, std::int64_t stated,
                   std::int64_t found) {
    if (!diagnostics_.ok() || stated == found) return;
    diagnostics_.error(keyword_range(line),
                       fmt::format("{}={}, but its lines have {}", what, stated, found));
  }

  void parse_stage(const PlanLine& line) {
    PlanLineReader in(line, diagnostics_,
                      {"ranks", "devices", "samples", "odd", "recompute", "operators"});
    PlanStage stage;
    stage.name = in.name("a stage");
    read_list(in, "ranks", stage.ranks, parse_ranks, "0-3,6");
    read_list(in, "devices", stage.devices, parse_devices, "host/0-3");
    read_list(in, "samples", stage.samples, parse_samples, "16x4,20");
    if (in.next_is("odd")) stage.odd = static_cast<int>(in.integer_value("odd"));
    stage.recompute = in.yes_no_value("recompute");
    const std::int64_t operators = in.integer_value("operators");
    in.finish();
    std::int64_t found = 0;
    while (const PlanLine* item = next_item("operators")) {
      PlanLineReader reader(*item, diagnostics_, {"count"});
      PlanStage::Run run;
      run.first = reader.name("an operator");
      if (reader.word("'..'") != "..") reader.fail("not '..' between first and last operator");
      run.last = reader.name("an operator");
      run.count = reader.integer_value("count");
      reader.finish();
      if (run.count < 0 || run.count > std::numeric_limits<std::int32_t>::max()) {
        reader.fail(fmt::format("count is {}", run.count));
      }
      if (diagnostics_.ok()) found += run.count;
      stage.operators.push_back(std::move(run));
    }
    check_total(line, "operators", operators, found);
    plan_.stages.push_back(std::move(stage));
  }

  void parse_cut(const PlanLine& line) {
    PlanLineReader in(line, diagnostics_, {"from", "to", "tensors"});
    Cut cut;
    cut.name = in.name("a cut");
    cut.from = in.reference_value("from", 's');
    cut.to = in.reference_value("to", 's');
    const std::int64_t tensors = in.integer_value("tensors");
    in.finish();
    while (const PlanLine* item = next_item("tensor")) cut.tensors.push_back(parse_tensor(*item));
    check_total(line, "tensors", tensors, static_cast<std::int64_t>(cut.tensors.size()));
    plan_.cuts.push_back(std::move(cut));
  }

  static void read_type(PlanLineReader& in, DType& type) {
    const std::string_view text = in.value("type");
    if (const auto named = dtype_named(text)) {
      type = *named;
    } else {
      in.fail(fmt::format("unknown type '{}'", text),
              did_you_mean(text, names_of(kDTypes), "types"));
    }
  }

  CutTensor parse_tensor(const PlanLine& line) {
    PlanLineReader in(line, diagnostics_, {"type", "shape", "gradient"});
    CutTensor tensor;
    tensor.name = in.name("a tensor");
    read_type(in, tensor.type);
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

  void parse_flow(const PlanLine& line) {
    PlanLineReader in(line, diagnostics_, {"stage", "sub-chunks", "order", "steps", "messages"});
    PlanFlow flow;
    flow.name = in.name("a flow");
    flow.stage = in.reference_value("stage", 's');
    flow.sub_chunks = read_sub_chunks(in);
    if (in.next_is("order")) flow.order = read_flow_order(in);
    const std::int64_t steps = in.integer_value("steps");
    const std::int64_t messages = in.integer_value("messages");
    in.finish();
    if (in.ok() && flow.stage >= static_cast<int>(plan_.stages.size())) {
      in.fail(fmt::format("stage s{} of {} stages", flow.stage, plan_.stages.size()));
    }
    while (const PlanLine* item = next_item("")) {
      if (!in.ok()) continue;  // the meaning of its lines is unknown
      flow.steps.push_back(parse_flow_step(*item, diagnostics_, flow.sub_chunks,
                                           plan_.stages[static_cast<std::size_t>(flow.stage)]));
    }
    check_total(line, "steps", steps, static_cast<std::int64_t>(flow.steps.size()));
    check_total(line, "messages", messages, flow.message_count());
    plan_.flows.push_back(std::move(flow));
  }

  /// Reads "ring" or "flow:f0".
  static void read_algorithm(PlanLineReader& in, PlanBucket& bucket) {
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

  static void read_parts(PlanLineReader& in, PlanBucket& bucket) {
    const std::string_view state = in.value("state");
    if (in.ok() && state != "optimizer") {
      in.fail(fmt::format("state is '{}'", state),
              "state=optimizer, or no state= where every rank keeps all");
    }
    read_list(in, "parts", bucket.parts, parse_samples, "4096x3,2048");
  }

  void parse_bucket(const PlanLine& line) {
    PlanLineReader in(
        line, diagnostics_,
        {"stage", "shared-with", "algorithm", "type", "state", "parts", "gradients", "elements"});
    PlanBucket bucket;
    bucket.name = in.name("a bucket");
    bucket.stage = in.reference_value("stage", 's');
    if (in.next_is("shared-with")) bucket.shared_with = in.references_value("shared-with", 's');
    read_algorithm(in, bucket);
    read_type(in, bucket.type);
    if (in.next_is("state")) read_parts(in, bucket);
    const std::int64_t gradients = in.integer_value("gradients");
    const std::int64_t elements = in.integer_value("elements");
    in.finish();
    while (const PlanLine* item = next_item("gradient")) {
      PlanLineReader reader(*item, diagnostics_, {"elements"});
      BucketMember member;
      member.parameter = reader.name("a parameter");
      member.elements = reader.integer_value("elements");
      if (member.elements < 1 || member.elements > (std::int64_t{1} << 40)) {
        reader.fail(fmt::format("elements is {}", member.elements));
      }
      reader.finish();
      bucket.members.push_back(std::move(member));
    }
    check_total(line, "gradients", gradients, static_cast<std::int64_t>(bucket.members.size()));
    if (diagnostics_.ok()) check_total(line, "elements", elements, bucket.elements());
    plan_.buckets.push_back(std::move(bucket));
  }

  void parse_program(const PlanLine& line) {
    PlanLineReader in(line, diagnostics_, {});
    Program program;
    program.stage = in.reference('s', "a stage");
    in.finish();
    while (const PlanLine* item = next_item("")) {
      lines_of_[{plan_.programs.size(), program.instructions.size()}] = item;
      program.instructions.push_back(read_instruction(*item, diagnostics_, plan_.micro_batches));
    }
    plan_.programs.push_back(std::move(program));
  }

  void parse_expect(const PlanLine& line) {
    PlanLineReader(line, diagnostics_, {}).finish();
    while (const PlanLine* item = next_item("")) {
      if (auto read = read_expectation(*item, diagnostics_))
        plan_.expect.push_back(std::move(*read));
    }
  }

  void verify() {
    for (const PlanFault& fault : find_faults(plan_)) {
      const auto it = lines_of_.find(
          {static_cast<std::size_t>(fault.stage), static_cast<std::size_t>(fault.instruction)});
      const bool known = fault.instruction >= 0 && it != lines_of_.end();
      const SourceRange where = known
                                    ? SourceRange{it->second->number, it->second->tokens[0].column,
                                                  static_cast<int>(it->second->text.size()) - 2}
                                    : SourceRange{};
      diagnostics_.error(where, fault.message, fault.hint);
    }
  }

  /// Checks that the text is the one that the plan prints. Any difference is refused, so that
  /// nothing is silently ignored.
  void check_spelling() {
    const std::string expected = print_plan(plan_);
    if (expected == text_) return;
    std::string_view rest = expected;
    for (const PlanLine& line : lines_) {
      const std::string_view wanted = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), wanted.size() + 1));
      if (line.text == wanted) continue;
      return diagnostics_.error({line.number, 1, static_cast<int>(line.text.size())},
                                "the line is not spelled as AGPCS writes it",
                                fmt::format("write '{}'", wanted));
    }
    diagnostics_.error({last_number() + 1, 0, 1}, "the plan is not spelled as AGPCS writes it");
  }

  std::string_view text_;
  Diagnostics diagnostics_;
  std::vector<PlanLine> lines_;
  std::size_t next_ = 1;  // the first line is read separately
  std::map<std::pair<std::size_t, std::size_t>, const PlanLine*> lines_of_;  // of instructions
  Plan plan_;
};

}  // namespace

Result<Plan> parse_plan(std::string_view text, std::string_view file) {
  return PlanParser(text, file).run();
}

}  // namespace agpcs
