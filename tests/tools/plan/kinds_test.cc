// SPDX-License-Identifier: Apache-2.0
// `agpcs-plan kinds`.
#include "tools/plan/kinds.h"

#include "tests/tools/plan/says.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

constexpr char kSmall[] = R"(sources:
  sheet: "Maker, data sheet, 2020"
architectures:
  one:
    sheet: {lanes: {fp32: 64}, process: TSMC N7, l1_cache: 128KiB}
accelerators:
  G1-16GB:
    architecture: one
    note: the small one
    sheet:
      memory: 16GiB
      memory_type: HBM2
      memory_bandwidth: 1638.4GB/s
      peak: {fp32: 15.7TFLOPS}
      processors: 80
      boost_clock: 1530MHz
      board_power: 300W
      l2_cache: 6MiB
      links: [wire]
  G2:
    architecture: one
    sheet: {memory: 8GiB, memory_type: GDDR6, memory_bandwidth: 300GB/s, peak: {bf16: 432TFLOPS}}
protocols:
  fast:
    sheet: {ll_start: 3us, simple_start: 8us, ll_latency: 1us, simple_latency: 4us, ll_rate: 0.25}
networks:
  wire:
    kind: nvlink
    protocols: fast
    sheet: {bandwidth: 150GB/s, latency: 3.4us, efficiency: 0.8}
  air:
    kind: ethernet
    note: not measured
    sheet: {bandwidth: 1Gbit/s}
)";

class Kinds : public ::testing::Test {
 protected:
  Kinds() : catalog_(*parse_catalog(kSmall, "k.yaml")) {}
  ShownKinds select(const std::string& name) const { return *select_kinds(catalog_, name); }
  Catalog catalog_;
};

TEST_F(Kinds, AreTables) {
  EXPECT_EQ(kinds_text(select("")),
            "accelerator     GiB  memory    GB/s  fp32  tf32  fp16  bf16  procs   MHz    W  "
            "process\n"
            "G1-16GB          16  HBM2    1638.4  15.7     -     -     -     80  1530  300  TSMC "
            "N7\n"
            "G2                8  GDDR6      300     -     -     -   432      -     -    -  TSMC "
            "N7\n"
            "fp32 to bf16: TFLOPS, dense, accumulating in fp32\n"
            "\n"
            "network         kind       GB/s  reached  latency\n"
            "wire            nvlink      150      0.8    3.4us\n"
            "air             ethernet  0.125        -        -\n"
            "GB/s: nominal, in each direction, of a device's port or of a NIC\n"
            "reached: the part of it that large messages get\n"
            "\n"
            "with the name of one: each figure with its source\n");
}

TEST_F(Kinds, OneHasItsSources) {
  EXPECT_EQ(kinds_text(select("G1-16GB")),
            "the small one\n"
            "figure            value       source\n"
            "memory            16GiB       sheet\n"
            "memory_type       HBM2        sheet\n"
            "memory_bandwidth  1638.4GB/s  sheet\n"
            "peak fp32         15.7TFLOPS  sheet\n"
            "processors        80          sheet\n"
            "boost_clock       1530MHz     sheet\n"
            "board_power       300W        sheet\n"
            "l2_cache          6MiB        sheet\n"
            "links             wire        sheet\n"
            "lanes fp32        64          sheet\n"
            "process           TSMC N7     sheet\n"
            "l1_cache          128KiB      sheet\n"
            "\n"
            "sources\n"
            "  sheet\n"
            "    Maker, data sheet, 2020\n");
  EXPECT_EQ(kinds_text(select("wir")),
            "figure               value    source\n"
            "bandwidth            150GB/s  sheet\n"
            "latency              3.4us    sheet\n"
            "efficiency           0.8      sheet\n"
            "fast ll_start        3us      sheet\n"
            "fast simple_start    8us      sheet\n"
            "fast ll_latency      1us      sheet\n"
            "fast simple_latency  4us      sheet\n"
            "fast ll_rate         0.25     sheet\n"
            "\n"
            "sources\n"
            "  sheet\n"
            "    Maker, data sheet, 2020\n");
}

