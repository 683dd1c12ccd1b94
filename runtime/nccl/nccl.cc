// SPDX-License-Identifier: Apache-2.0
// The NCCL transport: checks each call and hands it to one of three lanes.
#include "runtime/nccl/graph.h"
#include "runtime/nccl/lane.h"
#include "runtime/nccl/links.h"
#include "runtime/nccl/meeting.h"
#include "runtime/nccl/status.h"
#include "runtime/nccl/sum.h"
#include "runtime/support/rank_group.h"
#include "runtime/support/recording.h"

#include <agpcs/nccl.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

using std::chrono::milliseconds;
using Links = std::vector<std::pair<int, int>>;

class NcclTransport final : public Transport, public RecordingTransport {
 public:
  NcclTransport(Bootstrap& bootstrap, const NcclOptions& options)
      : bootstrap_(bootstrap),
        limit_(options.connect_limit),
        meeting_(bootstrap),
        compute_(static_cast<cudaStream_t>(options.compute_stream)),
        graphs_(options.device, compute_),
        sends_(meeting_, options.device, compute_, on_lane_failure()),
        recvs_(meeting_, options.device, compute_, on_lane_failure()),
        collectives_(meeting_, options.device, compute_, on_lane_failure()) {
    bootstrap_.on_failure([this](const Status& failure) { fail(failure); });
  }
  ~NcclTransport() override;
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  Status connect(Links links);

  int rank() const override { return meeting_.rank(); }
  int size() const override { return meeting_.size(); }
  Status open_group(int group, const std::vector<int>& ranks,
                    const std::vector<int>& host_of_rank) override;
  Status open_flow(int flow, int group, const PlanFlow& schedule) override;
  Status close_groups(int first, int end) override;
  Result<Ticket> send(const Buffer& buffer, int peer, std::uint64_t tag) override;
  Result<Ticket> recv(const Buffer& buffer, int peer, std::uint64_t tag) override;
  Result<Ticket> all_reduce(const Buffer& buffer, int group, AllReduce algorithm) override;
  Result<Ticket> reduce_scatter(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                                int group, AllReduce algorithm) override;
  Result<Ticket> all_gather(const Buffer& buffer, const std::vector<std::int64_t>& parts, int group,
                            AllReduce algorithm) override;
  Result<Ticket> all_to_all(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                            int group) override {
    return collective(Collective::kAllToAll, buffer, &parts, group, AllReduce::kRing);
  }
  Result<Ticket> all_reduce_flow(const Buffer& buffer, int flow) override;
  Status wait(Stream stream, Ticket ticket, milliseconds limit) override;
  Status order_after(Stream stream, Ticket ticket, milliseconds limit) override;
  OperationTime time_of(Stream stream, Ticket ticket) const override;
  std::string recording_obstacle() const override { return graphs_.obstacle(); }
  Status begin_recording() override { return graphs_.begin(lanes()); }
  Result<std::unique_ptr<StepGraph>> end_recording(milliseconds limit) override {
    return graphs_.end(lanes(), limit);
  }
  void abort(const Status& reason) override {
    fail(reason);  // first, so that this rank reports `reason` and not its echo
    meeting_.report(reason);
  }

 private:
  NcclLane& lane(Stream stream) {
    return stream == Stream::kSend ? sends_ : stream == Stream::kRecv ? recvs_ : collectives_;
  }
  const NcclLane& lane(Stream stream) const {
    return stream == Stream::kSend ? sends_ : stream == Stream::kRecv ? recvs_ : collectives_;
  }
  NcclGraphs::Lanes lanes() { return {&sends_, &recvs_, &collectives_}; }  // by Stream
  void fail(const Status& reason) {
    for (NcclLane* lane : lanes()) lane->fail(reason);
  }
  // A replay ends only when all lanes have left its communicators, so all lanes must fail. Without
  // a replay, lanes fail by themselves (and some may not exist yet).
  std::function<void(const Status&)> on_lane_failure() {
    return [this](const Status& failure) {
      if (graphs_.give_up()) fail(failure);
    };
  }

  Result<Ticket> collective(Collective kind, const Buffer& buffer, const Parts* parts, int group,
                            AllReduce algorithm);

  Bootstrap& bootstrap_;
  const milliseconds limit_;
  NcclMeeting meeting_;
  const cudaStream_t compute_;
  NcclGraphs graphs_;
  std::map<int, NcclGroup> groups_;  // a map, because operations point to its nodes
  std::map<int, NcclFlow> flows_;    // a map for the same reason
  NcclLane sends_, recvs_, collectives_;
};

NcclTransport::~NcclTransport() {
  bootstrap_.on_failure(nullptr);
  graphs_.give_up();
  for (NcclLane* lane : {&sends_, &recvs_, &collectives_}) lane->stop();
  for (NcclLane* lane : {&sends_, &recvs_, &collectives_}) lane->await_end();
  meeting_.leave();
}

