// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/catalog/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

constexpr char kSmall[] = R"(sources:
  sheet: "Maker, G1 data sheet, 2020"
architectures:
  one:
    sheet: {lanes: {fp32: 64, fp16: 512}, process: TSMC N7}
accelerators:
  G1:
    architecture: one
    sheet:
      memory: 16GiB
      memory_type: HBM2
      memory_bandwidth: 900GB/s
      peak: {fp32: 15.7TFLOPS, fp16: 125TFLOPS}
      processors: 80
      boost_clock: 1530MHz
      board_power: 300W
      links: [wire]
networks:
  wire:
    kind: nvlink
    sheet: {bandwidth: 150GB/s, latency: 3us}
)";

std::string small_with(const std::string& from, const std::string& to) {
  std::string text = kSmall;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error_with(const std::string& from, const std::string& to) {
  return parse_catalog(small_with(from, to), "k.yaml").status().message();
}

TEST(Catalog, ReadsAnAcceleratorWithItsArchitecture) {
  const Result<Catalog> read = parse_catalog(kSmall, "k.yaml");
  ASSERT_TRUE(read.ok()) << read.status().message();
  const AcceleratorKind& g1 = *read->find_accelerator("G1");
  EXPECT_EQ(g1.memory, 16.0 * (1 << 30));
  EXPECT_EQ(g1.memory_type, "HBM2");
  EXPECT_EQ(g1.memory_bandwidth, 900e9);
  EXPECT_EQ(g1.peak, (std::map<std::string, double>{{"fp16", 125e12}, {"fp32", 15.7e12}}));
  EXPECT_EQ(g1.processors, 80);
  EXPECT_EQ(g1.lanes, (std::map<std::string, double>{{"fp16", 512}, {"fp32", 64}}));
  EXPECT_EQ(g1.boost_clock, 1530e6);
  EXPECT_EQ(g1.board_power, 300);
  EXPECT_EQ(g1.process, "TSMC N7");
  EXPECT_EQ(g1.links, (std::vector<std::string>{"wire"}));
  std::string figures;
  for (const CatalogFigure& f : g1.figures) figures += f.key + "=" + f.text + " ";
  EXPECT_EQ(figures,
            "memory=16GiB memory_type=HBM2 memory_bandwidth=900GB/s peak fp32=15.7TFLOPS peak "
            "fp16=125TFLOPS processors=80 boost_clock=1530MHz board_power=300W links=wire lanes "
            "fp32=64 lanes fp16=512 process=TSMC N7 ");
  const NetworkKind& wire = *read->find_network("wire");
  EXPECT_EQ(wire.kind, "nvlink");
  EXPECT_EQ(wire.bandwidth, 150e9);
  EXPECT_EQ(wire.latency, 3e-6);
  EXPECT_EQ(read->find_accelerator("g1"), nullptr);
  EXPECT_EQ(read->find_network("G1"), nullptr);
}

TEST(Catalog, ReadsANetworkWithItsProtocols) {
  const Result<Catalog> read = parse_catalog(
      small_with("networks:\n  wire:\n    kind: nvlink\n    sheet: {bandwidth: 150GB/s, ",
                 "protocols:\n  nccl:\n    sheet: {ll_start: 3us, simple_start: 8us, ll_latency: "
                 "1us, simple_latency: 4us, ll_rate: 0.25, step: 2us}\nnetworks:\n  wire:\n    "
                 "kind: nvlink\n    protocols: nccl\n    sheet: {efficiency: 0.8, bandwidth: "
                 "150GB/s, "),
      "k.yaml");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->find_network("wire")->efficiency, 0.8);
  const ProtocolKind& nccl = *read->find_protocols(read->find_network("wire")->protocols);
  EXPECT_EQ(nccl.ll_start, 3e-6);
  EXPECT_EQ(nccl.simple_latency, 4e-6);
  EXPECT_EQ(nccl.ll_rate, 0.25);
  EXPECT_EQ(nccl.step, 2e-6);
  EXPECT_EQ(nccl.ll128_rate, 0);
  EXPECT_EQ(read->find_protocols("wire"), nullptr);
}

TEST(Catalog, ProtocolsNeedWhatEveryCollectiveCosts) {
  EXPECT_THAT(error_with("networks:\n",
                         "protocols:\n  nccl:\n    sheet: {ll_start: 3us, "
                         "simple_start: 8us, ll_latency: 1us, simple_latency: 4us}\n"
                         "networks:\n"),
              HasSubstr("error: protocols 'nccl' lacks 'll_rate'\n"));
  EXPECT_THAT(error_with("kind: nvlink\n", "kind: nvlink\n    protocols: nccl\n"),
              HasSubstr("error: unknown protocols 'nccl'\n"));
  EXPECT_THAT(error_with("latency: 3us", "latency: 3us, efficiency: 1.1"),
              HasSubstr("error: 'efficiency' of network 'wire' is not credible: '1.1'\n"));
}

