// SPDX-License-Identifier: Apache-2.0
// What parse_arguments says of a command line, or of a file of options, that is wrong.
#include "tests/support/temp_folder.h"
#include "tools/common/common.h"

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Returns what a command with options of all sorts says of `args`, of which it must refuse some.
std::string error_of(std::vector<std::string> args) {
  CLI::App app("A test.", "agpcs-test");
  int threads = 0, axis = 0;
  double part = 0, rate = 0;
  std::string transport;
  bool json = false;
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024));
  app.add_option("--part", part)->check(CLI::Range(0.0, 2.5));
  app.add_option("--transport", transport)->check(CLI::IsMember({"tcp", "gloo"}));
  app.add_option("--axis", axis);
  app.add_option("--rate", rate);
  app.add_flag("-j,--json", json);
  add_config_option(app);
  std::ostringstream out, err;
  const auto code = parse_arguments(app, std::move(args), {out, err});
  EXPECT_EQ(code.value_or(-1), 2);
  EXPECT_EQ(out.str(), "");
  return err.str();
}

TEST(ParseFault, NamesTheValueAndWhatItMayBe) {
  EXPECT_EQ(error_of({"--threads", "0"}),
            "agpcs-test: error: --threads: '0' is not a whole number from 1 to 1024\n"
            "  hint: see agpcs-test --help\n");
  EXPECT_EQ(error_of({"--part", "3"}),
            "agpcs-test: error: --part: '3' is not a number from 0 to 2.5\n"
            "  hint: see agpcs-test --help\n");
  EXPECT_EQ(error_of({"--axis", "1.5"}),
            "agpcs-test: error: --axis: '1.5' is not a whole number\n"
            "  hint: see agpcs-test --help\n");
  EXPECT_EQ(error_of({"--rate", "fast"}),
            "agpcs-test: error: --rate: 'fast' is not a number\n"
            "  hint: see agpcs-test --help\n");
}

TEST(ParseFault, SuggestsTheNearestWord) {
  EXPECT_EQ(error_of({"--transport", "loopback"}),
            "agpcs-test: error: --transport: 'loopback' is not one of tcp, gloo\n"
            "  hint: see agpcs-test --help\n");
  EXPECT_EQ(error_of({"--transport", "glo"}),
            "agpcs-test: error: --transport: 'glo' is not one of tcp, gloo\n"
            "  hint: did you mean 'gloo'? see agpcs-test --help\n");
}

TEST(ParseFault, RefusesWhatIsNoValueOfAFlag) {
  for (const std::string value : {"3", "maybe"}) {
    EXPECT_EQ(error_of({"--json=" + value}), "agpcs-test: error: --json: '" + value +
                                                 "' is not true or false\n"
                                                 "  hint: see agpcs-test --help\n");
  }
}

TEST(ParseFault, SaysThatAValueIsMissingOrOneTooMany) {
  EXPECT_EQ(error_of({"--axis"}),
            "agpcs-test: error: --axis needs a value\n  hint: see agpcs-test --help\n");
  EXPECT_EQ(error_of({"--axis", "1", "--axis", "2"}),
            "agpcs-test: error: --axis takes one value, is given 2\n"
            "  hint: see agpcs-test --help\n");
}

TEST(ParseFault, NamesTheLineOfAFileOfOptions) {
  const TempFolder temp;
  const std::string file = temp / "settings.ini";
  std::ofstream(file) << "axis=2\n  threads = 0\n";
  EXPECT_EQ(error_of({"--config", file}),
            file +
                ":2: error: threads: '0' is not a whole number from 1 to 1024\n"
                "  hint: see agpcs-test --help\n");
  EXPECT_EQ(error_of({"--config", file, "--threads=-1"}),
            "agpcs-test: error: --threads: '-1' is not a whole number from 1 to 1024\n"
            "  hint: see agpcs-test --help\n");
  std::ofstream(file) << "json=2\n";
  EXPECT_EQ(error_of({"--config", file}), file +
                                              ":1: error: json: '2' is not true or false\n"
                                              "  hint: see agpcs-test --help\n");
  std::ofstream(file) << "axis=2\ntranport=tcp\n";
  EXPECT_EQ(error_of({"--config", file}),
            file +
                ":2: error: unknown option 'tranport'\n"
                "  hint: did you mean 'transport'? see agpcs-test --help\n");
}

}  // namespace
}  // namespace agpcs
