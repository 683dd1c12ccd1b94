// SPDX-License-Identifier: Apache-2.0
#include "tools/allreduce/command.h"

#include "planner/flows/method.h"
#include "tests/support/temp_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Outcome {
  int code;
  std::string out, err;
};

/// Progress is left out.
Outcome run(std::vector<std::string> args) {
  args.emplace_back("-q");
  std::ostringstream out, err;
  const int code = allreduce_command(args, {out, err});
  return {code, out.str(), err.str()};
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// With a folder for the files of one test, which goes away with it.
class AllreduceCommand : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_of(name), std::ios::binary) << text;
    return path_of(name);
  }
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }

  const TempFolder temp_;
  std::string folder_ = temp_.path();
};

// Torus of three: the ring sends 2 x 2 chunks of 1 MB one after another.
TEST_F(AllreduceCommand, PrintsScheduleBoundAndTimes) {
  const Outcome outcome = run({"torus:3", "--method", "ring", "--bytes", "3MB", "--bandwidth",
                               "1GB/s", "--latency", "20us", "--sub-chunks", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out,
            "torus:3: 3 servers, 0 switches, 6 links\n"
            "  lower bound   2 rounds, proven: server s0 receives 2 chunks over 2 units a round\n"
            "  schedule      4 rounds (reduce-scatter 2, all-gather 2), gap +100%\n"
            "  method        ring, 1 sub-chunk a chunk, 12 messages\n"
            "  checked       no link above its capacity, no message before its data; every server "
            "ends with every sum\n"
            "  links         50% busy over the rounds on average; most: s0 -> s1 100%, least: "
            "s1 -> s0 0%\n"
            "\n"
            "time, links of 1.00GB/s, 20.0us\n"
            "   message       time       order  bytes/time  links busy  fullest\n"
            "    1.00kB     81.3us   receivers    12.3MB/s          1%       2%\n"
            "    10.0kB     93.3us   receivers     107MB/s          7%      14%\n"
            "     100kB      213us   receivers     469MB/s         31%      63%\n"
            "    1.00MB     1.41ms   receivers     708MB/s         47%      94%\n"
            "    3.00MB     4.08ms   receivers     735MB/s         49%      98%\n"
            "    10.0MB     13.4ms   receivers     746MB/s         50%      99%\n"
            "     100MB      133ms   receivers     750MB/s         50%     100%\n"
            "    1.00GB      1.33s   receivers     750MB/s         50%     100%\n");
}

TEST_F(AllreduceCommand, PrintsJson) {
  const Outcome outcome = run({"torus:3", "--method", "ring", "--json", "--bytes", "3MB",
                               "--bandwidth", "1GB/s", "--latency", "10us"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* line : {
           "  \"format\": \"agpcs-allreduce 1\",\n  \"topology\": \"torus:3\",\n",
           "  \"lower_bound\": 2.0,\n",
           "  \"interrupted\": false,\n  \"method\": \"ring\",\n  \"rounds\": 4.0,\n  \"gap\": "
           "1.0,\n"
           "  \"sub_chunks\": 1,\n  \"reduce_scatter_rounds\": 2.0,\n  \"all_gather_rounds\": "
           "2.0,\n"
           "  \"messages\": 12,\n  \"seconds\": 0.00404,\n  \"order\": \"receivers\",\n",
           "  \"sums_checked\": true,\n  \"times\": [\n    {\n      \"bytes\": 1000,\n",
           "      \"from\": \"s0\",\n      \"to\": \"s1\",\n      \"capacity\": 1,\n"
           "      \"in_rounds\": 1.0,\n",
       }) {
    EXPECT_THAT(outcome.out, HasSubstr(line));
  }
}

// One time, that of the order in which the schedule is replayed.
TEST_F(AllreduceCommand, ATimeIsThatOfItsOrder) {
  const std::string cluster = write("boxes.yaml", R"(name: boxes
device_kinds:
  gpu: {memory: 16GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15.7TFLOPS}}
hosts:
  - {name: a, devices: {kind: gpu, count: 4}, interconnect: {kind: nvlink, bandwidth: 50GB/s}, nic: {bandwidth: 1GB/s}}
  - {name: b, devices: {kind: gpu, count: 4}, interconnect: {kind: nvlink, bandwidth: 50GB/s}, nic: {bandwidth: 2GB/s}}
)");
  const Outcome outcome = run({cluster, "--bytes", "1GB", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\n  \"order\": \"rounds\",\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\n      \"order\": \"receivers\"\n"));  // of 1 kB
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("seconds_in")));
  const Outcome table = run({cluster, "--bytes", "1GB", "--compare"});
  EXPECT_THAT(table.out, HasSubstr("     1.00GB       order   planning\n"));
}

