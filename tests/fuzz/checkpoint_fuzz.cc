// SPDX-License-Identifier: Apache-2.0
// Manifests of checkpoints: an error that says something, or a checkpoint whose text is the one
// that was read. The last line, the digest of all before it, is corrected: no fuzzer finds one.
#include "runtime/job/checkpoint.h"
#include "tests/fuzz/fuzz.h"

#include <agpcs/digest.h>
#include <agpcs/plan.h>

#include <string>
#include <string_view>

namespace agpcs {
namespace {

void expect_sound(std::string_view text) {
  const Result<Checkpoint> checkpoint = parse_checkpoint(text, "c.txt");
  if (!checkpoint.ok()) {
    const Status status = checkpoint.status();
    fuzz::require(status.code() == StatusCode::kInvalidInput, "the input is at fault",
                  status.message());
    fuzz::require(!status.message().empty(), "an error says what is wrong");
    return;
  }
  const std::string printed = print_checkpoint(*checkpoint);
  fuzz::require(printed == text, "a manifest's text is its only one", printed);
}

}  // namespace
}  // namespace agpcs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace agpcs;
  const std::string text(fuzz::text_of(data, size));
  expect_sound(text);
  const std::size_t end = text.rfind("end ");
  if (end != std::string::npos) {
    expect_sound(text.substr(0, end) + "end digest=" + digest_of(text.substr(0, end)) + "\n");
  }
  return 0;
}