// Connects pairs. Both lanes follow one order, which is the same on all ranks, so there is
// no deadlock.
Status NcclTransport::connect(Links links) {
  for (const auto& [from, to] : links) {
    if (from < 0 || to < 0 || from >= size() || to >= size() || from == to) {
      return invalid_input(
          fmt::format("no link from rank {} to rank {}: there are {} ranks", from, to, size()));
    }
  }
  std::sort(links.begin(), links.end());
  Links out, in;
  for (const auto& link : links) {
    if (link.first == rank()) out.push_back(link);
    if (link.second == rank()) in.push_back(link);
  }
  const auto all_of = [](const Links& wanted) {
    return [wanted](NcclLinks& lane, const NcclPause& pause) -> Status {
      for (const auto& [from, to] : wanted) {
        AGPCS_RETURN_IF_ERROR(lane.connect(from, to, pause));
      }
      return {};
    };
  };
  // Even without links, this finds out whether the lanes could be set up.
  sends_.begin("connect for sending", all_of(out));
  recvs_.begin("connect for receiving", all_of(in));
  collectives_.begin("connect", all_of({}));
  const Status sending = sends_.finish(limit_);
  const Status receiving = recvs_.finish(limit_);
  const Status reducing = collectives_.finish(limit_);
  AGPCS_RETURN_IF_ERROR(sending);
  AGPCS_RETURN_IF_ERROR(receiving);
  return reducing;
}

Status NcclTransport::open_group(int group, const std::vector<int>& ranks,
                                 const std::vector<int>& host_of_rank) {
  AGPCS_TRY(RankGroup members, make_rank_group(group, ranks, host_of_rank, rank(), size()));
  const auto [node, added] = groups_.try_emplace(group);
  if (!added) return invalid_input(fmt::format("group {} is open already", group));
  NcclGroup& opened = node->second;
  opened.ranks = std::move(members);
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(opened.others),
               [&](int member) { return member != rank(); });
  collectives_.begin(
      fmt::format("open group {} over ranks {}", group, fmt::join(ranks, ",")),
      [&opened](NcclLinks& links, const NcclPause& pause) { return links.open(opened, pause); });
  return collectives_.finish(limit_);
}

Status NcclTransport::open_flow(int flow, int group, const PlanFlow& schedule) {
  AGPCS_RETURN_IF_ERROR(check_flow_number(flow));
  const auto it = groups_.find(group);
  if (it == groups_.end()) return invalid_input(fmt::format("group {} is not open", group));
  const std::vector<int>& ranks = it->second.ranks.ranks;
  AGPCS_RETURN_IF_ERROR(verify_flow(schedule, static_cast<int>(ranks.size())));
  if (!can_add_on_gpu()) {
    return {StatusCode::kUnavailable,
            "flows over NCCL need sums on the GPU, for which AGPCS was built without a CUDA "
            "compiler\n  hint: build it where nvcc is found, or compile the plan without flows"};
  }
  const auto me = std::lower_bound(ranks.begin(), ranks.end(), rank()) - ranks.begin();
  const bool added =
      flows_.try_emplace(flow, nccl_flow(it->second, schedule, static_cast<int>(me))).second;
  return added ? Status() : invalid_input(fmt::format("flow {} is open already", flow));
}

Status NcclTransport::close_groups(int first, int end) {
  const auto from = groups_.lower_bound(first), to = groups_.lower_bound(end);
  if (from == to) return {};
  collectives_.begin(fmt::format("close groups {} to {}", first, end - 1),
                     [from, to](NcclLinks& links, const NcclPause& pause) -> Status {
                       for (auto it = from; it != to; ++it) {
                         AGPCS_RETURN_IF_ERROR(links.close(it->second, pause));
                       }
                       return {};
                     });
  AGPCS_RETURN_IF_ERROR(collectives_.finish(limit_));
  std::erase_if(flows_, [&](const auto& flow) {
    const int group = flow.second.group->ranks.id;
    return group >= first && group < end;
  });
  groups_.erase(from, to);
  return {};
}

Result<Ticket> NcclTransport::send(const Buffer& buffer, int peer, std::uint64_t tag) {
  AGPCS_RETURN_IF_ERROR(check_message(rank(), size(), peer, tag));
  NcclOperation operation;
  operation.kind = NcclOperation::Kind::kSend;
  operation.buffer = buffer;
  operation.peer = peer;
  return sends_.enqueue(operation);
}

Result<Ticket> NcclTransport::recv(const Buffer& buffer, int peer, std::uint64_t tag) {
  AGPCS_RETURN_IF_ERROR(check_message(rank(), size(), peer, tag));
  NcclOperation operation;
  operation.kind = NcclOperation::Kind::kRecv;
  operation.buffer = buffer;
  operation.peer = peer;
  return recvs_.enqueue(operation);
}

Result<Ticket> NcclTransport::all_reduce(const Buffer& buffer, int group, AllReduce algorithm) {
  return collective(Collective::kAllReduce, buffer, nullptr, group, algorithm);
}