TEST_F(AllreduceCommand, ComparesAllMethods) {
  const Outcome outcome = run({"switch:4", "--compare"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("switch:4: 4 servers, 1 switch, 8 links\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\n  ring                     6       0%           1"));
  EXPECT_THAT(outcome.out, HasSubstr("\n  lower bound              6\n"));
  for (const FlowMethod& method : flow_methods()) {
    EXPECT_THAT(outcome.out, HasSubstr("\n  " + std::string(method.name) + " "));
  }
  const Outcome json = run({"switch:4", "--compare", "--json"});
  EXPECT_EQ(json.code, 0) << json.err;
  EXPECT_THAT(json.out, HasSubstr("      \"method\": \"ring\",\n      \"rounds\": 6.0,\n"));
}

TEST_F(AllreduceCommand, EveryMethodIsCheckedOnEveryFamily) {
  for (const char* spec : {"bcube:2,1", "dcell:3,1", "jellyfish:8,3,seed=2", "fat_tree:4",
                           "torus:3,3", "switch:5", "dgx:2,3", "jellyfish:8,4,fail=0.1"}) {
    const Outcome outcome = run({spec, "--compare", "--seed", "3"});
    EXPECT_EQ(outcome.code, 0) << spec << ": " << outcome.err;
  }
}

TEST_F(AllreduceCommand, SameSeedSameBytes) {
  const auto schedule = [&] { return run({"dcell:3,1", "--seed", "7", "--schedule", "-"}).out; };
  const std::string first = schedule();
  EXPECT_THAT(first, StartsWith("agpcs-flow-schedule 1\ntopology dcell:3,1\nsub-chunks "));
  EXPECT_EQ(schedule(), first);
}

TEST_F(AllreduceCommand, ChecksTheSchedulesThatItWrote) {
  const std::string file = path_of("s.txt");
  ASSERT_EQ(run({"bcube:2,1", "--schedule", file}).code, 0);
  const Outcome checked = run({"--check", file});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("bcube:2,1: 4 servers"));
  EXPECT_THAT(checked.out, HasSubstr("every server ends with every sum"));
  EXPECT_EQ(run({"switch:4", "--check", file}).code, 1) << "it is for another topology";
}

TEST_F(AllreduceCommand, RefusesACorruptedSchedule) {
  const std::string file = path_of("s.txt");
  ASSERT_EQ(run({"switch:3", "--method", "ring", "--schedule", file}).code, 0);
  std::string text = contents(file);
  const std::size_t at = text.find("  gather ");
  text.erase(at, text.find('\n', at) + 1 - at);
  write("s.txt", text);
  const Outcome outcome = run({"--check", file});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, StartsWith(file + ": error: all-gather round "));
}

TEST_F(AllreduceCommand, AFileThatIsNoScheduleIsRefusedWithItsPlace) {
  const std::string file = write("s.txt", "agpcs-flow-schedule 1\ntopology switch:3\nround 0\n");
  EXPECT_THAT(run({"--check", file}).err, HasSubstr("s.txt:3:7: error: '0' in place of the "
                                                    "sub-chunks"));
  EXPECT_THAT(run({"--check", path_of("none.txt")}).err, HasSubstr("cannot be read"));
  EXPECT_THAT(run({"--check", write("n.txt", "hello\n")}).err,
              HasSubstr("n.txt: error: no line 'topology NAME'"));
}