TEST(Catalog, AFigureOfTheAcceleratorComesBeforeItsArchitectures) {
  const Result<Catalog> read = parse_catalog(small_with("      memory: 16GiB",
                                                        "      process: Samsung 8N\n"
                                                        "      memory: 16GiB"),
                                             "k.yaml");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->accelerators[0].process, "Samsung 8N");
  std::set<std::string> keys;
  for (const CatalogFigure& f : read->accelerators[0].figures) {
    EXPECT_TRUE(keys.insert(f.key).second) << f.key;
  }
}

// ---- The catalog of the commands ----

TEST(ShippedCatalog, IsPlausible) {
  const Result<Catalog> read = parse_catalog(catalog_text(), "catalog.yaml");
  EXPECT_TRUE(read.ok()) << read.status().message();
}

TEST(ShippedCatalog, EveryFigureHasASource) {
  for (const AcceleratorKind& a : catalog().accelerators) {
    EXPECT_FALSE(a.figures.empty()) << a.name;
    for (const CatalogFigure& f : a.figures) {
      EXPECT_NE(catalog().find_source(f.source), nullptr) << a.name << " " << f.key;
    }
  }
  for (const NetworkKind& network : catalog().networks) {
    for (const CatalogFigure& f : network.figures) {
      EXPECT_NE(catalog().find_source(f.source), nullptr) << network.name << " " << f.key;
    }
  }
}

TEST(ShippedCatalog, HasTheAcceleratorsThatPeopleTrainOn) {
  for (const char* name : {"P100-PCIe-16GB",
                           "P100-SXM2-16GB",
                           "P4",
                           "V100-PCIe-16GB",
                           "V100-PCIe-32GB",
                           "V100-SXM2-16GB",
                           "V100-SXM2-32GB",
                           "T4",
                           "RTX-2080-Ti",
                           "TITAN-RTX",
                           "A10",
                           "A10G",
                           "A30",
                           "A40",
                           "A100-PCIe-40GB",
                           "A100-PCIe-80GB",
                           "A100-SXM4-40GB",
                           "RTX-A6000",
                           "A100-SXM4-80GB",
                           "RTX-3060-12GB",
                           "RTX-3080-10GB",
                           "RTX-3090",
                           "L4",
                           "L40",
                           "L40S",
                           "RTX-6000-Ada",
                           "RTX-4070",
                           "RTX-4070-Ti",
                           "RTX-4080",
                           "RTX-4090",
                           "H100-PCIe-80GB",
                           "H100-SXM5-80GB",
                           "H100-NVL-94GB",
                           "H200-SXM-141GB",
                           "GH200-96GB",
                           "B200",
                           "RTX-5070",
                           "RTX-5070-Ti",
                           "RTX-5080",
                           "RTX-5090",
                           "MI100",
                           "MI210",
                           "MI250",
                           "MI300X",
                           "Gaudi2"}) {
    EXPECT_NE(catalog().find_accelerator(name), nullptr) << name;
  }
  for (const char* name : {"nvlink2", "nvswitch-a100", "pcie4x16", "ib-hdr", "roce-100g"}) {
    EXPECT_NE(catalog().find_network(name), nullptr) << name;
  }
}

TEST(ShippedCatalog, SaysOfV100WhatItsDataSheetSays) {
  const AcceleratorKind& v100 = *catalog().find_accelerator("V100-SXM2-16GB");
  EXPECT_EQ(v100.memory, 16.0 * (1 << 30));
  EXPECT_EQ(v100.memory_bandwidth, 900e9);
  EXPECT_EQ(v100.peak, (std::map<std::string, double>{{"fp16", 125e12}, {"fp32", 15.7e12}}));
  EXPECT_EQ(v100.processors, 80);
  EXPECT_EQ(v100.boost_clock, 1530e6);
  EXPECT_EQ(v100.board_power, 300);
  EXPECT_EQ(v100.process, "TSMC 12FFN");
  EXPECT_EQ(v100.l2_cache, 6.0 * (1 << 20));
}

// ---- Mistakes ----

TEST(BadCatalog, AFigureBelowNoSourceIsRefused) {
  EXPECT_EQ(error_with("    sheet:\n      memory: 16GiB", "    shet:\n      memory: 16GiB"),
            "k.yaml:9:5: error: unknown key 'shet' in accelerator 'G1'\n"
            "    shet:\n"
            "    ^~~~\n"
            "  hint: did you mean 'sheet'? keys: architecture, note, sheet\n"
            "k.yaml:7:3: error: accelerator 'G1' lacks 'memory'\n"
            "    G1:\n"
            "    ^~\n"
            "k.yaml:7:3: error: accelerator 'G1' lacks 'memory_type'\n"
            "    G1:\n"
            "    ^~\n"
            "k.yaml:7:3: error: accelerator 'G1' lacks 'memory_bandwidth'\n"
            "    G1:\n"
            "    ^~\n"
            "k.yaml:7:3: error: accelerator 'G1' lacks 'peak'\n"
            "    G1:\n"
            "    ^~");
}