Result<Ticket> NcclTransport::reduce_scatter(const Buffer& buffer,
                                             const std::vector<std::int64_t>& parts, int group,
                                             AllReduce algorithm) {
  return collective(Collective::kReduceScatter, buffer, &parts, group, algorithm);
}

Result<Ticket> NcclTransport::all_gather(const Buffer& buffer,
                                         const std::vector<std::int64_t>& parts, int group,
                                         AllReduce algorithm) {
  return collective(Collective::kAllGather, buffer, &parts, group, algorithm);
}

Result<Ticket> NcclTransport::collective(Collective kind, const Buffer& buffer, const Parts* parts,
                                         int group, AllReduce algorithm) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return invalid_input(fmt::format("group {} is not open", group));
  AGPCS_RETURN_IF_ERROR(check_collective(kind, buffer, algorithm, parts, it->second.ranks));
  NcclOperation operation;
  operation.kind = NcclOperation::Kind::kCollective;
  operation.buffer = buffer;
  operation.group = &it->second;
  operation.collective = kind;
  operation.algorithm = algorithm;
  operation.parts = parts;
  return collectives_.enqueue(operation);
}

Result<Ticket> NcclTransport::all_reduce_flow(const Buffer& buffer, int flow) {
  const auto it = flows_.find(flow);
  if (it == flows_.end()) return invalid_input(fmt::format("flow {} is not open", flow));
  AGPCS_RETURN_IF_ERROR(check_type(Collective::kAllReduce, buffer.type));
  NcclOperation operation;
  operation.kind = NcclOperation::Kind::kCollective;
  operation.buffer = buffer;
  operation.group = it->second.group;
  operation.algorithm = AllReduce::kFlow;
  operation.flow = &it->second;
  return collectives_.enqueue(operation);
}

Status NcclTransport::wait(Stream stream, Ticket ticket, milliseconds limit) {
  return lane(stream).wait(ticket, limit);
}

Status NcclTransport::order_after(Stream stream, Ticket ticket, milliseconds limit) {
  return lane(stream).order_after(ticket, limit);
}

OperationTime NcclTransport::time_of(Stream stream, Ticket ticket) const {
  return lane(stream).time_of(ticket);
}

// The first NCCL that lets ranks share a GPU, if it is asked to.
constexpr int kSharesGpus = NCCL_VERSION(2, 30, 0);
constexpr const char* kShareGpus = "NCCL_MULTI_RANK_GPU_ENABLE";

// The library's, which may be newer than the header. 0: it does not say.
int library_version() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

bool ranks_share_gpus() {
  const char* asked = std::getenv(kShareGpus);
  return asked != nullptr && std::string_view(asked) == "1" && library_version() >= kSharesGpus;
}

Status check_device(int rank, int device) {
  const std::string obstacle = nccl_obstacle();
  if (!obstacle.empty()) {
    return {StatusCode::kUnavailable,
            fmt::format("rank {} cannot use NCCL: {}\n  hint: without GPUs, use the gloo transport",
                        rank, obstacle)};
  }
  int count = 0;
  AGPCS_RETURN_IF_ERROR(cuda_status(cudaGetDeviceCount(&count), "count the devices"));
  if (device >= 0 && device < count) return {};
  return {StatusCode::kUnavailable,
          fmt::format("rank {} cannot use CUDA device {}: this machine has {}\n"
                      "  hint: start at most as many ranks on a machine as it has devices",
                      rank, device, count)};
}

}  // namespace

std::string nccl_obstacle(int ranks) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    [[maybe_unused]] const cudaError_t cleared = cudaGetLastError();
    return fmt::format("no CUDA device was found: {}", cudaGetErrorString(error));
  }
  if (count == 0) return "no CUDA device was found";
  if (count >= ranks || ranks_share_gpus()) return {};
  return fmt::format(
      "{} ranks need as many CUDA devices, there are {}; NCCL {} lets ranks share "
      "one if {}=1, this is NCCL {}",
      ranks, count, nccl_version_text(kSharesGpus), kShareGpus,
      nccl_version_text(library_version()));
}

int nccl_device(int local_rank) {
  int count = 0;
  if (!ranks_share_gpus() || cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    return local_rank;
  }
  return local_rank % count;
}

Result<std::unique_ptr<Transport>> connect_nccl(Bootstrap& bootstrap, const NcclOptions& options) {
  if (bootstrap.tls()) {
    return invalid_input(
        "the job's connections are to be encrypted, and NCCL's own sockets encrypt nothing");
  }
  AGPCS_RETURN_IF_ERROR(check_device(bootstrap.rank(), options.device));
  AGPCS_RETURN_IF_ERROR(NcclMeeting(bootstrap).agree_on_version(options.connect_limit));
  auto transport = std::make_unique<NcclTransport>(bootstrap, options);
  AGPCS_RETURN_IF_ERROR(transport->connect(options.links));
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace agpcs
