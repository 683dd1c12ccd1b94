// SPDX-License-Identifier: Apache-2.0
// The grammar of docs/reference/plan_format.md. `find_faults` checks what a plan means; printing
// the plan again checks that its text is the only spelling of it.
#include "ir/base/diagnostics.h"
#include "ir/plan/body/body_text.h"
#include "ir/plan/instruction.h"
#include "ir/plan/lines.h"
#include "ir/plan/repetition.h"
#include "ir/plan/sections.h"
#include "ir/plan/text.h"
#include "ir/plan/verify.h"

#include <agpcs/plan.h>
#include <agpcs/version.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace agpcs {
namespace {

const std::vector<std::string> kSections = {"stage",  "body",    "cut",   "flow",
                                            "bucket", "program", "expect"};

constexpr std::string_view kMagic = "agpcs-plan ";
constexpr std::string_view kWriter = "\nmade-by agpcs=";
constexpr std::string_view kRepeat = "  repeat ";

/// Returns which AGPCS wrote the plan, from the second line of any version.
std::string writer(std::string_view text) {
  const std::size_t at = text.find(kWriter);
  if (at == std::string_view::npos || at != text.find('\n')) return "another program";
  const std::string_view rest = text.substr(at + kWriter.size());
  return fmt::format("AGPCS {}", rest.substr(0, rest.find_first_of(" \n")));
}

/// Checks the version. The first two lines have the same form in every version of the format.
Status check_first_line(std::string_view text, Diagnostics& diagnostics) {
  const std::string_view first = text.substr(0, text.find('\n'));
  if (first.substr(0, kMagic.size()) != kMagic) {
    diagnostics.error({1, 0, 1}, text.empty() ? "the file is empty" : "not a plan",
                      fmt::format("a plan begins with the line 'agpcs-plan {}'", kPlanVersion));
  } else if (first.back() == '\r') {
    diagnostics.error({1, 0, 1}, "lines end in CR LF, not in LF",
                      "a tool changed the file; in git, '*.plan text eol=lf' in .gitattributes "
                      "prevents that");
  } else if (first.substr(kMagic.size()) != fmt::to_string(kPlanVersion)) {
    diagnostics.error(
        {1, static_cast<int>(kMagic.size()) + 1, static_cast<int>(first.size() - kMagic.size())},
        fmt::format("plan format '{}', but AGPCS {} reads format {} only",
                    first.substr(kMagic.size()), version(), kPlanVersion),
        first.substr(kMagic.size()) == "1"
            ? fmt::format("{} wrote it; 'agpcs-plan upgrade' makes a plan of format {} of it",
                          writer(text), kPlanVersion)
            : fmt::format("{} wrote it; compile the plan again, or read it with that version",
                          writer(text)));
  }
  return diagnostics.status();
}

class PlanParser {
 public:
  PlanParser(std::string_view text, Diagnostics& diagnostics)
      : text_(text), diagnostics_(diagnostics), lines_(text, diagnostics) {}

  Result<Plan> run(bool any_spelling) {
    if (diagnostics_.ok()) {
      lines_.skip();  // the first line
      read_header(lines_, diagnostics_, plan_);
      parse_sections();
    }
    if (diagnostics_.ok()) verify();
    if (diagnostics_.ok() && !any_spelling) check_spelling();
    if (!diagnostics_.ok()) return diagnostics_.status();
    return std::move(plan_);
  }