TEST(BadCatalog, ASourceOfNothingIsRefused) {
  EXPECT_EQ(error_with("2020\"\n", "2020\"\n  book: \"Another\"\n"),
            "k.yaml:3:3: error: no figure is from source 'book'\n"
            "    book: \"Another\"\n"
            "    ^~~~");
  EXPECT_EQ(error_with("2020\"\n", "2020\"\n  book: []\n"),
            "k.yaml:3:9: error: source 'book' must be a text, is a list\n"
            "    book: []\n"
            "          ^");
}

TEST(BadCatalog, AFigureThatIsThereTwiceIsRefused) {
  const std::string two = small_with("2020\"\n", "2020\"\n  book: \"Another\"\n");
  std::string text = two;
  text.replace(text.find("    sheet:\n      memory"), 0, "    book: {memory: 32GiB}\n");
  EXPECT_EQ(parse_catalog(text, "k.yaml").status().message(),
            "k.yaml:12:7: error: 'memory' is twice in accelerator 'G1'\n"
            "    memory: 16GiB\n"
            "    ^~~~~~");
}

TEST(BadCatalog, UnitsAndRangesAreChecked) {
  EXPECT_EQ(error_with("1530MHz", "1530Mhz"),
            "k.yaml:15:20: error: unknown unit 'Mhz' of a clock\n"
            "    boost_clock: 1530Mhz\n"
            "                 ^~~~~~~\n"
            "  hint: did you mean 'MHz'? units: MHz, GHz");
  EXPECT_EQ(error_with("300W", "300kW"),
            "k.yaml:16:20: error: unknown unit 'kW' of a power\n"
            "    board_power: 300kW\n"
            "                 ^~~~~\n"
            "  hint: did you mean 'W'? units: W");
  EXPECT_EQ(error_with("900GB/s", "900MB/s"),
            "k.yaml:12:25: error: 'memory_bandwidth' of accelerator 'G1' is not credible: "
            "'900MB/s'\n"
            "    memory_bandwidth: 900MB/s\n"
            "                      ^~~~~~~");
  EXPECT_EQ(error_with("latency: 3us", "latency: 3ms"),
            "k.yaml:21:42: error: 'latency' of network 'wire' is not credible: '3ms'\n"
            "    sheet: {bandwidth: 150GB/s, latency: 3ms}\n"
            "                                         ^~~");
  EXPECT_EQ(error_with("processors: 80", "processors: 0"),
            "k.yaml:14:19: error: 'processors' of accelerator 'G1' must be a whole number from 1 "
            "to 1024, is '0'\n"
            "    processors: 0\n"
            "                ^");
}

TEST(BadCatalog, NamesOfTypesAreChecked) {
  EXPECT_EQ(error_with("HBM2\n", "HBM22\n"),
            "k.yaml:11:20: error: unknown memory type 'HBM22'\n"
            "    memory_type: HBM22\n"
            "                 ^~~~~\n"
            "  hint: did you mean 'HBM2'? types: GDDR5, GDDR6, GDDR6X, GDDR7, HBM2, HBM2e, HBM3, "
            "HBM3e\n"
            "k.yaml:7:3: error: accelerator 'G1' lacks 'memory_type'\n"
            "    G1:\n"
            "    ^~");
  EXPECT_EQ(error_with("TSMC N7", "TSMC N77"),
            "k.yaml:5:52: error: unknown process 'TSMC N77'\n"
            "    sheet: {lanes: {fp32: 64, fp16: 512}, process: TSMC N77}\n"
            "                                                   ^~~~~~~~\n"
            "  hint: did you mean 'TSMC N7'? processes: TSMC 16FF, TSMC 12FFN, TSMC N7, TSMC N6, "
            "TSMC N5, TSMC 4N, TSMC 4NP, Samsung 8N");
  EXPECT_EQ(error_with("architecture: one", "architecture: onee"),
            "k.yaml:8:19: error: unknown architecture 'onee'\n"
            "    architecture: onee\n"
            "                  ^~~~\n"
            "  hint: did you mean 'one'? architectures: one\n"
            "k.yaml:7:3: error: accelerator 'G1' has a peak for fp16, but architecture '' has no "
            "lanes for it\n"
            "    G1:\n"
            "    ^~\n"
            "k.yaml:7:3: error: accelerator 'G1' has a peak for fp32, but architecture '' has no "
            "lanes for it\n"
            "    G1:\n"
            "    ^~");
  EXPECT_EQ(error_with("links: [wire]", "links: [wier]"),
            "k.yaml:7:3: error: accelerator 'G1' has link 'wier', which is no network\n"
            "    G1:\n"
            "    ^~\n"
            "  hint: did you mean 'wire'? networks: wire");
  EXPECT_EQ(error_with("links: [wire]", "links: wire"),
            "k.yaml:17:14: error: 'links' of accelerator 'G1' must be a list of networks, is "
            "'wire'\n"
            "    links: wire\n"
            "           ^~~~");
  EXPECT_EQ(error_with("  wire:\n", "  a wire:\n"),
            "k.yaml:19:3: error: 'a wire' is no name\n"
            "    a wire:\n"
            "    ^~~~~~\n"
            "  hint: a name has letters, digits, '_', '.' and '-'\n"
            "k.yaml:7:3: error: accelerator 'G1' has link 'wire', which is no network\n"
            "    G1:\n"
            "    ^~\n"
            "  hint: networks: a wire");
}

