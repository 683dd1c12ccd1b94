// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/profile_file.h"

#include "tests/support/profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kSmall[] = R"(profile: 1
digest: DIGEST
devices:
  cpu:
    hardware: {processor: Intel(R) Xeon(R), cores: 2}
    software: {agpcs: 0.1.0}
    precision: fp32
    models: [small_cnn]
    message_overhead: 12us
    overlap: {compute_seconds_per_byte: 0.3ns, communication_factor: 0.8}
    updates:
      - {optimizer: sgd, elements: 1200, tensors: 8, update: 12us, update_spread: 0.03, begin: 4us, begin_spread: 0.02}
    operators:
      - operator: "MatMul(fp32[n,4]', fp32[4,8]*) -> fp32[n,8]"
        class: matmul
        points:
          - {samples: 1, forward: 1us, forward_spread: 0.1, backward: 2us, backward_spread: 0.2, flops: [64, 128], bytes: [192, 384]}
          - {samples: 4, forward: 3us, forward_spread: 0.1, backward: 6us, backward_spread: 0.2, flops: [256, 512], bytes: [384, 768]}
      - operator: "Relu(fp32[n,8]) -> fp32[n,8]"
        class: elementwise
        points:
          - {samples: 1, forward: 500ns, forward_spread: 0, flops: [8, 0], bytes: [64, 0]}
paths:
  - from: a/0
    to: b/0
    links: [a/0 out, a nic out, b nic in, b/0 in]
    points:
      - {bytes: 1024, time: 80us, spread: 0.1}
      - {bytes: 1048576, time: 900us, spread: 0.05}
collectives:
  - algorithm: ring
    devices: [a/0, b/0]
    points:
      - {bytes: 4096, time: 200us, spread: 0.1}
)";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string small_text() { return with(kSmall, "DIGEST", small_profile().digest); }

TEST(ProfileFile, IsReadableText) { EXPECT_EQ(print_profile(small_profile()), small_text()); }

TEST(ProfileFile, GivesBackWhatWasWritten) {
  const Result<Profile> profile = parse_profile(small_text(), "lab.yaml");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(print_measurements(*profile), print_measurements(small_profile()));
  EXPECT_EQ(profile->digest, small_profile().digest);
  EXPECT_EQ(profile->file, "lab.yaml");
}

TEST(ProfileFile, SaysWhatAMessageCostsOfComputingWhereItWasMeasured) {
  const std::string line = "    message_compute: 190us\n";
  const std::string measured =
      with(with(kSmall, "digest: DIGEST\n", ""), "    overlap: ", line + "    overlap: ");
  const Result<Profile> profile = seal_profile_text(measured, "lab.yaml");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->devices[0].message_compute, 190e-6);
  EXPECT_NE(profile->digest, small_profile().digest);
  const std::string text = print_profile(*profile);
  EXPECT_THAT(text, HasSubstr(line));
  EXPECT_EQ(print_profile(*parse_profile(text, "lab.yaml")), text);
  EXPECT_THAT(seal_profile_text(with(measured, "190us", "-1us"), "lab.yaml").status().message(),
              HasSubstr("'message_compute' of device 'cpu' must not be negative"));
}

Profile with_probes() {
  Profile profile = small_profile();
  profile.devices[0].probes = profile.devices[0].operators;
  seal_profile(profile);
  return profile;
}

TEST(ProfileFile, ProbesOfAQuickProfileAreNoOperators) {
  const Profile written = with_probes();
  EXPECT_NE(written.digest, small_profile().digest);
  const Result<Profile> profile = parse_profile(print_profile(written), "lab.yaml");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->devices[0].probes.size(), 2U);
  EXPECT_EQ(profile->devices[0].operators.size(), 2U);
  EXPECT_EQ(print_profile(*profile), print_profile(written));
}