 private:
  void parse_sections() {
    std::size_t reached = 0;
    bool expect_seen = false;
    while (const PlanLine* line = lines_.peek()) {
      lines_.skip();
      std::size_t section = 0;
      while (section < kSections.size() && line->keyword() != kSections[section]) ++section;
      if (line->depth > 0 || section == kSections.size()) {
        diagnostics_.error(keyword_range(*line), fmt::format("unknown line '{}'", line->keyword()),
                           did_you_mean(line->keyword(), kSections, "sections"));
        while (lines_.next_item("") != nullptr) continue;  // one message is enough for the section
        continue;
      }
      if (section < reached || (expect_seen && line->keyword() == "expect")) {
        diagnostics_.error(
            keyword_range(*line),
            fmt::format("'{}' comes after '{}'", line->keyword(), kSections[reached]),
            "sections come in the order stage, body, cut, flow, bucket, program, expect");
      }
      reached = std::max(reached, section);
      expect_seen = line->keyword() == "expect";
      parse_section(*line);
    }
    if (!expect_seen) {
      diagnostics_.error({lines_.last_number() + 1, 0, 1},
                         "the plan ends where 'expect' is expected");
    }
  }

  void parse_section(const PlanLine& line) {
    const std::string_view keyword = line.keyword();
    if (keyword == "stage") plan_.stages.push_back(read_stage(line, lines_, diagnostics_));
    if (keyword == "body") plan_.bodies.push_back(read_body(line, lines_, diagnostics_));
    if (keyword == "cut") plan_.cuts.push_back(read_cut(line, lines_, diagnostics_));
    if (keyword == "flow") {
      plan_.flows.push_back(read_flow(line, plan_.stages, lines_, diagnostics_));
    }
    if (keyword == "bucket") plan_.buckets.push_back(read_bucket(line, lines_, diagnostics_));
    if (keyword == "program") parse_program(line);
    if (keyword == "expect") parse_expect(line);
  }

  void parse_program(const PlanLine& line) {
    PlanLineReader in(line, diagnostics_, {});
    Program program;
    const std::vector<int> stages = in.references('s', "a stage");
    in.finish();
    if (in.ok()) program.stage = stages.front();
    if (in.ok()) check_stages_of_program(in, stages);
    lines_of_.emplace_back();
    while (const PlanLine* item = lines_.next_item("")) {
      if (item->keyword() == "repeat") {
        parse_repeat(*item, program);
      } else {
        add_instruction(*item, program, {});
      }
    }
    plan_.programs.push_back(std::move(program));
  }

  /// Checks that a program is that of all stages of its ranks.
  void check_stages_of_program(PlanLineReader& in, const std::vector<int>& stages) {
    const int count = static_cast<int>(plan_.stages.size()), round = plan_.round_size();
    const bool goes_round = !plan_.interleaves() || 2 * round <= count;
    if (stages.front() >= count || round == 0 || !goes_round) return;  // `verify_plan` says so
    const std::vector<int> all = plan_.stages_of_program(plan_.program_of(stages.front()));
    if (stages == all) return;
    in.fail(fmt::format("a program of {}, and its ranks have {}", stages_text(stages),
                        stages_text(all)),
            "a program says what ranks do for all of their stages");
  }

  static std::string stages_text(const std::vector<int>& stages) {
    return fmt::format("s{}", fmt::join(stages, ",s"));
  }

  void add_instruction(const PlanLine& line, Program& program, std::optional<int> repetition) {
    lines_of_.back().push_back(&line);
    program.instructions.push_back(
        read_instruction(line, diagnostics_, plan_.micro_batches, repetition));
  }

