// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/launch.h"

#include "runtime/bootstrap/proof.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

constexpr int kDefaultPort = 29500;
constexpr int kSlurmPorts = 20000, kFirstSlurmPort = 20000;
constexpr int kMaxPort = 65535;

Status usage(std::string message) { return {StatusCode::kUsage, std::move(message)}; }

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* machines;
};

constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, "SLURM_STEP_NUM_NODES"},
};

// Reads a whole number within [0, most]. If the variable is not set, returns `otherwise`, or an
// error if `otherwise` is -1.
Result<int> number(const Environment& environment, const std::string& name, int most,
                   int otherwise) {
  const auto text = environment(name);
  if (!text) {
    if (otherwise >= 0) return otherwise;
    return usage(fmt::format("{} is not set", name));
  }
  int value = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 0 || value > most) {
    return usage(fmt::format("{} is '{}', not a whole number within 0 and {}", name, *text, most));
  }
  return value;
}

Result<int> port_of_rank_0(const Environment& environment) {
  if (environment("AGPCS_PORT")) return number(environment, "AGPCS_PORT", kMaxPort, -1);
  if (environment("MASTER_PORT")) {
    AGPCS_TRY(const int port, number(environment, "MASTER_PORT", kMaxPort - 1, -1));
    const bool taken = environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
    return taken ? port + 1 : port;
  }
  if (environment("SLURM_JOB_ID")) {
    AGPCS_TRY(const int job,
              number(environment, "SLURM_JOB_ID", std::numeric_limits<int>::max(), -1));
    return kFirstSlurmPort + job % kSlurmPorts;
  }
  return kDefaultPort;
}

Result<std::string> address_of_rank_0(const Environment& environment, const RankPlace& place) {
  if (const auto address = environment("MASTER_ADDR")) return *address;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto nodes = environment(name)) return first_slurm_host(*nodes);
  }
  if (place.local_size == place.size) return std::string("127.0.0.1");
  return usage(
      "MASTER_ADDR is not set\n"
      "  hint: set it to the address of rank 0's machine, the same on every rank");
}

// Returns whether all ranks are on this machine, if the launcher says so.
Result<std::optional<bool>> one_machine(const Environment& environment, const Launcher& launcher,
                                        const RankPlace& place) {
  if (launcher.local_size != nullptr && environment(launcher.local_size)) {
    return std::optional(place.local_size == place.size);
  }
  if (launcher.machines == nullptr || !environment(launcher.machines)) return std::optional<bool>();
  AGPCS_TRY(const int machines, number(environment, launcher.machines, 1 << 20, -1));
  return std::optional(machines == 1);
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

std::string first_slurm_host(const std::string& list) {
  const std::size_t open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  const std::size_t end = list.find_first_of(",-]", open);
  return list.substr(0, open) + list.substr(open + 1, end - open - 1);
}

Result<std::optional<RankPlace>> rank_place(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    if (!environment(launcher.rank)) continue;
    constexpr int kMost = 1 << 20;
    RankPlace place;
    place.launcher = launcher.name;
    AGPCS_TRY(place.rank, number(environment, launcher.rank, kMost, -1));
    AGPCS_TRY(place.size, number(environment, launcher.size, kMost, -1));
    AGPCS_TRY(place.local_rank, number(environment, launcher.local_rank, kMost, 0));
    if (launcher.local_size != nullptr) {
      AGPCS_TRY(place.local_size, number(environment, launcher.local_size, kMost, 1));
    }
    if (place.rank >= place.size) {
      return usage(fmt::format("{} is {}, but {} is {}", launcher.rank, place.rank, launcher.size,
                               place.size));
    }
    AGPCS_TRY(place.one_machine, one_machine(environment, launcher, place));
    AGPCS_TRY(place.address, address_of_rank_0(environment, place));
    AGPCS_TRY(place.port, port_of_rank_0(environment));
    AGPCS_TRY(place.listen_fd, number(environment, "AGPCS_LISTEN_FD", kMost, 0));
    AGPCS_TRY(place.report_fd, number(environment, "AGPCS_REPORT_FD", kMost, 0));
    if (place.listen_fd == 0) place.listen_fd = -1;
    if (place.report_fd == 0) place.report_fd = -1;
    place.launcher = environment("AGPCS_LAUNCHER").value_or(place.launcher);
    place.token = environment("AGPCS_JOB_TOKEN").value_or("");
    if (place.token.empty() && place.size > 1) {
      return usage(
          "AGPCS_JOB_TOKEN is not set: only ranks that know it are admitted to the job\n"
          "  hint: export AGPCS_JOB_TOKEN=$(openssl rand -hex 16) before the launcher starts the "
          "ranks");
    }
    const std::string weakness = place.token.empty() ? "" : weakness_of(place.token);
    if (!weakness.empty()) {
      return usage("AGPCS_JOB_TOKEN " + weakness +
                   "\n  hint: export AGPCS_JOB_TOKEN=$(openssl rand -hex 16)");
    }
    return std::optional<RankPlace>(std::move(place));
  }
  return std::optional<RankPlace>();
}

}  // namespace agpcs
