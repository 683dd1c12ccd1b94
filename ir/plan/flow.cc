// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/flow.h"

#include "ir/plan/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

constexpr std::string_view kAdd = "add", kCopy = "copy";
constexpr std::array<std::pair<FlowOrder, std::string_view>, 2> kOrders = {{
    {FlowOrder::kReceivers, "receivers"},
    {FlowOrder::kRounds, "rounds"},
}};

/// Reads the words of one line.
class StepReader {
 public:
  StepReader(const PlanLine& line, Diagnostics& diagnostics, int sub_chunks, const PlanStage& stage)
      : in_(line, diagnostics, {"after"}), sub_chunks_(sub_chunks), stage_(stage) {}

  FlowStep run(bool gathers) {
    FlowStep step;
    step.gathers = gathers;
    if (in_.next_is("after")) read_waits(step.after);
    while (in_.ok() && (step.messages.empty() || !in_.at_end())) read_pair(step.messages);
    return step;
  }

 private:
  // Reads "9>1,10>2".
  void read_waits(std::vector<FlowWait>& waits) {
    for (const std::string_view word : split_outside_quotes(in_.value("after"), ',')) {
      const std::size_t arrow = word.find('>');
      if (arrow == std::string_view::npos) {
        return in_.fail(fmt::format("'{}' is no wait such as 9>1", word),
                        "the rank that is waited for > the rank that waits");
      }
      waits.push_back({member(word, word.substr(0, arrow)), member(word, word.substr(arrow + 1))});
    }
  }

  // Reads "0>1:3.0,3.1".
  void read_pair(std::vector<FlowMessage>& messages) {
    const std::string_view word = in_.word("a message such as 0>1:3");
    if (!in_.ok()) return;
    const std::size_t arrow = word.find('>'), colon = word.find(':');
    if (arrow == std::string_view::npos || colon == std::string_view::npos || arrow > colon) {
      return in_.fail(fmt::format("'{}' is no message such as 0>1:3", word),
                      "sender > receiver : the chunks of these ranks");
    }
    const int from = member(word, word.substr(0, arrow));
    const int to = member(word, word.substr(arrow + 1, colon - arrow - 1));
    for (const std::string_view chunk : split_outside_quotes(word.substr(colon + 1), ',')) {
      messages.push_back({from, to, chunk_of(word, chunk)});
    }
  }

  int member(std::string_view word, std::string_view text) {
    const std::optional<std::int64_t> rank = parse_integer(text);
    const auto it =
        rank ? std::find(stage_.ranks.begin(), stage_.ranks.end(), *rank) : stage_.ranks.end();
    if (it != stage_.ranks.end()) return static_cast<int>(it - stage_.ranks.begin());
    in_.fail(fmt::format("'{}' in '{}' is no rank of stage {}", text, word, stage_.name),
             fmt::format("its ranks are {}", print_ranks(stage_.ranks)));
    return 0;
  }

  // Reads "3" or "3.1".
  int chunk_of(std::string_view word, std::string_view text) {
    const std::size_t dot = text.find('.');
    const int owner = member(word, text.substr(0, dot));
    if (sub_chunks_ == 1 && dot == std::string_view::npos) return owner;
    const auto sub =
        dot == std::string_view::npos ? std::nullopt : parse_integer(text.substr(dot + 1));
    if (sub_chunks_ == 1 || !sub || *sub < 0 || *sub >= sub_chunks_) {
      in_.fail(fmt::format("'{}' in '{}' is no chunk", text, word),
               sub_chunks_ == 1 ? "a chunk is named by its rank"
                                : fmt::format("sub-chunks are numbered {0}.0 to {0}.{1}",
                                              text.substr(0, dot), sub_chunks_ - 1));
      return 0;
    }
    return owner * sub_chunks_ + static_cast<int>(*sub);
  }

  PlanLineReader in_;
  const int sub_chunks_;
  const PlanStage& stage_;
};

}  // namespace

