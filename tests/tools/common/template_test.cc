// SPDX-License-Identifier: Apache-2.0
#include "tools/common/template.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

TEST(Template, ValuesAreEscapedUnlessTheyAreHtml) {
  const Json values = {{"a", "<b> & \"c\""}, {"n", 3}};
  EXPECT_EQ(fill_template("{{a}} {{{a}}} {{n}} } {", values),
            "&lt;b&gt; &amp; &quot;c&quot; <b> & \"c\" 3 } {");
}

TEST(Template, APartIsRepeatedForEachElement) {
  const Json values = {
      {"rows", {{{"name", "x"}}, {{"name", "y"}}}}, {"unit", "s"}, {"none", Json::array()}};
  EXPECT_EQ(fill_template("{{#rows}}{{name}}{{unit}},{{/rows}}{{#none}}{{name}}{{/none}}.", values),
            "xs,ys,.");
  EXPECT_EQ(fill_template("{{#l}}({{.}}){{/l}}", {{"l", {1, "<"}}}), "(1)(&lt;)");
}

TEST(Template, APartIsLeftOutWhereThereIsNothing) {
  const std::string part = "a{{#x}}[{{#rows}}{{/rows}}{{x}}]{{/x}}b";
  for (const Json& nothing : {Json(), Json(false), Json("")}) {
    EXPECT_EQ(fill_template(part, {{"x", nothing}, {"rows", nullptr}}), "ab");
  }
  EXPECT_EQ(fill_template(part, {{"x", "y"}, {"rows", nullptr}}), "a[y]b");
  EXPECT_EQ(fill_template("{{#x}}yes{{/x}}", {{"x", true}}), "yes");
  EXPECT_EQ(fill_template("{{#x}}{{y}}{{/x}}", {{"x", {{"y", 1}}}, {"y", 2}}), "1");
}

TEST(Template, ATagOfAPartAloneOnItsLineLeavesNothing) {
  EXPECT_EQ(fill_template("a\n{{#x}}\n- {{.}}\n{{/x}}\nb {{#x}}\n{{/x}}\n", {{"x", {1, 2}}}),
            "a\n- 1\n- 2\nb \n\n");
}

TEST(TemplateDeathTest, AWrongTemplateIsABug) {
  EXPECT_DEATH(fill_template("{{a}}", Json::object()), "the template's 'a' has no value");
  EXPECT_DEATH(fill_template("{{a}}", {{"a", nullptr}}), "a value of the template is null");
  EXPECT_DEATH(fill_template("{{#a}}", {{"a", 1}}), "the template does not close 'a'");
  EXPECT_DEATH(fill_template("{{#a}}", {{"a", false}}), "the template does not close 'a'");
  EXPECT_DEATH(fill_template("{{#a}}{{/b}}", {{"a", 1}}), "the template closes 'b' inside of 'a'");
  EXPECT_DEATH(fill_template("{{a", {{"a", 1}}), "a tag of the template has no end");
}

}  // namespace
}  // namespace agpcs
