// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/body/body_text.h"

#include "ir/plan/body/body.h"
#include "ir/plan/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

constexpr std::string_view kWhole = "whole";

class BodyPrinter {
 public:
  explicit BodyPrinter(const PlanBody& body) : body_(body) {}

  std::string run() {
    add("body {} parts={} operators={} tensors={}\n", body_.name, print_numbers(body_.parts, ','),
        body_.operators.size(), body_.tensors.size());
    for (std::size_t d = 0; d < body_.divisions.size(); ++d) {
      add("  division d{} pieces={}\n", d, print_numbers(body_.divisions[d].pieces, ','));
    }
    for (const BodyTensor& tensor : body_.tensors) print_tensor(tensor);
    add("  forward\n");
    for (const BodyStep& step : body_.forward) {
      if (step.is_exchange()) {
        print_exchange(step, "to", forward_exchange(tensor_of(step), step.form));
        continue;
      }
      for (int i = step.first; i <= step.last; ++i) print_operator(operator_at(i));
    }
    add("  backward\n");
    for (const BodyStep& step : body_.backward) {
      if (step.is_exchange()) {
        print_exchange(step, "from", backward_exchange(tensor_of(step), step.form));
      } else {
        add("    compute {} .. {} count={}\n", quoted(operator_at(step.last).name),
            quoted(operator_at(step.first).name), step.last - step.first + 1);
      }
    }
    if (!body_.step_end.empty()) add("  step-end\n");
    for (const BodyStep& step : body_.step_end) {
      print_exchange(step, "from", backward_exchange(tensor_of(step), step.form));
    }
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(Out(text_), format, std::forward<Args>(args)...);
  }

  const BodyOperator& operator_at(int index) const {
    return body_.operators[static_cast<std::size_t>(index)];
  }
  const BodyTensor& tensor_of(const BodyStep& step) const {
    return body_.tensors[static_cast<std::size_t>(step.tensor)];
  }

  void print_tensor(const BodyTensor& tensor) {
    add("  {} {} type={} shape={}", tensor.parameter ? "parameter" : "tensor", quoted(tensor.name),
        name_of(tensor.type), print_extents(tensor.shape));
    if (!tensor.parameter) add(" gradient={}", tensor.gradient ? "yes" : "no");
    add(" forms={}\n", print_forms(tensor.forms));
  }

  void print_operator(const BodyOperator& one) {
    add("    compute {} split={}", quoted(one.name),
        one.split.empty() ? std::string(kWhole) : quoted(one.split));
    if (one.division >= 0) add(" by=d{}", one.division);
    if (!one.bands.empty()) add(" bands={}", print_numbers(one.bands, '+'));
    add("{}\n", one.gradient_sum ? " gradient=sum" : "");
  }

  void print_exchange(const BodyStep& step, std::string_view key, TeamExchange exchange) {
    const BodyTensor& tensor = tensor_of(step);
    add("    {} {} {}={}\n", name_of(exchange), quoted(tensor.name), key,
        print_lying(tensor.forms[static_cast<std::size_t>(step.form)]));
  }

  const PlanBody& body_;
  std::string text_;
};

std::vector<std::string> words_of_steps() {
  std::vector<std::string> words = {"compute"};
  for (int e = 1; e <= static_cast<int>(TeamExchange::kAllToAll); ++e) {
    words.emplace_back(name_of(static_cast<TeamExchange>(e)));
  }
  return words;
}