std::string_view name_of(FlowOrder order) {
  return std::find_if(kOrders.begin(), kOrders.end(),
                      [&](const auto& entry) { return entry.first == order; })
      ->second;
}

std::optional<FlowOrder> flow_order_named(std::string_view name) {
  for (const auto& [order, word] : kOrders) {
    if (word == name) return order;
  }
  return std::nullopt;
}

std::vector<int> rounds_of(const PlanFlow& flow) {
  std::vector<int> rounds;
  std::set<std::pair<int, int>> came;  // received in the reduce-scatter step before: member, chunk
  for (const FlowStep& step : flow.steps) {
    const bool joins =
        step.gathers && step.after.empty() && !came.empty() &&
        std::none_of(step.messages.begin(), step.messages.end(), [&](const FlowMessage& m) {
          return came.count({m.from, m.chunk}) > 0;
        });
    rounds.push_back(rounds.empty() ? 0 : rounds.back() + (joins ? 0 : 1));
    came.clear();
    if (step.gathers) continue;
    for (const FlowMessage& m : step.messages) came.emplace(m.to, m.chunk);
  }
  return rounds;
}

ElementRange part_of(std::int64_t elements, std::int64_t parts, std::int64_t index) {
  const std::int64_t begin = elements / parts * index + std::min(index, elements % parts);
  return {begin, begin + elements / parts + (index < elements % parts ? 1 : 0)};
}

int read_sub_chunks(PlanLineReader& in) {
  const std::int64_t sub_chunks = in.integer_value("sub-chunks");
  if (in.ok() && (sub_chunks < 1 || sub_chunks > kMaxSubChunks)) {
    in.fail(fmt::format("sub-chunks is {}, not 1 to {}", sub_chunks, kMaxSubChunks));
  }
  return static_cast<int>(sub_chunks);
}

FlowOrder read_flow_order(PlanLineReader& in) {
  const std::string_view text = in.value("order");
  if (const auto named = flow_order_named(text)) return *named;
  std::vector<std::string> names;
  for (const auto& entry : kOrders) names.emplace_back(entry.second);
  in.fail(fmt::format("unknown order '{}'", text), did_you_mean(text, names, "orders"));
  return FlowOrder::kReceivers;
}

std::string print_flow_step(const FlowStep& step, int sub_chunks, const std::vector<int>& ranks) {
  const auto rank_of = [&](int member) { return ranks[static_cast<std::size_t>(member)]; };
  std::string text = fmt::format("  {}", step.gathers ? kCopy : kAdd);
  const auto out = std::back_inserter(text);
  std::string_view separator = " after=";
  for (const FlowWait& wait : step.after) {
    fmt::format_to(out, "{}{}>{}", std::exchange(separator, ","), rank_of(wait.from),
                   rank_of(wait.to));
  }
  int from = -1, to = -1;
  for (const FlowMessage& message : step.messages) {
    if (message.from == from && message.to == to) {
      text += ',';
    } else {
      from = message.from;
      to = message.to;
      fmt::format_to(out, " {}>{}:", rank_of(from), rank_of(to));
    }
    fmt::format_to(out, "{}", rank_of(message.chunk / sub_chunks));
    if (sub_chunks > 1) fmt::format_to(out, ".{}", message.chunk % sub_chunks);
  }
  return text;
}

FlowStep parse_flow_step(const PlanLine& line, Diagnostics& diagnostics, int sub_chunks,
                         const PlanStage& stage) {
  const bool gathers = line.keyword() == kCopy;
  if (gathers || line.keyword() == kAdd) {
    return StepReader(line, diagnostics, sub_chunks, stage).run(gathers);
  }
  diagnostics.error(
      {line.number, line.tokens[0].column, static_cast<int>(line.keyword().size())},
      fmt::format("unknown phase '{}'", line.keyword()),
      did_you_mean(line.keyword(), {std::string(kAdd), std::string(kCopy)}, "phases"));
  return {};
}

}  // namespace agpcs
