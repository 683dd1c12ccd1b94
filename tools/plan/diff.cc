// SPDX-License-Identifier: Apache-2.0
// Compares plans by their texts, section by section. A section is a line that is not indented, with
// the indented lines below it. So no difference between two plans can go unseen.
#include "ir/base/units.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "tools/plan/views.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::size_t kMostLines = 12;  // in one section; the rest is only counted

using Words = std::vector<std::string>;

Words split(std::string_view line, char separator) {
  Words words;
  while (true) {
    const std::size_t end = line.find(separator);
    words.emplace_back(line.substr(0, end));
    if (end == std::string_view::npos) return words;
    line.remove_prefix(end + 1);
  }
}

struct Section {
  std::string name;  ///< "stage s0", "training"
  std::string head;  ///< the whole first line
  Words items;       ///< without indentation
};

std::vector<Section> sections_of(const Plan& plan) {
  std::vector<Section> sections;
  for (const std::string& line : split(print_plan(plan), '\n')) {
    if (line.empty()) continue;
    if (line[0] == ' ') {
      sections.back().items.push_back(line.substr(2));
      continue;
    }
    const Words words = split(line, ' ');
    const bool named =
        words.size() > 1 && (words[0] == "stage" || words[0] == "body" || words[0] == "cut" ||
                             words[0] == "flow" || words[0] == "bucket" || words[0] == "program");
    sections.push_back({named ? words[0] + " " + words[1] : words[0], line, {}});
  }
  for (const Program& program : plan.programs) {
    const std::string name = "program " + names_of_stages(plan, program.stage);
    const auto own = std::find_if(sections.begin(), sections.end(),
                                  [&](const Section& section) { return section.name == name; });
    own->head += fmt::format(" in-flight={}", most_in_flight_of_a_stage(plan, program));
  }
  return sections;
}

/// Returns "samples 16x4 -> 20x4, ..." for key=value words that differ at the same position.
std::string changed_words(const std::string& a, const std::string& b) {
  const Words from = split(a, ' '), to = split(b, ' ');
  if (from.size() != to.size()) return a + " -> " + b;
  std::string text;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i] == to[i]) continue;
    const std::size_t key = from[i].find('=');
    const bool same_key =
        key != std::string::npos && to[i].substr(0, key + 1) == from[i].substr(0, key + 1);
    if (!text.empty()) text += ", ";
    text += same_key ? fmt::format("{} {} -> {}", from[i].substr(0, key), from[i].substr(key + 1),
                                   to[i].substr(key + 1))
                     : from[i] + " -> " + to[i];
  }
  return text;
}

/// Returns the lines of a common subsequence of `a` and `b`, as pairs of indices. It takes equal
/// ends at once, and between them the longest common subsequence if that is affordable.
std::vector<std::pair<std::size_t, std::size_t>> common_lines(const Words& a, const Words& b) {
  std::size_t head = 0, tail = 0;
  while (head < a.size() && head < b.size() && a[head] == b[head]) ++head;
  while (tail < a.size() - head && tail < b.size() - head &&
         a[a.size() - 1 - tail] == b[b.size() - 1 - tail]) {
    ++tail;
  }
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t i = 0; i < head; ++i) pairs.emplace_back(i, i);
  const std::size_t n = a.size() - head - tail, m = b.size() - head - tail;
  if (n * m <= 16'000'000) {
    std::vector<std::vector<int>> length(n + 1, std::vector<int>(m + 1));
    for (std::size_t i = n; i-- > 0;) {
      for (std::size_t j = m; j-- > 0;) {
        length[i][j] = a[head + i] == b[head + j] ? length[i + 1][j + 1] + 1
                                                  : std::max(length[i + 1][j], length[i][j + 1]);
      }
    }
    for (std::size_t i = 0, j = 0; i < n && j < m;) {
      if (a[head + i] == b[head + j]) {
        pairs.emplace_back(head + i++, head + j++);
      } else {
        (length[i + 1][j] >= length[i][j + 1] ? i : j) += 1;
      }
    }
  }
  for (std::size_t i = tail; i > 0; --i) pairs.emplace_back(a.size() - i, b.size() - i);
  return pairs;
}

