// SPDX-License-Identifier: Apache-2.0
#include "frontend/profile_file.h"

#include "tests/profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

constexpr char kSmall[] = R"(profile: 1
digest: DIGEST
devices:
  cpu:
    hardware: {processor: Intel(R) Xeon(R), cores: 2}
    software: {agpcs: 0.1.0}
    precision: fp32
    models: [small_cnn]
    instruction_overhead: 12us
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

}  // namespace
}  // namespace agpcs
