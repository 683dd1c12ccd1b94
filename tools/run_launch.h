// SPDX-License-Identifier: Apache-2.0
// Which rank this process is, by the variables of the launcher that started it.
#pragma once

#include <agpcs/status.h>

#include <functional>
#include <optional>
#include <string>

namespace agpcs {

/// The value of an environment variable; nothing when it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

struct RankPlace {
  std::string launcher;  ///< "torchrun", "Open MPI", "Slurm", "--local"
  int rank = 0, size = 1, local_rank = 0;
  int local_size = 1;   ///< ranks on this machine; 1 when unknown
  std::string address;  ///< of rank 0
  int port = 0;         ///< of rank 0's bootstrap service
  std::string token;    ///< the job's secret
  int listen_fd = -1;   ///< of rank 0 with a starter: the service's socket, listening already
  int report_fd = -1;   ///< of a rank with a starter: where the last word is written to
  /// A starter of this program's own watches over the rank, and has Ctrl-C: --local or --elastic.
  bool has_starter() const { return report_fd >= 0; }
  bool local() const { return has_starter() && launcher == "--local"; }
};

/// Reads, in this order: torchrun's RANK, WORLD_SIZE, LOCAL_RANK; Open MPI's OMPI_COMM_WORLD_*;
/// Slurm's SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID. Rank 0's address: MASTER_ADDR, else what the
/// launcher tells. Port: AGPCS_PORT, else MASTER_PORT (the next one where torchrun's agent holds
/// it), else one made from Slurm's job number, else 29500. Token: AGPCS_JOB_TOKEN. A rank with a
/// starter gets AGPCS_REPORT_FD, AGPCS_LISTEN_FD and AGPCS_LAUNCHER besides. Nothing when no
/// launcher's variables are there. kUsage names the variable that is missing or wrong, and its
/// value.
Result<std::optional<RankPlace>> rank_place(const Environment& environment);

/// The first host of a Slurm host list: "node[03-05,9],gpu1" gives "node03".
std::string first_slurm_host(const std::string& list);

}  // namespace agpcs