/// Returns removed lines with '-' and added ones with '+', at most kMostLines.
std::string changed_lines(const Words& a, const Words& b) {
  Words changes;
  std::size_t i = 0, j = 0;
  auto pairs = common_lines(a, b);
  pairs.emplace_back(a.size(), b.size());
  for (const auto& [next_a, next_b] : pairs) {
    for (; i < next_a; ++i) changes.push_back("- " + a[i]);
    for (; j < next_b; ++j) changes.push_back("+ " + b[j]);
    ++i;
    ++j;
  }
  std::string text;
  for (std::size_t k = 0; k < std::min(changes.size(), kMostLines); ++k) {
    text += "    " + changes[k] + "\n";
  }
  if (changes.size() > kMostLines) {
    text += fmt::format("    ... and {} more lines\n", changes.size() - kMostLines);
  }
  return text;
}

std::string diff_section(const Section& a, const Section& b) {
  std::string text = fmt::format("  {}", a.name);
  if (a.head != b.head) text += ": " + changed_words(a.head, b.head);
  return text + "\n" + changed_lines(a.items, b.items);
}

/// Returns "  step 123ms -> 110ms (-10.6%)".
std::string diff_expect(const Plan& a, const Plan& b) {
  std::map<std::string, const Expectation*> before;
  for (const Expectation& e : a.expect) before[e.name] = &e;
  std::string text;
  for (const Expectation& e : b.expect) {
    const auto it = before.find(e.name);
    const std::string now = figure(e.value, e.unit);
    if (it == before.end()) {
      text += fmt::format("  {} {} (new)\n", e.name, now);
      continue;
    }
    const std::string was = figure(it->second->value, e.unit);
    if (was != now) {
      text += fmt::format("  {} {} -> {}", e.name, was, now);
      const double change = (e.value / it->second->value - 1) * 100;
      if (std::isfinite(change)) text += fmt::format(" ({:+.1f}%)", change);
      text += '\n';
    }
    before.erase(it);
  }
  for (const Expectation& e : a.expect) {
    if (before.contains(e.name)) {
      text += fmt::format("  {} {} (gone)\n", e.name, figure(e.value, e.unit));
    }
  }
  return text;
}

std::string diff_decisions(const Plan& a, const Plan& b) {
  const std::vector<Section> before = sections_of(a), after = sections_of(b);
  const auto find = [](const std::vector<Section>& list, const std::string& name) {
    return std::find_if(list.begin(), list.end(), [&](const Section& s) { return s.name == name; });
  };
  std::string text;
  for (const Section& section : before) {
    if (section.name == "expect" || section.name == "made-by") continue;
    const auto other = find(after, section.name);
    if (other == after.end()) {
      text += fmt::format("  {} is gone: {}\n", section.name, section.head);
    } else if (other->head != section.head || other->items != section.items) {
      text += diff_section(section, *other);
    }
  }
  for (const Section& section : after) {
    if (section.name == "expect" || find(before, section.name) != before.end()) continue;
    text += fmt::format("  {} is new: {}\n", section.name, section.head);
  }
  return text;
}

std::string made_by_line(const Plan& plan) { return sections_of(plan).at(1).head; }

/// Returns `b` with the model name of `a` if both are plans of the same model.
Plan named_alike(const Plan& a, Plan b) {
  if (a.model_digest == b.model_digest) b.model = a.model;
  return b;
}

/// Returns how the making of two plans of one model differs: "seed 1 -> 2, model name a -> b".
std::string diff_making(const Plan& a, const Plan& b) {
  std::string text = changed_words(made_by_line(a), made_by_line(b));
  if (a.model == b.model || a.model_digest != b.model_digest) return text;
  if (!text.empty()) text += ", ";
  return text + fmt::format("model name {} -> {}", a.model, b.model);
}

}  // namespace

PlanDiff diff_plans(const Plan& a, const Plan& b) {
  PlanDiff diff;
  const std::string decisions = diff_decisions(a, named_alike(a, b));
  const std::string expectations = diff_expect(a, b), made_by = diff_making(a, b);
  diff.decisions = !decisions.empty();
  diff.same = decisions.empty() && expectations.empty() && made_by.empty();
  if (diff.same) {
    diff.text = "the plans are the same\n";
    return diff;
  }
  diff.text = diff.decisions ? "decisions differ\n" + decisions : "the decisions are the same\n";
  if (!made_by.empty()) diff.text += fmt::format("made differently\n  {}\n", made_by);
  if (!expectations.empty()) diff.text += "expectations differ\n" + expectations;
  return diff;
}

}  // namespace agpcs
