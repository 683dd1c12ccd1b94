// SPDX-License-Identifier: Apache-2.0
// Topology files of NCCL: an error that says something, or hosts with GPUs that travel between
// ranks unchanged and whose description is a cluster file, if not always one that can be planned.
#include "frontend/cluster/file.h"
#include "tests/fuzz/fuzz.h"
#include "tools/cluster/describe.h"
#include "tools/cluster/gather.h"
#include "tools/cluster/nccl_topo.h"

#include <sstream>
#include <string>

namespace agpcs {
namespace {

void expect_travels(const FoundHost& host) {
  const std::string text = print_host(host);
  const Result<FoundHost> again = parse_host(text);
  fuzz::require(again.ok(), "a host's report can be read",
                again.ok() ? "" : again.status().message() + "\n" + text);
  fuzz::require(print_host(*again) == text, "and reads back the same", text);
}

void expect_cluster_file(const Description& description) {
  const Result<ClusterFile> file = parse_cluster(description.text, "cluster.yaml");
  if (file.ok()) {
    const Status sound = verify_cluster(file->cluster);
    fuzz::require(sound.ok(), "a described cluster holds its invariants", sound.message());
    return;
  }
  const std::string message = file.status().message();
  fuzz::require(file.status().code() == StatusCode::kInvalidInput, "the hosts are at fault",
                message);
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(": error: ") == std::string::npos) continue;  // it quotes the description
    for (const char* ours :
         {"bad YAML", "unknown key", " is twice in ", "must be a map", "lacks '"}) {
      fuzz::require(line.find(ours) == std::string::npos, "a description has the form of one",
                    message + "\n" + description.text);
    }
  }
}

}  // namespace
}  // namespace agpcs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace agpcs;
  const Result<NcclTopology> topology = parse_nccl_topology(fuzz::text_of(data, size), "t.xml");
  if (!topology.ok()) {
    const Status status = topology.status();
    fuzz::require(status.code() == StatusCode::kInvalidInput, "the input is at fault",
                  status.message());
    fuzz::require(!status.message().empty(), "an error says what is wrong");
    return 0;
  }
  fuzz::require(!topology->hosts.empty(), "a topology has a host");
  for (const FoundHost& host : topology->hosts) {
    fuzz::require(!host.gpus.empty(), "a host has a GPU", host.name);
    expect_travels(host);
  }
  const Description description = describe_cluster(topology->hosts, "lab", "t.xml");
  fuzz::require(describe_cluster(topology->hosts, "lab", "t.xml").text == description.text,
                "a description is the same each time");
  expect_cluster_file(description);
  return 0;
}