TEST(ProfileFile, MergesAQuickProfileWithAnotherOfItsKind) {
  Profile quick = with_probes();
  quick.devices[0].operators.clear();
  quick.devices[0].models.clear();
  seal_profile(quick);
  const Result<Profile> merged = merge_profiles(quick, small_profile());
  ASSERT_TRUE(merged.ok()) << merged.status().message();
  EXPECT_EQ(print_profile(*merged), print_profile(with_probes()));
}

TEST(BadProfileFile, NoProbeMayBeMeasuredTwice) {
  std::string text = print_profile(with_probes());
  const std::size_t at = text.find("    probes:\n") + 12;
  text.insert(at, text.substr(at, text.find("      - operator: ", at + 1) - at));
  EXPECT_THAT(parse_profile(text, "lab.yaml").status().message(),
              HasSubstr("is twice in the probes of device 'cpu'"));
}

TEST(ProfileFile, MeasurementsWithoutADigestGetTheirs) {
  const Result<Profile> profile =
      seal_profile_text(with(kSmall, "digest: DIGEST\n", ""), "measurements");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(print_profile(*profile), small_text());
}

TEST(ProfileFile, NamesTheBlasOutsideOfTheDigest) {
  Profile profile = small_profile();
  profile.devices[0].software.emplace_back("blas", "OpenBLAS 0.3.21 OpenMP SkylakeX");
  seal_profile(profile);
  EXPECT_EQ(profile.digest, small_profile().digest);
  const std::string text = print_profile(profile);
  EXPECT_EQ(text, with(small_text(), "{agpcs: 0.1.0}",
                       "{agpcs: 0.1.0, blas: OpenBLAS 0.3.21 OpenMP SkylakeX}"));
  const Result<Profile> again = parse_profile(text, "lab.yaml");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->devices[0].software, profile.devices[0].software);
  EXPECT_EQ(print_profile(*again), text);
  const Result<Profile> other =
      parse_profile(with(text, "OpenBLAS 0.3.21 OpenMP SkylakeX", "libblas.so.3.11.0"), "lab.yaml");
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(other->digest, profile.digest);
}

/// Measurements and text of `profile` written, read and written again.
void expect_round_trip(Profile profile) {
  seal_profile(profile);
  ASSERT_EQ(verify_profile(profile).message(), "");
  const std::string text = print_profile(profile);
  const Result<Profile> again = parse_profile(text, "lab.yaml");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(print_measurements(*again), print_measurements(profile));
  EXPECT_EQ(print_profile(*again), text);
}

TEST(ProfileFile, EveryTimeReadsBackToTheLastBit) {
  Profile profile = small_profile();
  std::vector<MeasuredMessages>& points = profile.paths[0].points;
  points.clear();
  const auto add = [&](double seconds) {
    points.push_back({static_cast<std::int64_t>(points.size()) + 1, {seconds, seconds / 3}});
  };
  double seconds = 1.0 / 3;
  for (int i = 0; i < 2000; ++i) add(seconds *= 0.987654321);  // down to a picosecond
  for (const double edge : {1e-9, 1e-6, 1e-3, 1.0, 59.9, 3599.999}) {
    for (const double toward : {0.0, 2 * edge}) add(std::nextafter(edge, toward));
    add(edge);
  }
  add(std::numeric_limits<double>::min());
  add(std::numeric_limits<double>::denorm_min());
  expect_round_trip(profile);
}

TEST(ProfileFile, TextsReadBackWhateverTheyLookLike) {
  Profile profile = small_profile();
  DeviceProfile& device = profile.devices[0];
  device.name = "1.0";
  device.hardware = {{"null", "null"},
                     {"a: b", "{x}, [y]"},
                     {"empty", ""},
                     {"quote", "say \"a\\b\""},
                     {"dash", "- 1"},
                     {"blank", " x "},
                     {"true", "~"},
                     {"hash", "a # b"},
                     {"unit", "2.20GHz @ 3\xc2\xb5m"}};
  device.models = {"*", "&x", "Null", "model.onnx"};
  expect_round_trip(profile);
}