TEST(BadCatalog, ANetworkNeedsItsBandwidth) {
  EXPECT_EQ(error_with("bandwidth: 150GB/s, ", ""),
            "k.yaml:19:3: error: network 'wire' lacks 'bandwidth'\n"
            "    wire:\n"
            "    ^~~~");
}

// What vendors print beside the dense figure, and what another accumulator would give.
TEST(BadCatalog, APeakThatTheProcessorsDoNotGiveIsRefused) {
  EXPECT_EQ(error_with("fp16: 125TFLOPS", "fp16: 250TFLOPS"),
            "k.yaml:7:3: error: accelerator 'G1' has a peak of 250TFLOPS for fp16, but 2 x 512 "
            "lanes x 80 processors x 1530MHz are 125.3TFLOPS\n"
            "    G1:\n"
            "    ^~");
  EXPECT_EQ(error_with("fp16: 125TFLOPS", "fp16: 62TFLOPS"),
            "k.yaml:7:3: error: accelerator 'G1' has a peak of 62TFLOPS for fp16, but 2 x 512 "
            "lanes x 80 processors x 1530MHz are 125.3TFLOPS\n"
            "    G1:\n"
            "    ^~");
  EXPECT_EQ(error_with("fp32: 15.7TFLOPS", "fp32: 14TFLOPS"),
            "k.yaml:7:3: error: accelerator 'G1' has a peak of 14TFLOPS for fp32, but 2 x 64 lanes "
            "x 80 processors x 1530MHz are 15.67TFLOPS\n"
            "    G1:\n"
            "    ^~");
  EXPECT_EQ(error_with("fp16: 125TFLOPS", "bf16: 125TFLOPS"),
            "k.yaml:7:3: error: accelerator 'G1' has a peak for bf16, but architecture 'one' has "
            "no lanes for it\n"
            "    G1:\n"
            "    ^~");
}

TEST(BadCatalog, ALowerPrecisionThatIsSlowerIsRefused) {
  EXPECT_EQ(error_with("peak: {fp32: 15.7TFLOPS, fp16: 125TFLOPS}\n      processors: 80",
                       "peak: {fp32: 15.7TFLOPS, fp16: 12.5TFLOPS}"),
            "k.yaml:7:3: error: accelerator 'G1' is slower in fp16 than in fp32\n"
            "    G1:\n"
            "    ^~");
}

// ---- Names ----

TEST(CatalogNames, WhatResemblesIsSuggested) {
  const std::vector<std::string> names = catalog().accelerator_names();
  EXPECT_EQ(did_you_mean_of_catalog("v100 sxm2", names),
            "did you mean 'V100-SXM2-16GB' or 'V100-SXM2-32GB'?");
  EXPECT_EQ(did_you_mean_of_catalog("rtx3090", names), "did you mean 'RTX-3090'?");
  EXPECT_EQ(did_you_mean_of_catalog("a10", names), "did you mean 'A10'?");
  EXPECT_EQ(did_you_mean_of_catalog("V100-SMX2-16GB", names), "did you mean 'V100-SXM2-16GB'?");
  EXPECT_EQ(did_you_mean_of_catalog("RTX-40", names),
            "did you mean 'RTX-4070' or 'RTX-4070-Ti' "
            "or 'RTX-4080' or 'RTX-4090'?");
  EXPECT_EQ(did_you_mean_of_catalog("RTX", names),
            "'agpcs-plan kinds RTX' lists the 15 that it may be");
  EXPECT_EQ(did_you_mean_of_catalog("abacus", names), "");
  EXPECT_EQ(did_you_mean_of_catalog("-", names), "");
}

}  // namespace
}  // namespace agpcs