TEST_F(AllreduceCommand, DrawsAPicture) {
  const std::string svg = path_of("p.svg"), html = path_of("p.html");
  ASSERT_EQ(run({"bcube:2,1", "--picture", svg}).code, 0);
  ASSERT_EQ(run({"bcube:2,1", "--picture", html}).code, 0);
  EXPECT_THAT(contents(svg), StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox="));
  EXPECT_THAT(contents(svg), HasSubstr("Load of the links of bcube:2,1"));
  EXPECT_THAT(contents(svg), HasSubstr("server to switch"));
  EXPECT_THAT(contents(html), StartsWith("<!DOCTYPE html>"));
  EXPECT_LT(contents(svg).size(), 200'000u);
}

TEST_F(AllreduceCommand, DrawsForReadersThatKnowNoVariables) {
  const std::string svg = path_of("p.svg");
  ASSERT_EQ(run({"bcube:2,1", "--picture", svg}).code, 0);
  const std::string text = contents(svg);
  const auto count = [&](const std::regex& pattern) {
    return std::distance(std::sregex_iterator(text.begin(), text.end(), pattern),
                         std::sregex_iterator());
  };
  const std::regex with_colour("([a-z]+): #[0-9a-f]+; \\1: var\\(--");
  EXPECT_GT(count(with_colour), 0);
  EXPECT_EQ(count(with_colour), count(std::regex("var\\(--")));
}

constexpr char kCluster[] = R"(name: four
device_kinds:
  gpu: {memory: 8GiB, memory_bandwidth: 300GB/s, peak: {fp32: 5TFLOPS}}
hosts:
  - {name: a, devices: {kind: gpu, count: 2}, nic: {bandwidth: 10Gbit/s}}
  - {name: b, devices: {kind: gpu, count: 2}, nic: {bandwidth: 10Gbit/s}}
)";

// tests/codegen/check_msccl.py knows nothing of AGPCS.
TEST_F(AllreduceCommand, WritesXmlForMsccl) {
  const std::string file = path_of("s.xml");
  ASSERT_EQ(run({"torus:3,3", "--msccl", file}).code, 0);
  EXPECT_THAT(contents(file), StartsWith("<algo name=\"agpcs-f0\""));
  EXPECT_EQ(
      std::system(("python3 tests/codegen/check_msccl.py '" + file + "' > /dev/null").c_str()), 0);
  const Outcome refused = run({"dcell:3,1", "--msccl", file});
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr(", and MSCCL has no switches\n  hint: --msccl is for"));
}

TEST_F(AllreduceCommand, TakesAClusterFile) {
  const std::string cluster = write("c.yaml", kCluster), file = path_of("s.txt");
  const Outcome outcome = run({cluster, "--method", "greedy", "--schedule", file});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("four: 4 servers, 3 switches, 12 links\n"));
  EXPECT_THAT(outcome.out, HasSubstr("time, links of 1.25GB/s to 12.0GB/s, "));
  EXPECT_THAT(contents(file), HasSubstr("topology four\n"));
  EXPECT_THAT(contents(file), HasSubstr("switch"));
  EXPECT_EQ(run({cluster, "--check", file}).code, 0);
  EXPECT_THAT(run({"--check", file}).err, HasSubstr("unknown family 'four'"));
}