TEST(ProfileFile, TeamsWhosePartsWereMeasuredAreRead) {
  Profile profile = small_profile();
  profile.devices[0].teams = {2, 4};
  expect_round_trip(profile);
}

TEST(ProfileFile, PartsMayBeAbsent) {
  Profile devices = small_profile();
  devices.paths.clear();
  devices.collectives.clear();
  devices.devices[0].operators.clear();
  devices.devices[0].updates.clear();
  devices.devices[0].hardware.clear();
  expect_round_trip(devices);
  Profile network = small_profile();
  network.devices.clear();
  expect_round_trip(network);
}

TEST(ProfileFile, ListsMayBeInAnyOrder) {
  const std::string one =
      "          - {samples: 1, forward: 1us, forward_spread: 0.1, backward: 2us, backward_spread: "
      "0.2, flops: [64, 128], bytes: [192, 384]}\n";
  std::string text = with(small_text(), one, "");
  text = with(text, "      - operator: \"Relu", one + "      - operator: \"Relu");
  const Result<Profile> profile = parse_profile(text, "lab.yaml");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(print_profile(*profile), small_text());
}

TEST(ProfileFile, IsReadFromDisk) {
  const std::string path =
      (std::filesystem::path(::testing::TempDir()) / "agpcs_profile_file_test.yaml").string();
  std::ofstream(path) << small_text();
  const Result<Profile> profile = read_profile(path);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->file, path);
  std::ofstream(path) << std::string((16 << 20) + 1, ' ');
  EXPECT_EQ(read_profile(path).status().message(),
            path + ": error: it has 16777217 bytes, a profile at most 16777216");
  std::filesystem::remove(path);
  EXPECT_EQ(read_profile(path).status().message(),
            path + ": error: cannot be read: No such file or directory");
}

TEST(ProfileFile, TheExampleInTheDocumentIsOne) {
  std::ifstream in("docs/reference/profile_yaml.md");
  const std::string document(std::istreambuf_iterator<char>(in), {});
  const std::size_t begin = document.find("```yaml\n") + 8;
  const std::string example = document.substr(begin, document.find("```", begin) - begin);
  const Result<Profile> profile = parse_profile(example, "docs/reference/profile_yaml.md");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(print_profile(*profile), example);
}

std::string error_of(const std::string& text) {
  const Result<Profile> profile = parse_profile(text, "p.yaml");
  EXPECT_EQ(profile.status().code(), StatusCode::kInvalidInput);
  return profile.status().message();
}

std::string error_with(const std::string& from, const std::string& to) {
  return error_of(with(small_text(), from, to));
}

TEST(BadProfileFile, ChangedMeasurementsAreRefused) {
  Profile changed = small_profile();
  changed.paths[0].points[0].time.seconds = 8e-6;
  seal_profile(changed);
  EXPECT_EQ(error_with("80us", "8us"),
            "p.yaml:2:9: error: the digest is " + small_profile().digest +
                ", but that of the measurements is " + changed.digest + "\n    digest: " +
                small_profile().digest + "\n            ^" + std::string(70, '~') +
                "\n  hint: measurements were changed after they were written: measure again, or "
                "restore the file");
  EXPECT_THAT(error_with(small_profile().digest, "sha256:0"),
              StartsWith("p.yaml:2:9: error: the digest is sha256:0, but that of the measurements "
                         "is " +
                         small_profile().digest + "\n"));
  EXPECT_EQ(error_with("digest: " + small_profile().digest + "\n", ""),
            "p.yaml:1:1: error: profile lacks 'digest'\n"
            "    profile: 1\n"
            "    ^");
}

