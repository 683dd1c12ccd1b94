// SPDX-License-Identifier: Apache-2.0
// Plans: an error that says something, or a plan that verifies, whose text is the one that was read
// and whose programs the replayer can take.
#include "ir/plan/lookup.h"
#include "runtime/replay/resolved_program.h"
#include "tests/fuzz/fuzz.h"

#include <agpcs/plan.h>

#include <string>

namespace agpcs {
namespace {

constexpr int kMostRanks = 64;  // whose programs are looked at

void expect_sound(const Plan& plan, std::string_view text) {
  const Status sound = verify_plan(plan);
  fuzz::require(sound.ok(), "a plan that was read verifies", sound.message());
  const std::string printed = print_plan(plan);
  fuzz::require(printed == text, "a plan's text is its only one", printed);
  const Result<Plan> again = parse_plan(printed, "p.plan");
  fuzz::require(again.ok(), "what is written can be read",
                again.ok() ? "" : again.status().message());
  fuzz::require(print_plan(*again) == printed, "what is written reads back the same", printed);
}

void use(const Plan& plan) {
  const int ranks = plan.rank_count() < kMostRanks ? plan.rank_count() : kMostRanks;
  fuzz::require(hosts_of_ranks(plan).size() == static_cast<std::size_t>(plan.rank_count()),
                "every rank has a host");
  for (int rank = 0; rank < ranks; ++rank) {
    const Result<ResolvedProgram> resolved = resolve(plan, rank);
    fuzz::require(resolved.ok() || resolved.status().code() == StatusCode::kInvalidInput,
                  "a verified plan can be replayed or is too large",
                  resolved.ok() ? "" : resolved.status().message());
  }
}

}  // namespace
}  // namespace agpcs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace agpcs;
  const std::string_view text = fuzz::text_of(data, size);
  const Result<Plan> plan = parse_plan(text, "p.plan");
  if (!plan.ok()) {
    const Status status = plan.status();
    fuzz::require(status.code() == StatusCode::kInvalidInput, "the input is at fault",
                  status.message());
    fuzz::require(!status.message().empty(), "an error says what is wrong");
    return 0;
  }
  expect_sound(*plan, text);
  use(*plan);
  return 0;
}