class BodyReader {
 public:
  explicit BodyReader(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  PlanBody run(const PlanLine& line, PlanLines& lines) {
    PlanLineReader in(line, diagnostics_, {"parts", "operators", "tensors"});
    body_.name = in.name("a body");
    read_numbers(in, "parts", ',', body_.parts);
    const std::int64_t operators = in.integer_value("operators");
    const std::int64_t tensors = in.integer_value("tensors");
    in.finish();
    while (const PlanLine* item = lines.next_item("")) read_item(*item, lines.nested());
    check_total(line, diagnostics_, "operators", operators,
                static_cast<std::int64_t>(body_.operators.size()));
    check_total(line, diagnostics_, "tensors", tensors,
                static_cast<std::int64_t>(body_.tensors.size()));
    return std::move(body_);
  }

 private:
  static void read_numbers(PlanLineReader& in, const char* key, char separator,
                           std::vector<std::int64_t>& numbers) {
    const std::string_view text = in.value(key);
    if (!in.ok()) return;
    std::optional<std::vector<std::int64_t>> read = parse_numbers(text, separator);
    if (!read) {
      return in.fail(fmt::format("{} is '{}', not numbers such as 5{}3", key, text, separator));
    }
    numbers = std::move(*read);
  }

  void read_item(const PlanLine& line, const std::vector<const PlanLine*>& below) {
    const std::string_view word = line.keyword();
    if (word == "forward" || word == "backward" || word == "step-end") {
      PlanLineReader(line, diagnostics_, {}).finish();
      for (const PlanLine* const step : below) {
        if (word == "forward") read_step(*step, true, body_.forward);
        if (word == "backward") read_step(*step, false, body_.backward);
        if (word == "step-end") read_step(*step, false, body_.step_end);
      }
      return;
    }
    if (word == "division") {
      read_division(line);
    } else if (word == "parameter" || word == "tensor") {
      read_tensor(line);
    } else {
      diagnostics_.error(
          keyword_range(line), fmt::format("unknown line '{}' in a body", word),
          did_you_mean(word, {"division", "parameter", "tensor", "forward", "backward", "step-end"},
                       "lines"));
    }
    if (below.empty()) return;
    diagnostics_.error(keyword_range(*below.front()),
                       fmt::format("'{}' is below '{}'", below.front()->keyword(), word),
                       "steps are below forward, backward or step-end");
  }

  void read_division(const PlanLine& line) {
    PlanLineReader in(line, diagnostics_, {"pieces"});
    const int index = in.reference('d', "a division");
    if (in.ok() && index != static_cast<int>(body_.divisions.size())) {
      in.fail(fmt::format("division d{} where d{} is expected", index, body_.divisions.size()),
              "divisions are named d0, d1, ... in order");
    }
    BodyDivision division;
    read_numbers(in, "pieces", ',', division.pieces);
    in.finish();
    body_.divisions.push_back(std::move(division));
  }

  void read_tensor(const PlanLine& line) {
    PlanLineReader in(line, diagnostics_, {"type", "shape", "gradient", "forms"});
    BodyTensor tensor;
    tensor.parameter = line.keyword() == "parameter";
    tensor.name = in.name("a tensor");
    tensor.type = in.type_value("type");
    const std::string_view shape = in.value("shape");
    if (auto extents = parse_extents(shape)) {
      tensor.shape = std::move(*extents);
    } else {
      in.fail(fmt::format("shape is '{}', not a shape such as samplesx16x64", shape));
    }
    if (!tensor.parameter) tensor.gradient = in.yes_no_value("gradient");
    const std::string_view forms = in.value("forms");
    if (auto read = parse_forms(forms)) {
      tensor.forms = std::move(*read);
    } else {
      in.fail(fmt::format("forms is '{}'", forms),
              "forms are such as copy, copy/sum, sum, part:1:d0 or part:2:d0:512+64, each behind "
              "the one that it is made of: sum,sum>copy");
    }
    in.finish();
    if (!in.ok()) return;
    if (!index_.emplace(tensor.name, static_cast<int>(body_.tensors.size())).second) {
      in.fail(fmt::format("the body has '{}' twice", tensor.name));
    }
    body_.tensors.push_back(std::move(tensor));
  }

  void read_step(const PlanLine& line, bool forward, std::vector<BodyStep>& steps) {
    if (line.keyword() != "compute") return read_exchange(line, forward, steps);
    if (!forward) return read_run(line, steps);
    PlanLineReader in(line, diagnostics_, {"split", "by", "bands", "gradient"});
    BodyOperator one;
    one.name = in.name("an operator");
    const std::string split = in.name_value("split");
    if (split != kWhole) one.split = split;
    if (in.next_is("by")) one.division = in.reference_value("by", 'd');
    if (in.next_is("bands")) read_numbers(in, "bands", '+', one.bands);
    if (in.next_is("gradient")) {
      const std::string_view gradient = in.value("gradient");
      one.gradient_sum = gradient == "sum";
      if (!one.gradient_sum) in.fail(fmt::format("gradient is '{}', not sum", gradient));
    }
    in.finish();
    const int index = static_cast<int>(body_.operators.size());
    body_.operators.push_back(std::move(one));
    if (steps.empty() || steps.back().is_exchange()) {
      steps.push_back({index, index});
    } else {
      steps.back().last = index;
    }
  }

  /// Reads "compute last .. first count=5".
  void read_run(const PlanLine& line, std::vector<BodyStep>& steps) {
    PlanLineReader in(line, diagnostics_, {"count"});
    const std::string last = in.name("an operator");
    if (in.word("'..'") != "..") in.fail("not '..' between last and first operator");
    const std::string first = in.name("an operator");
    const std::int64_t count = in.integer_value("count");
    in.finish();
    if (!in.ok()) return;
    const auto found = [&](const std::string& name) {
      return std::find_if(body_.operators.begin(), body_.operators.end(),
                          [&](const BodyOperator& one) { return one.name == name; });
    };
    const auto begin = found(first), end = found(last);
    if (begin == body_.operators.end() || end == body_.operators.end()) {
      return in.fail(fmt::format("the body's forward pass has no operator '{}'",
                                 begin == body_.operators.end() ? first : last));
    }
    if (end - begin + 1 != count) {
      return in.fail(fmt::format("count is {}, but {} operators are from '{}' back to '{}'", count,
                                 end - begin + 1, last, first));
    }
    steps.push_back({static_cast<int>(begin - body_.operators.begin()),
                     static_cast<int>(end - body_.operators.begin())});
  }

  void read_exchange(const PlanLine& line, bool forward, std::vector<BodyStep>& steps) {
    static const std::vector<std::string> kWords = words_of_steps();
    const std::string_view word = line.keyword();
    if (std::find(kWords.begin(), kWords.end(), word) == kWords.end()) {
      return diagnostics_.error(keyword_range(line), fmt::format("unknown step '{}'", word),
                                did_you_mean(word, kWords, "steps"));
    }
    const std::string key = forward ? "to" : "from";
    PlanLineReader in(line, diagnostics_, {key});
    const std::string name = in.name("a tensor");
    const std::string_view text = in.value(key);
    in.finish();
    if (!in.ok()) return;
    const auto index = index_.find(name);
    if (index == index_.end()) {
      return in.fail(fmt::format("the body lists no tensor '{}'", name),
                     "a tensor of several forms has a line of its own, above the steps");
    }
    const BodyTensor& tensor = body_.tensors[static_cast<std::size_t>(index->second)];
    const std::optional<BodyForm> lying = parse_lying(text);
    const auto form =
        std::find_if(tensor.forms.begin(), tensor.forms.end(),
                     [&](const BodyForm& one) { return lying && one.is_same(*lying); });
    if (form == tensor.forms.end()) {
      return in.fail(fmt::format("'{}' has no form '{}'", name, text),
                     fmt::format("its forms are {}", print_forms(tensor.forms)));
    }
    const int number = static_cast<int>(form - tensor.forms.begin());
    const TeamExchange exchange =
        forward ? forward_exchange(tensor, number) : backward_exchange(tensor, number);
    if (name_of(exchange) != word) {
      return in.fail(
          fmt::format("'{} {}': what {} form '{}' is '{}'", word, name,
                      forward ? "makes" : "brings the gradient on from", text, name_of(exchange)),
          fmt::format("the forms of '{}' are {}", name, print_forms(tensor.forms)));
    }
    steps.push_back({0, -1, index->second, number});
  }

  Diagnostics& diagnostics_;
  PlanBody body_;
  std::map<std::string, int, std::less<>> index_;  // of tensors by name
};

}  // namespace

std::string print_body(const PlanBody& body) { return BodyPrinter(body).run(); }

PlanBody read_body(const PlanLine& line, PlanLines& lines, Diagnostics& diagnostics) {
  return BodyReader(diagnostics).run(line, lines);
}

}  // namespace agpcs