TEST_F(Kinds, ArePrintedAsJson) {
  EXPECT_EQ(kinds_json(select("g1")),
            "{\n"
            "  \"accelerators\": [\n"
            "    {\n"
            "      \"name\": \"G1-16GB\",\n"
            "      \"architecture\": \"one\",\n"
            "      \"memory_bytes\": 17179869184,\n"
            "      \"memory_type\": \"HBM2\",\n"
            "      \"memory_bytes_per_second\": 1638400000000.0,\n"
            "      \"peak_flops\": {\n"
            "        \"fp32\": 15700000000000.0\n"
            "      },\n"
            "      \"processors\": 80,\n"
            "      \"lanes\": {\n"
            "        \"fp32\": 64.0\n"
            "      },\n"
            "      \"boost_hertz\": 1530000000.0,\n"
            "      \"board_watts\": 300.0,\n"
            "      \"process\": \"TSMC N7\",\n"
            "      \"l1_cache_bytes\": 131072,\n"
            "      \"l2_cache_bytes\": 6291456,\n"
            "      \"links\": [\n"
            "        \"wire\"\n"
            "      ],\n"
            "      \"note\": \"the small one\",\n"
            "      \"sources\": {\n"
            "        \"memory\": \"sheet\",\n"
            "        \"memory_type\": \"sheet\",\n"
            "        \"memory_bandwidth\": \"sheet\",\n"
            "        \"peak fp32\": \"sheet\",\n"
            "        \"processors\": \"sheet\",\n"
            "        \"boost_clock\": \"sheet\",\n"
            "        \"board_power\": \"sheet\",\n"
            "        \"l2_cache\": \"sheet\",\n"
            "        \"links\": \"sheet\",\n"
            "        \"lanes fp32\": \"sheet\",\n"
            "        \"process\": \"sheet\",\n"
            "        \"l1_cache\": \"sheet\"\n"
            "      }\n"
            "    }\n"
            "  ],\n"
            "  \"networks\": [],\n"
            "  \"sources\": {\n"
            "    \"sheet\": \"Maker, data sheet, 2020\"\n"
            "  }\n"
            "}\n");
  EXPECT_EQ(kinds_json(select("air")),
            "{\n"
            "  \"accelerators\": [],\n"
            "  \"networks\": [\n"
            "    {\n"
            "      \"name\": \"air\",\n"
            "      \"kind\": \"ethernet\",\n"
            "      \"bytes_per_second\": 125000000.0,\n"
            "      \"note\": \"not measured\",\n"
            "      \"sources\": {\n"
            "        \"bandwidth\": \"sheet\"\n"
            "      }\n"
            "    }\n"
            "  ],\n"
            "  \"sources\": {\n"
            "    \"sheet\": \"Maker, data sheet, 2020\"\n"
            "  }\n"
            "}\n");
}

TEST(KindsCommand, FitsAHundredColumns) {
  const PlanSays outcome = run({"kinds"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

// "V100" alone is no name; it selects all that contain it.
TEST(KindsCommand, SelectsByAPartOfTheName) {
  const PlanSays outcome = run({"kinds", "v100"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::string names;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) names += line.substr(0, line.find(' ')) + "\n";
  EXPECT_EQ(names,
            "accelerator\nV100-PCIe-16GB\nV100-PCIe-32GB\nV100-SXM2-16GB\nV100-SXM2-32GB\nfp32\n\n"
            "network\nnvswitch-v100\nGB/s:\nreached:\n\nwith\n");
}

TEST(KindsCommand, ANameOfNothingIsRefusedWithTheNearest) {
  const PlanSays outcome = run({"kinds", "A1000-PCIe-40GB"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err,
            "agpcs-plan: error: no accelerator and no network is called 'A1000-PCIe-40GB'\n"
            "  hint: did you mean 'A100-PCIe-40GB'?\n");
  EXPECT_EQ(run({"kinds", "abacus"}).err,
            "agpcs-plan: error: no accelerator and no network is called 'abacus'\n"
            "  hint: agpcs-plan kinds lists all\n");
}

TEST(KindsCommand, ThePageOfTheReferenceIsCurrent) {
  std::ifstream file("docs/reference/kinds.md", std::ios::binary);
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_TRUE(page == run({"kinds", "--markdown"}).out)
      << "agpcs-plan kinds --markdown > docs/reference/kinds.md";
}

}  // namespace
}  // namespace agpcs