TEST(BadProfileFile, WhatIsNoProfileIsToldSo) {
  const std::string hint = "\n  hint: a profile starts with 'profile: 1'; agpcs-profile writes it";
  EXPECT_EQ(error_of(""),
            "p.yaml: error: the file is empty\n"
            "  hint: docs/reference/profile_yaml.md has an example");
  EXPECT_EQ(error_of("just words\n"),
            "p.yaml:1:1: error: a profile is a map, not 'just words'\n"
            "    just words\n"
            "    ^~~~~~~~~~" +
                hint);
  EXPECT_EQ(error_of("name: x\n"),
            "p.yaml:1:1: error: this is no profile: it has no 'profile'\n"
            "    name: x\n"
            "    ^" +
                hint);
  EXPECT_EQ(error_of("profile: lab.yaml\nhosts: []\n"),
            "p.yaml:1:1: error: this is a cluster file, not a profile\n"
            "    profile: lab.yaml\n"
            "    ^" +
                hint);
  EXPECT_EQ(error_of("profile: 1\n---\nprofile: 1\n"),
            "p.yaml:3:1: error: 2 YAML documents in one file\n"
            "    profile: 1\n"
            "    ^\n"
            "  hint: a profile has one; remove what follows '---'");
  EXPECT_THAT(error_of(small_text().substr(0, small_text().size() / 2)),
              HasSubstr("error: bad YAML: "));
  EXPECT_EQ(error_of("profile: 1\ndigest: x\n"),
            "p.yaml:1:1: error: the profile has no devices, paths or collectives\n"
            "    profile: 1\n"
            "    ^");
}

TEST(BadProfileFile, NoPartOfAProfileIsOne) {
  const std::string text = small_text();
  for (std::size_t size = 0; size + 1 < text.size(); size += 7) {
    const Status status = parse_profile(text.substr(0, size), "p.yaml").status();
    ASSERT_EQ(status.code(), StatusCode::kInvalidInput) << size << " bytes: " << status.message();
  }
}

TEST(BadProfileFile, NoChangedDigitIsAccepted) {
  const std::string text = small_text();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] < '0' || text[i] > '9') continue;
    std::string changed = text;
    changed[i] = text[i] == '9' ? '8' : static_cast<char>(text[i] + 1);
    EXPECT_FALSE(parse_profile(changed, "p.yaml").ok()) << "byte " << i;
  }
}

TEST(BadProfileFile, AnotherVersionSaysWhichOneIsRead) {
  EXPECT_EQ(error_with("profile: 1", "profile: 2"),
            "p.yaml:1:10: error: profiles of version '2' cannot be read\n"
            "    profile: 2\n"
            "             ^\n"
            "  hint: this program reads version 1");
  EXPECT_THAT(error_with("profile: 1", "profile: []"),
              StartsWith("p.yaml:1:10: error: profiles of version a list cannot be read\n"));
}

TEST(BadProfileFile, TimesNeedUnitsAndMustBePossible) {
  const auto time = [](const std::string& text) {
    const std::string error = error_with("time: 80us", "time: " + text);
    const std::size_t begin = error.find("error: ");
    return error.substr(begin, error.find('\n', begin) - begin);
  };
  EXPECT_EQ(time("80"), "error: '80' lacks its unit");
  EXPECT_EQ(time("-80us"), "error: 'time' of a point of a path must be more than zero, is '-80us'");
  EXPECT_EQ(time("0"), "error: 'time' of a point of a path must be more than zero, is '0'");
  EXPECT_EQ(time("infs"), "error: 'infs' is not a time");
  EXPECT_EQ(time("nanus"), "error: 'nanus' is not a time");
  EXPECT_EQ(time("2h"), "error: unknown unit 'h' of a time");
  EXPECT_EQ(time("3600s"), "error: 'time' of a point of a path is out of range: '3600s'");
  EXPECT_EQ(time("1e999s"), "error: '1e999s' is not a time");
  EXPECT_EQ(time("[80us]"), "error: 'time' of a point of a path must be a figure, is a list");
  EXPECT_EQ(time(""), "error: a point of a path lacks 'time'");
  EXPECT_EQ(
      error_with("update: 12us", "update: -12us"),
      "p.yaml:12:62: error: 'update' of an update of device 'cpu' must not be negative, is "
      "'-12us'\n"
      "    - {optimizer: sgd, elements: 1200, tensors: 8, update: -12us, update_spread: 0.03, "
      "begin: 4us, begin_spread: 0.02}\n"
      "                                                           ^~~~~");
}

