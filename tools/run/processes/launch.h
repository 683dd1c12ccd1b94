// SPDX-License-Identifier: Apache-2.0
// Finds out which rank this process is from the environment variables of its launcher.
#pragma once

#include <agpcs/status.h>

#include <functional>
#include <optional>
#include <string>

namespace agpcs {

/// Returns the value of an environment variable; nullopt if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

struct RankPlace {
  std::string launcher;  ///< "torchrun", "Open MPI", "Slurm", "--local"
  int rank = 0, size = 1, local_rank = 0;
  int local_size = 1;               ///< ranks on this machine; 1 if unknown
  std::optional<bool> one_machine;  ///< whether all ranks are on this machine; empty if unknown
  std::string address;              ///< address of rank 0
  int port = 0;                     ///< port of rank 0's bootstrap service
  std::string token;                ///< the job's secret
  int listen_fd = -1;  ///< rank 0 with a starter: the service's socket, which listens already
  int report_fd = -1;  ///< rank with a starter: the pipe that its last word is written to
  /// Tells whether a process of this program (--local or --elastic) watches over the rank and
  /// handles Ctrl-C.
  bool has_starter() const { return report_fd >= 0; }
  bool local() const { return has_starter() && launcher == "--local"; }
};

/// Reads the launcher's variables, in this order: torchrun's RANK, WORLD_SIZE, LOCAL_RANK; Open
/// MPI's OMPI_COMM_WORLD_*; Slurm's SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID.
/// Rank 0's address: MASTER_ADDR, else what the launcher gives.
/// Port: AGPCS_PORT, else MASTER_PORT (plus one if torchrun's agent holds that port), else one made
/// from Slurm's job number, else 29500.
/// Token: AGPCS_JOB_TOKEN, which must be of 128 random bits.
/// A rank with a starter also gets AGPCS_REPORT_FD, AGPCS_LISTEN_FD and AGPCS_LAUNCHER.
/// Returns nullopt if the variables of no launcher are set. Errors: kUsage names the variable that
/// is missing or wrong, and its value.
Result<std::optional<RankPlace>> rank_place(const Environment& environment);

/// Returns the first host of a Slurm host list: "node03" for "node[03-05,9],gpu1".
std::string first_slurm_host(const std::string& list);

}  // namespace agpcs