  /// Reads "repeat mb=3..60", or "repeat mb=4..60 by=4", and the instructions below it, as often as
  /// it says.
  void parse_repeat(const PlanLine& line, Program& program) {
    PlanLineReader in(line, diagnostics_, {"mb", "by"});
    const std::string_view text = in.value("mb");
    const std::size_t dots = std::min(text.find(".."), text.size());
    const std::optional<int> first = parse_micro_batch(text.substr(0, dots), {});
    const std::optional<int> last =
        parse_micro_batch(text.substr(std::min(dots + 2, text.size())), {});
    if (!first || !last || *last < *first) {
      in.fail(fmt::format("mb is '{}', not micro-batches such as 3..60", text));
    }
    std::int64_t step = 1;
    if (in.next_is("by")) {
      step = in.integer_value("by");
      if (in.ok() && (step < 1 || (*last - *first) % step != 0)) {
        in.fail(fmt::format("mb is '{}', which is no number of steps of {}", text, step));
      }
    }
    in.finish();
    const std::vector<const PlanLine*> repeated = lines_.nested();
    if (!in.ok()) return;
    if (repeated.empty()) return in.fail("nothing is repeated", "its instructions are below it");
    const std::int64_t times = (*last - *first) / step + 1;
    repeated_ += static_cast<std::size_t>(times) * repeated.size();
    if (repeated_ > kMostInstructions) {
      return in.fail(fmt::format("the plan repeats more than {} instructions", kMostInstructions));
    }
    for (std::int64_t i = 0; i < times; ++i) {
      const int repetition = *first + static_cast<int>(i * step);
      for (const PlanLine* item : repeated) add_instruction(*item, program, repetition);
      if (!diagnostics_.ok()) return;
    }
  }

  void parse_expect(const PlanLine& line) {
    PlanLineReader(line, diagnostics_, {}).finish();
    while (const PlanLine* item = lines_.next_item("")) {
      if (auto read = read_expectation(*item, diagnostics_))
        plan_.expect.push_back(std::move(*read));
    }
  }

  /// Returns the line of the instruction that a fault is about; null if it is about none.
  const PlanLine* line_of(const PlanFault& fault) const {
    const auto program = static_cast<std::size_t>(fault.stage);
    const auto instruction = static_cast<std::size_t>(fault.instruction);
    if (fault.instruction < 0 || program >= lines_of_.size()) return nullptr;
    return instruction < lines_of_[program].size() ? lines_of_[program][instruction] : nullptr;
  }

  void verify() {
    std::set<const PlanLine*>
        reported;  // a repeated line is wrong in one repetition as in the other
    for (const PlanFault& fault : find_faults(plan_)) {
      const PlanLine* line = line_of(fault);
      if (line != nullptr && line->depth > 1 && !reported.insert(line).second) continue;
      SourceRange where;
      if (line != nullptr) {
        const int column = line->tokens[0].column;
        where = {line->number, column, static_cast<int>(line->text.size()) - column + 1};
      }
      diagnostics_.error(where, fault.message, fault.hint);
    }
  }

  /// Checks that the text is the one that the plan prints. Any difference is refused, so that
  /// nothing is silently ignored.
  void check_spelling() {
    const std::string expected = print_plan(plan_);
    if (expected == text_) return;
    std::string_view rest = expected;
    for (const PlanLine& line : lines_.all()) {
      const std::string_view wanted = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), wanted.size() + 1));
      if (line.text == wanted) continue;
      const bool repeats = wanted.substr(0, kRepeat.size()) == kRepeat;
      return diagnostics_.error(
          {line.number, 1, static_cast<int>(line.text.size())},
          "the line is not spelled as AGPCS writes it",
          fmt::format("write '{}'{}", wanted, repeats ? "; 'agpcs-plan upgrade' does" : ""));
    }
    diagnostics_.error({lines_.last_number() + 1, 0, 1},
                       "the plan is not spelled as AGPCS writes it");
  }

  std::string_view text_;
  Diagnostics& diagnostics_;
  PlanLines lines_;
  std::vector<std::vector<const PlanLine*>> lines_of_;  // of instructions, by program
  std::size_t repeated_ = 0;                            // instructions below `repeat`
  Plan plan_;
};

Result<Plan> parse(std::string_view text, std::string_view file, bool any_spelling) {
  Diagnostics diagnostics{std::string(file), std::string(text)};
  AGPCS_RETURN_IF_ERROR(check_first_line(text, diagnostics));
  return PlanParser(text, diagnostics).run(any_spelling);
}

}  // namespace

Result<Plan> parse_plan(std::string_view text, std::string_view file) {
  return parse(text, file, false);
}

Result<Plan> parse_any_spelling(std::string_view text, std::string_view file) {
  return parse(text, file, true);
}

}  // namespace agpcs
