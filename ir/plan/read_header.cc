// SPDX-License-Identifier: Apache-2.0
// The lines of a plan's text before its stages.
#include "ir/base/all_values.h"
#include "ir/base/diagnostics.h"
#include "ir/base/named.h"
#include "ir/plan/choices.h"
#include "ir/plan/lines.h"
#include "ir/plan/sections.h"
#include "ir/plan/text.h"

#include <agpcs/plan.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

class HeaderReader {
 public:
  HeaderReader(PlanLines& lines, Diagnostics& diagnostics, Plan& plan)
      : lines_(lines), diagnostics_(diagnostics), plan_(plan) {}

  void run() {
    if (const PlanLine* line = lines_.expect("made-by")) {
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
    if (const PlanLine* line = lines_.expect("model")) parse_model(*line);
    if (const PlanLine* line = lines_.expect("cluster")) {
      PlanLineReader in(*line, diagnostics_, {"name", "digest"});
      plan_.cluster = in.name_value("name");
      plan_.cluster_digest = in.name_value("digest");
      in.finish();
    }
    if (const PlanLine* line = lines_.expect("training")) parse_training(*line);
    if (const PlanLine* line = lines_.expect("loss")) parse_loss(*line);
    if (const PlanLine* line = lines_.expect("optimizer")) parse_optimizer(*line);
  }

 private:
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
    while (const PlanLine* item = lines_.next_item("")) {
      const bool frozen = item->keyword() == "frozen", fused = item->keyword() == "fused";
      if (!frozen && !fused && item->keyword() != "trained") {
        diagnostics_.error(
            keyword_range(*item),
            fmt::format("'{}' where 'frozen', 'trained' or 'fused' is expected", item->keyword()));
        continue;
      }
      PlanLineReader reader(*item, diagnostics_, {});
      std::vector<std::string>& names = frozen ? plan_.frozen : fused ? plan_.fused : plan_.trained;
      names.push_back(reader.name(fused ? "a type of operators" : "a weight"));
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
    if (const PlanLine* item = lines_.next_item("labels")) parse_labels(*item);
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
    keys.emplace_back("max-norm");
    PlanLineReader in(line, diagnostics_, keys);
    o.kind = choice(in, in.word("a kind of optimizer"), kOptimizers, "optimizer", "optimizers");
    o.learning_rate = in.number_value("learning-rate");
    for (const OptimizerSetting& setting : entry.settings) {
      o.*setting.value = in.number_value(std::string(setting.name));
    }
    if (in.next_is("nesterov")) o.nesterov = in.yes_no_value("nesterov");
    o.weight_decay = in.number_value("weight-decay");
    if (in.next_is("max-norm")) o.max_norm = in.number_value("max-norm");
    in.finish();
  }

  PlanLines& lines_;
  Diagnostics& diagnostics_;
  Plan& plan_;
};

}  // namespace

void read_header(PlanLines& lines, Diagnostics& diagnostics, Plan& plan) {
  HeaderReader(lines, diagnostics, plan).run();
}

}  // namespace agpcs
