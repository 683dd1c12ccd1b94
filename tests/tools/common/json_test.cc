// SPDX-License-Identifier: Apache-2.0
#include "tools/common/json.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

TEST(Json, KeepsTheOrderOfKeysAndEmptyBracketsOnTheirLine) {
  EXPECT_EQ(json_text({{"b", Json::array()}, {"a", Json::object()}, {"c", 0.1}, {"d", {1, true}}}),
            "{\n  \"b\": [],\n  \"a\": {},\n  \"c\": 0.1,\n  \"d\": [\n    1,\n    true\n  ]\n}\n");
}

TEST(Json, StringsAreEscapedAndWrongBytesReplaced) {
  EXPECT_EQ(json_line("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\n\\u0001\"");
  EXPECT_EQ(json_line("\xc3\xa4 \xff!"), "\"\xc3\xa4 \xef\xbf\xbd!\"");
  EXPECT_EQ(json_line("\xc3"), "\"\xef\xbf\xbd\"");
}

TEST(Json, NumbersReadBackAndThoseThatAreNotFiniteAreNull) {
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(json_line({0.1, 1e-9, 1e300, 2.0, 18446744073709551615u, infinite, -infinite}),
            "[0.1, 1e-09, 1e+300, 2.0, 18446744073709551615, null, null]");
  EXPECT_EQ(json_line(std::numeric_limits<double>::quiet_NaN()), "null");
}

TEST(Json, ALineHasABlankAfterEachCommaAndColon) {
  EXPECT_EQ(json_line({{"a", {1, 2}}, {"b", Json::object()}, {"c", "x,\ny"}}),
            "{\"a\": [1, 2], \"b\": {}, \"c\": \"x,\\ny\"}");
}

TEST(Json, IsMadeFromRangesPairsAndOptionals) {
  const std::vector<int> numbers = {1, 2};
  EXPECT_EQ(json_line(json_array(numbers, [](int n) { return 2 * n; })), "[2, 4]");
  EXPECT_EQ(json_line(json_array(std::vector<int>(), [](int n) { return n; })), "[]");
  const std::vector<std::pair<std::string, int>> pairs = {{"z", 1}, {"a", 2}};
  EXPECT_EQ(json_line(json_object(pairs)), "{\"z\": 1, \"a\": 2}");
  EXPECT_EQ(json_line(json_object(std::vector<std::pair<std::string, int>>())), "{}");
  EXPECT_EQ(json_line(json_or_null(std::optional<double>(0.5))), "0.5");
  EXPECT_EQ(json_line(json_or_null(std::optional<double>())), "null");
}

std::string read(const std::string& text, std::string_view skipped = {}) {
  const Result<Json> json = parse_json(text, {"a.json", "a program writes it"}, skipped);
  return json.ok() ? json_line(*json) : json.status().message();
}

TEST(ParseJson, ReadsADocument) {
  EXPECT_EQ(read(" {\"b\": [1, 2.5, \"\\u00e4\"], \"a\": null}\n"),
            "{\"b\": [1, 2.5, \"\xc3\xa4\"], \"a\": null}");
}

TEST(ParseJson, LeavesOutTheSkippedMemberOfTheOutermostObject) {
  EXPECT_EQ(read(R"({"a": {"x": [1], "y": {"a": 2}}, "b": {"a": 3}, "c": 4})", "a"),
            R"({"b": {"a": 3}, "c": 4})");
  EXPECT_EQ(read(R"([{"a": 1}])", "a"), R"([{"a": 1}])");
}

TEST(ParseJsonList, GivesEachElementAwayAndKeepsTheRest) {
  std::vector<std::string> taken;
  const Result<Json> json = parse_json_list(
      R"({"a": [{"a": [1]}, [2, {"b": 3}], 4], "b": {"a": [{"c": 5}]}, "d": [{"e": 6}]})",
      {"a.json", "a program writes it"}, "a",
      [&](const Json& element) { taken.push_back(json_line(element)); });
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ(taken, (std::vector<std::string>{R"({"a": [1]})", R"([2, {"b": 3}])"}));
  EXPECT_EQ(json_line(*json), R"({"a": [4], "b": {"a": [{"c": 5}]}, "d": [{"e": 6}]})");
}

TEST(ParseJson, SaysWhereATextIsNotJson) {
  const std::string hint = "  hint: a program writes it";
  EXPECT_EQ(
      read(""),
      "a.json:1:1: error: not JSON: unexpected end of input; expected '[', '{', or a literal\n" +
          hint);
  EXPECT_EQ(read("{\n  \"a\": nul}\n"),
            "a.json:2:11: error: not JSON: invalid literal\n"
            "    \"a\": nul}\n"
            "            ^\n" +
                hint);
  EXPECT_EQ(read("{\"a\": 1,}"),
            "a.json:1:9: error: not JSON: unexpected '}'; expected string literal\n"
            "    {\"a\": 1,}\n"
            "            ^\n" +
                hint);
  EXPECT_EQ(read("[1] 2"),
            "a.json:1:5: error: not JSON: unexpected number literal; expected end of input\n"
            "    [1] 2\n"
            "        ^\n" +
                hint);
}

TEST(ParseJson, ChecksTheSkippedMemberToo) {
  EXPECT_EQ(read("{\"a\": [1, 2", "a"),
            "a.json:1:12: error: not JSON: unexpected end of input; expected ']'\n"
            "    {\"a\": [1, 2\n"
            "               ^\n"
            "  hint: a program writes it");
}

TEST(ParseJson, BytesThatAreNoTextAreAnError) {
  EXPECT_EQ(read("\"\xff\x1b\""),
            "a.json:1:2: error: not JSON: invalid string: ill-formed UTF-8 byte\n"
            "    \"\xff?\"\n"
            "     ^\n"
            "  hint: a program writes it");
}

TEST(ParseJson, RefusesWhatIsTooDeepAndNumbersThatAreTooLarge) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + "1" + std::string(depth, ']');
  };
  EXPECT_EQ(read(nested(kMostJsonDepth)), nested(kMostJsonDepth));
  const std::string too_deep =
      "a.json: error: more than 64 brackets inside one another\n  hint: a program writes it";
  EXPECT_EQ(read(nested(kMostJsonDepth + 1)), too_deep);
  EXPECT_EQ(read("{\"a\": " + nested(1'000'000) + "}", "a"), too_deep);
  EXPECT_EQ(read("[1e999]"),
            "a.json: error: a number is too large for a double\n  hint: a program writes it");
}

}  // namespace
}  // namespace agpcs
