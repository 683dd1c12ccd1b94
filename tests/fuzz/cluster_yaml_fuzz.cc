// SPDX-License-Identifier: Apache-2.0
// cluster.yaml: an error that says something, or a cluster that holds its invariants. Every profile
// that it refers to is one and the same small one.
#include "frontend/cluster/file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/profiles.h"

#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace agpcs;
  const ReadProfile read = [](const std::string& path) -> Result<Profile> {
    if (path.find("missing") != std::string::npos) return invalid_input(path + ": error: missing");
    Profile profile = small_profile();
    profile.file = path;
    return profile;
  };
  const Result<ClusterFile> file = parse_cluster(fuzz::text_of(data, size), "c.yaml", read);
  if (!file.ok()) {
    const Status status = file.status();
    fuzz::require(status.code() == StatusCode::kInvalidInput, "the input is at fault",
                  status.message());
    fuzz::require(!status.message().empty(), "an error says what is wrong");
    return 0;
  }
  const Status sound = verify_cluster(file->cluster);
  fuzz::require(sound.ok(), "a cluster holds its invariants", sound.message());
  fuzz::require(!print_cluster(file->cluster).empty(), "a cluster has a text");
  return 0;
}
