// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/local.h"

#include "runtime/bootstrap/listen_place.h"
#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/socket.h"
#include "tools/run/processes/rank_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <poll.h>
#include <system_error>
#include <utility>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

class LocalRanks {
 public:
  Status start(const std::vector<std::string>& names, const std::string& command,
               const std::vector<std::string>& args, const std::string& bind,
               const std::vector<int>& local_ranks);
  /// Waits until all have ended.
  void wait();
  std::vector<RankEnd> ends() const;
  int signal() const { return signals_.caught(); }

 private:
  bool any_left() const;
  void poll_until(Clock::time_point deadline);
  void kill_all();

  StarterSignals signals_;
  Fd listening_;
  std::deque<RankProcess> ranks_;
};

Status LocalRanks::start(const std::vector<std::string>& names, const std::string& command,
                         const std::vector<std::string>& args, const std::string& bind,
                         const std::vector<int>& local_ranks) {
  const std::string loopback = "127.0.0.1";
  AGPCS_TRY(const std::string token, random_token());
  AGPCS_TRY(const std::string place, address_of_bind(bind.empty() ? loopback : bind, loopback));
  AGPCS_TRY(listening_, listen_at(place));
  AGPCS_RETURN_IF_ERROR(signals_.watch());
  std::vector<std::string> argv{command};
  argv.insert(argv.end(), args.begin(), args.end());
  const std::string size = std::to_string(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string rank = std::to_string(i);
    const std::string local_rank = local_ranks.empty() ? rank : std::to_string(local_ranks[i]);
    const EnvironmentVariables variables{
        {"RANK", rank},
        {"WORLD_SIZE", size},
        {"LOCAL_RANK", local_rank},
        {"LOCAL_WORLD_SIZE", size},
        {"MASTER_ADDR", is_every_address(place) ? loopback : place},
        {"AGPCS_PORT", std::to_string(port_of(listening_.get()))},
        {"AGPCS_JOB_TOKEN", token},
        {"AGPCS_LAUNCHER", "--local"}};
    AGPCS_RETURN_IF_ERROR(ranks_.emplace_back(names[i]).start(
        argv, variables, i == 0 ? listening_.get() : -1, signals_.old_mask()));
  }
  return {};
}

void LocalRanks::wait() {
  auto deadline = Clock::time_point::max();
  while (any_left()) {
    poll_until(deadline);
    if (signals_.read()) {
      for (const RankProcess& rank : ranks_) rank.ask_to_stop();
    }
    for (RankProcess& rank : ranks_) {
      rank.read_word();
      if (rank.reap() && rank.end().failed())
        deadline = std::min(deadline, Clock::now() + kEndGrace);
    }
    if (signals_.caught_twice() || Clock::now() >= deadline) {
      kill_all();
      deadline = Clock::time_point::max();  // SIGCHLD reports their ends
    }
  }
}

void LocalRanks::poll_until(Clock::time_point deadline) {
  std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
  for (const RankProcess& rank : ranks_) {
    if (rank.report_fd() >= 0) fds.push_back({rank.report_fd(), POLLIN, 0});
  }
  poll(fds.data(), fds.size(), poll_timeout(deadline));
}

bool LocalRanks::any_left() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const RankProcess& rank) { return rank.running(); });
}

void LocalRanks::kill_all() {
  for (RankProcess& rank : ranks_) rank.kill();
}

std::vector<RankEnd> LocalRanks::ends() const {
  std::vector<RankEnd> ends;
  for (const RankProcess& rank : ranks_) ends.push_back(rank.end());
  return ends;
}

}  // namespace

Status run_local(const std::vector<std::string>& names, const std::string& command,
                 const std::vector<std::string>& args, const std::string& bind,
                 const std::vector<int>& local_ranks, std::vector<int>* lost) {
  LocalRanks ranks;
  AGPCS_RETURN_IF_ERROR(ranks.start(names, command, args, bind, local_ranks));
  ranks.wait();
  const std::vector<RankEnd> ends = ranks.ends();
  if (lost != nullptr && ranks.signal() == 0) *lost = lost_ranks(ends);
  return verdict(ends, ranks.signal());
}

Status check_all_can_read(std::string_view option, std::string_view noun, const std::string& path) {
  std::error_code none;  // ignored: whoever reads the file reports why it cannot be read
  if (path != "-" && !std::filesystem::is_fifo(path, none)) return {};
  return {StatusCode::kUsage,
          fmt::format("{} needs the {} in a file: every rank reads it", option, noun)};
}

}  // namespace agpcs