TEST(BadProfileFile, UnknownWordsAreAnsweredWithKnownOnes) {
  EXPECT_EQ(error_with("class: matmul", "class: matnul"),
            "p.yaml:15:16: error: unknown operator class 'matnul'\n"
            "    class: matnul\n"
            "           ^~~~~~\n"
            "  hint: did you mean 'matmul'? classes: convolution, matmul, normalization, softmax, "
            "pooling, reduction, elementwise, embedding, data_movement, view");
  EXPECT_EQ(error_with("algorithm: ring", "algorithm: star"),
            "p.yaml:31:16: error: unknown algorithm 'star'\n"
            "    - algorithm: star\n"
            "                 ^~~~\n"
            "  hint: algorithms: ring, hierarchical, tree");
  EXPECT_EQ(error_with("precision: fp32", "precision: fp23"),
            "p.yaml:7:16: error: unknown precision 'fp23'\n"
            "    precision: fp23\n"
            "               ^~~~\n"
            "  hint: did you mean 'fp32'? precisions: fp32, tf32, fp16, bf16");
  EXPECT_EQ(error_with("{optimizer: sgd, elements: 1200", "{optimizer: sdg, elements: 1200"),
            "p.yaml:12:21: error: unknown optimizer 'sdg'\n"
            "    - {optimizer: sdg, elements: 1200, tensors: 8, update: 12us, update_spread: 0.03, "
            "begin: 4us, begin_spread: 0.02}\n"
            "                  ^~~\n"
            "  hint: did you mean 'sgd'? optimizers: sgd, sgd momentum, adam");
  EXPECT_EQ(error_with("paths:", "pahts:"),
            "p.yaml:23:1: error: unknown key 'pahts' in profile\n"
            "    pahts:\n"
            "    ^~~~~\n"
            "  hint: did you mean 'paths'? keys: profile, digest, devices, paths, collectives");
  EXPECT_THAT(error_with("samples: 4", "sample: 4"),
              AllOf(HasSubstr("error: unknown key 'sample' in a point of 'MatMul'\n"),
                    HasSubstr("error: a point of 'MatMul' lacks 'samples'\n")));
}

TEST(BadProfileFile, NothingMayBeMeasuredTwice) {
  EXPECT_EQ(error_with("samples: 4, forward: 3us, forward_spread: 0.1, backward: 6us, "
                       "backward_spread: 0.2, flops: [256, 512], bytes: [384, 768]",
                       "samples: 1, forward: 3us, forward_spread: 0, flops: [2, 0], bytes: [3, 0]"),
            "p.yaml:18:13: error: samples: 1 is twice in 'MatMul'\n"
            "    - {samples: 1, forward: 3us, forward_spread: 0, flops: [2, 0], bytes: [3, 0]}\n"
            "      ^\n"
            "  hint: first in line 17");
  EXPECT_THAT(error_with("\"Relu(fp32[n,8]) -> fp32[n,8]\"",
                         "\"MatMul(fp32[n,4]', fp32[4,8]*) -> fp32[n,8]\""),
              HasSubstr(":19:9: error: operator 'MatMul(fp32[n,4]', fp32[4,8]*) -> fp32[n,8]' is "
                        "twice in device 'cpu'\n"));
  EXPECT_THAT(error_with("bytes: 1048576", "bytes: 1024"),
              HasSubstr(":29:9: error: bytes: 1024 is twice in a path\n"));
  const std::string path =
      "  - {from: a/0, to: b/0, links: [x], points: [{bytes: 1, time: 1us, spread: 0}]}\n";
  EXPECT_THAT(error_with("collectives:", path + "collectives:"),
              HasSubstr(":30:5: error: the path from 'a/0' to 'b/0' is twice in paths\n"));
  EXPECT_THAT(error_of(small_text() +
                       "  - {algorithm: ring, devices: [a/0, b/0], points: [{bytes: 1, time: "
                       "1us, spread: 0}]}\n"),
              HasSubstr("error: a ring all-reduce over a/0, b/0 is twice in collectives\n"));
  EXPECT_THAT(error_with("paths:", "  cpu: {precision: fp32}\npaths:"),
              HasSubstr("error: key 'cpu' is twice in devices\n"));
}