TEST_F(AllreduceCommand, AClusterHasItsOwnFigures) {
  const std::string cluster = write("c.yaml", kCluster);
  const Outcome outcome = run({cluster, "--latency", "3us"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--latency is for topologies"));
  std::string one = kCluster;
  one.erase(one.find("  - {name: b"));
  one.replace(one.find("count: 2"), 8, "count: 1");
  EXPECT_THAT(run({write("one.yaml", one)}).err,
              HasSubstr("one.yaml: error: 1 device\n  hint: an all-reduce is between two or more"));
  EXPECT_THAT(run({path_of("none.yaml")}).err, HasSubstr("cannot be read"));
}

TEST_F(AllreduceCommand, AbsurdTopologiesAreRefusedWithTheReasonAndAHint) {
  struct Row {
    const char *spec, *says;
  };
  for (const Row& row : {
           Row{"bcube:0,1", "a parameter must be a positive integer, is '0'"},
           {"bcube:1,1", "at least 2 servers"},
           {"bcube:-3,1", "is '-3'"},
           {"bcube:2.5,1", "is '2.5'"},
           {"bcube:1000000,9", "more than 65536 servers"},
           {"bcube:99999999999999999999,1", "is '99999999999999999999'"},
           {"bcube:4", "1 parameters given, bcube takes n,k"},
           {"bcube:4,1,1", "3 parameters given"},
           {"bcube", "0 parameters given"},
           {"jellyfish:5,9", "degree 9 of 5 switches"},
           {"jellyfish:5,3", "15 ends of cables are odd"},
           {"jellyfish:20,4,links=5", "links=5"},
           {"torus:", "0 parameters given"},
           {"torus:1", "1 server"},
           {"torus:,", "is ''"},
           {"dcell:4", "1 parameters given, dcell takes n,l"},
           {"dcell:60,9", "more than 65536 servers"},
           {"fat_tree:3", "k must be even"},
           {"switch:1", "1 server"},
           {"switch:70000", "more than 65536 servers"},
           {"dgx:2,2,99999999", "a ratio of 99999999"},
           {"torus:4,fail=1", "fail must be a part of the cables in [0, 1), is '1'"},
           {"torus:4,fail=-1", "is '-1'"},
           {"torus:4,fail=x", "is 'x'"},
           {"torus:4,fail=nan", "is 'nan'"},
           {"switch:4,fail=0.5", "can be spared"},
           {"torus:4,seed=-1", "seed must be an integer of at least 0, is '-1'"},
           {"torus:4,sed=1", "did you mean 'seed'?"},
           {"torus:4,links=3", "'torus' has no option links"},
           {"bcub:3,1", "did you mean 'bcube'?"},
           {"", "topology is empty"},
           {":", "unknown family ''"},
           {"cluster.yml", "cannot be read"},
       }) {
    const Outcome outcome = run({row.spec});
    EXPECT_EQ(outcome.code, *row.spec == '\0' ? 2 : 1) << row.spec;
    EXPECT_EQ(outcome.out, "") << row.spec;
    EXPECT_THAT(outcome.err, HasSubstr(row.says)) << row.spec;
    EXPECT_TRUE(std::regex_search(outcome.err, std::regex("error: "))) << row.spec;
    if (std::string(row.spec) == "cluster.yml") continue;
    EXPECT_THAT(outcome.err, HasSubstr("\n  hint: "));
  }
}

TEST_F(AllreduceCommand, AWrongCommandLineIsUsage) {
  struct Row {
    std::vector<std::string> args;
    const char* says;
  };
  for (const Row& row : {
           Row{{}, "agpcs-allreduce: error: no topology\n  hint: agpcs-allreduce bcube:4,1"},
           {{"switch:4", "--method", "rng"}, "unknown method 'rng'\n  hint: did you mean 'ring'?"},
           {{"switch:4", "--metod", "ring"},
            "unknown option '--metod'\n  hint: did you mean "
            "'--method'?"},
           {{"switch:4", "--compare", "--method", "ring"}, "--compare is of all methods; --method"},
           {{"switch:4", "--compare", "--picture", "a.svg"}, "--picture is of one"},
           {{"switch:4", "--picture", "a.png"}, "'a.png' is neither .svg nor .html"},
           {{"switch:4", "--check", "a", "--method", "ring"}, "--check makes no schedule"},
           {{"switch:4", "--json", "--schedule", "-"},
            "--schedule - and --json both go to standard output"},
           {{"torus:3", "--msccl", "-", "--schedule", "-"}, "--schedule - and --msccl - both"},
           {{"torus:3", "--compare", "--msccl", "f"}, "--compare is of all methods; --msccl"},
           {{"switch:4", "--bytes", "0"}, "--bytes must be more than zero, is '0'"},
           {{"switch:4", "--bytes", "3MBs"}, "--bytes: "},
           {{"switch:4", "--bandwidth", "0GB/s"}, "--bandwidth must be more than zero"},
           {{"switch:4", "--latency", "-1us"}, "--latency must not be negative, is '-1us'"},
           {{"switch:4", "--sub-chunks", "0"}, "--sub-chunks"},
           {{"switch:4", "--effort", "0"}, "--effort"},
           {{"switch:4", "--seed", "-1"}, "--seed: '-1' is not a whole number from 0"},
           {{"switch:4", "--seed", "18446744073709551616"}, "is more than"},
           {{"switch:4", "--schedule", ""}, "--schedule is empty"},
           {{}, "no topology"},
           {{"switch:4", "switch:5"}, "unexpected argument 'switch:5'"},
       }) {
    const Outcome outcome = run(row.args);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(row.says));
  }
}

TEST_F(AllreduceCommand, HelpNamesTopologiesAndMethods) {
  const Outcome help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("bcube:n,k: "));
  for (const FlowMethod& method : flow_methods()) {
    EXPECT_THAT(help.out, HasSubstr(std::string(method.name) + ": "));
  }
  EXPECT_EQ(run({"--version"}).out, "agpcs-allreduce 0.1.0\n");
}

TEST_F(AllreduceCommand, SaysWhatItIsDoing) {
  std::ostringstream out, err;
  EXPECT_EQ(allreduce_command({"switch:3", "--method", "ring"}, {out, err}), 0);
  EXPECT_EQ(err.str(), "reading switch:3\nthe lower bound\na schedule by ring\n");
}

}  // namespace
}  // namespace agpcs
