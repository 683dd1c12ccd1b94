// SPDX-License-Identifier: Apache-2.0
// A plan with a line removed, doubled, moved or changed is refused, or is another sound plan whose
// text is the changed one: nothing in a plan's text is ignored.
#include "ir/base/rng.h"
#include "tests/codegen/test_models.h"

#include <agpcs/plan.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

using Lines = std::vector<std::string>;

std::string joined(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

class PlanMutation : public ::testing::TestWithParam<std::size_t> {
 protected:
  std::string text_ = print_plan(plan_of_strategy(strategies()[GetParam()].second));
  Lines lines_ = split(text_, '\n');

  /// Refused, with a message that names the file; or sound and spelled like that.
  static bool is_refused(const std::string& text) {
    const Result<Plan> plan = parse_plan(text, "m.plan");
    if (!plan.ok()) {
      EXPECT_EQ(plan.status().code(), StatusCode::kInvalidInput);
      EXPECT_EQ(plan.status().message().substr(0, 6), "m.plan") << plan.status().message();
      return true;
    }
    EXPECT_EQ(print_plan(*plan), text);
    EXPECT_TRUE(verify_plan(*plan).ok());
    return false;
  }
};

TEST_P(PlanMutation, ThePlanItselfIsAccepted) { EXPECT_FALSE(is_refused(text_)); }

TEST_P(PlanMutation, EveryDeletedLineIsRefused) {
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    Lines lines = lines_;
    lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_TRUE(is_refused(joined(lines))) << "without line " << i + 1 << ": " << lines_[i];
  }
}

TEST_P(PlanMutation, EveryDoubledLineIsRefused) {
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    Lines lines = lines_;
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(i), lines_[i]);
    EXPECT_TRUE(is_refused(joined(lines))) << "line " << i + 1 << " twice: " << lines_[i];
  }
}

TEST_P(PlanMutation, SwappedNeighboursAreRefusedOrAnotherPlan) {
  int refused = 0, accepted = 0;
  for (std::size_t i = 0; i + 1 < lines_.size(); ++i) {
    if (lines_[i] == lines_[i + 1]) continue;
    Lines lines = lines_;
    std::swap(lines[i], lines[i + 1]);
    ++(is_refused(joined(lines)) ? refused : accepted);
  }
  EXPECT_GT(refused, accepted);
}

TEST_P(PlanMutation, EveryTruncationIsRefused) {
  for (std::size_t length = 0; length < text_.size(); length += length < 600 ? 1 : 13) {
    EXPECT_TRUE(is_refused(text_.substr(0, length))) << length;
  }
}

/// Changes one word: drops it, moves a number, changes a character, or takes another word.
std::string changed_word(const Lines& lines, const std::string& word, Rng& rng) {
  switch (rng.below(4)) {
    case 0:
      return "";
    case 1: {
      const std::size_t digit = word.find_first_of("0123456789");
      if (digit == std::string::npos) return word + "0";
      std::string other = word;
      other[digit] = static_cast<char>('0' + (other[digit] - '0' + 1 + rng.below(9)) % 10);
      return other;
    }
    case 2: {
      std::string other = word;
      other[rng.below(other.size())] = static_cast<char>(' ' + rng.below(95));
      return other;
    }
    default: {
      const Lines words = split(lines[rng.below(lines.size())], ' ');
      return words[rng.below(words.size())];
    }
  }
}

TEST_P(PlanMutation, AChangedWordIsRefusedOrAnotherPlan) {
  Rng rng = Rng(5).fork(strategies()[GetParam()].first);
  int refused = 0;
  constexpr int kTries = 1000;
  for (int i = 0; i < kTries; ++i) {
    Lines lines = lines_;
    std::string& line = lines[rng.below(lines.size())];
    const bool indented = line[0] == ' ';
    Lines words = split(line.substr(indented ? 2 : 0), ' ');
    std::string& word = words[rng.below(words.size())];
    word = changed_word(lines_, word, rng);
    line = indented ? "  " : "";
    for (std::size_t w = 0; w < words.size(); ++w) line += (w == 0 ? "" : " ") + words[w];
    if (joined(lines) != text_ && is_refused(joined(lines))) ++refused;
  }
  EXPECT_GT(refused, kTries / 2);
}

TEST_P(PlanMutation, RandomBytesInItAreNotAccepted) {
  Rng rng = Rng(6).fork(strategies()[GetParam()].first);
  for (int i = 0; i < 1000; ++i) {
    std::string text = text_;
    const char byte = static_cast<char>(rng.below(32));
    if (byte == '\n') continue;
    text[rng.below(text.size())] = byte;
    EXPECT_TRUE(is_refused(text)) << text;
  }
}

std::string name_of_case(const ::testing::TestParamInfo<std::size_t>& info) {
  std::string name;
  for (const char c : strategies()[info.param].first) name += c == ' ' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Strategies, PlanMutation,
                         ::testing::Range(std::size_t{0}, strategies().size()), name_of_case);

}  // namespace
}  // namespace agpcs