TEST(BadProfileFile, ShapesAreChecked) {
  EXPECT_THAT(error_with("flops: [64, 128]", "flops: [64]"),
              StartsWith("p.yaml:17:105: error: 'flops' of a point of 'MatMul' must be two numbers "
                         "that are not negative: forward, backward\n"));
  EXPECT_THAT(error_with("flops: [64, 128]", "flops: [64, -1]"), HasSubstr("'flops' of a point"));
  EXPECT_THAT(error_with("flops: [64, 128]", "flops: [64, inf]"), HasSubstr("'flops' of a point"));
  EXPECT_THAT(error_with(", backward_spread: 0.2, flops: [64", ", flops: [64"),
              HasSubstr("error: a point of 'MatMul' lacks 'backward_spread'\n"));
  EXPECT_THAT(error_with("models: [small_cnn]", "models: small_cnn"),
              HasSubstr("error: 'models' of device 'cpu' must be a list, is 'small_cnn'\n"));
  EXPECT_THAT(error_with("models: [small_cnn]", "models: [{}]"),
              HasSubstr("error: 'models' of device 'cpu' must have texts, not a map\n"));
  for (const char* const wrong : {"1", "-2", "two", "{}", "2.5"}) {
    EXPECT_THAT(error_with("models: [small_cnn]",
                           std::string("models: [small_cnn]\n    teams: [2, ") + wrong + "]"),
                HasSubstr("error: 'teams' of device 'cpu' must have numbers of members, not "));
  }
  EXPECT_THAT(error_with("cores: 2", "cores: [2]"),
              HasSubstr("error: 'cores' of hardware of device 'cpu' must be a text, is a list\n"));
  EXPECT_THAT(error_with("devices: [a/0, b/0]", "devices: [a/0]"),
              HasSubstr("error: an all-reduce has at least two devices\n"));
  EXPECT_THAT(error_with("spread: 0.1}\n      - {bytes: 1048576, time: 900us, spread: 0.05}",
                         "spread: -0.1}"),
              HasSubstr("error: 'spread' of a point of a path must not be negative, is '-0.1'\n"));
  EXPECT_THAT(
      error_with("communication_factor: 0.8", "communication_factor: 0"),
      HasSubstr("error: 'communication_factor' of overlap of device 'cpu' must be more than "
                "zero, is '0'\n"));
  EXPECT_THAT(error_with("cpu:", "two words:"),
              HasSubstr("error: 'two words' is no name for a device kind\n"));
  EXPECT_THAT(error_with("- {bytes: 4096, time: 200us, spread: 0.1}", "[]"),
              HasSubstr("error: a collective has no points\n"));
}

TEST(BadProfileFile, AllErrorsAreReportedAtOnce) {
  std::string text = with(small_text(), "message_overhead: 12us", "message_overhead: 12");
  text = with(text, "elements: 1200", "elements: 0");
  text = with(text, "from: a/0", "form: a/0");
  const std::string error = error_of(text);
  EXPECT_THAT(error, HasSubstr("'12' lacks its unit"));
  EXPECT_THAT(error, HasSubstr("'elements' of an update of device 'cpu' must be a whole number"));
  EXPECT_THAT(error, HasSubstr("unknown key 'form' in a path"));
  EXPECT_THAT(error, Not(HasSubstr("digest")));
}

}  // namespace
}  // namespace agpcs
