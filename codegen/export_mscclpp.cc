// SPDX-License-Identifier: Apache-2.0
#include "codegen/export_mscclpp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

// Limits from microsoft/mscclpp, execution_common.hpp. Offsets are 32 bits wide.
constexpr std::size_t kMostOperations = 64, kMostChannels = 16, kMostChannelsAnOperation = 8;
constexpr std::int64_t kMostOffset = 0xffffffff;
constexpr int kAlignment = 16;
// All thread blocks of a GPU must run at the same time, because they wait for other GPUs.
constexpr int kMostBlocksAGpu = 64;

/// A channel to a peer; the local number of it, and of the peer's buffers, counts those of one
/// kind.
enum class Kind : std::uint8_t { kMemory, kPort };
constexpr Kind kKinds[] = {Kind::kMemory, Kind::kPort};
std::string_view word_of(Kind kind) { return kind == Kind::kMemory ? "memory" : "port"; }

/// A flow with what all GPUs must agree on.
struct SlottedFlow {
  const PlanFlow& flow;
  const std::vector<int>& hosts;
  int chunks = 0, blocks = 0;
  std::map<const FlowMessage*, int> slots;  ///< where in the receiver's scratch buffer it goes
  std::vector<int> slot_counts;             ///< by member

  SlottedFlow(const PlanFlow& of, const std::vector<int>& host_of_member)
      : flow(of), hosts(host_of_member), slot_counts(host_of_member.size(), 0) {
    chunks = static_cast<int>(hosts.size()) * flow.sub_chunks;
    blocks = std::min(chunks, kMostBlocksAGpu);
    for (const FlowStep& step : flow.steps) {
      if (step.gathers) continue;
      for (const FlowMessage& m : step.messages) {
        slots[&m] = slot_counts[static_cast<std::size_t>(m.to)]++;
      }
    }
  }
  Kind kind(int a, int b) const {
    const bool together = hosts[static_cast<std::size_t>(a)] == hosts[static_cast<std::size_t>(b)];
    return together ? Kind::kMemory : Kind::kPort;
  }
};

using Buffer = std::pair<int, char>;  // a peer, and 's' (scratch) or 'i' (the gradients)

/// A thread block of a member: what it does for its chunks.
class BlockProgram {
 public:
  BlockProgram(const SlottedFlow& plan, int member, int block)
      : plan_(plan), member_(member), block_(block) {
    collect_peers();
    for (const FlowStep& step : plan.flow.steps) {
      send(step);
      receive(step);
    }
    flush();
  }

  const std::vector<std::string>& operations() const { return operations_; }
  const std::vector<int>& peers(Kind kind) const { return peers_.at(kind); }
  const std::vector<Buffer>& buffers(Kind kind) const { return buffers_.at(kind); }

 private:
  enum class Last : std::uint8_t { kNothing, kPut, kSignal, kWait, kReduce };

  bool ours(const FlowMessage& m) const { return m.chunk % plan_.blocks == block_; }

  void collect_peers() {
    std::set<int> peers;
    std::set<Buffer> buffers;
    for (const FlowStep& step : plan_.flow.steps) {
      for (const FlowMessage& m : step.messages) {
        if (!ours(m)) continue;
        if (m.to == member_) peers.insert(m.from);
        if (m.from != member_) continue;
        peers.insert(m.to);
        buffers.insert({m.to, step.gathers ? 'i' : 's'});
      }
    }
    for (const Kind kind : kKinds) {
      peers_[kind] = {};
      buffers_[kind] = {};
    }
    for (const int peer : peers) peers_[plan_.kind(member_, peer)].push_back(peer);
    for (const Buffer& b : buffers) buffers_[plan_.kind(member_, b.first)].push_back(b);
  }

  int channel_to(int peer) const {
    const std::vector<int>& peers = peers_.at(plan_.kind(member_, peer));
    return static_cast<int>(std::find(peers.begin(), peers.end(), peer) - peers.begin());
  }

  int buffer_of(const Buffer& buffer) const {
    const std::vector<Buffer>& all = buffers_.at(plan_.kind(member_, buffer.first));
    return static_cast<int>(std::find(all.begin(), all.end(), buffer) - all.begin());
  }

  // The threads of a block go on together ("nop" is __syncthreads) where one needs what others did.
  void add(std::string operation, Last kind, bool together) {
    if (together) operations_.emplace_back(R"({"name": "nop"})");
    operations_.push_back(std::move(operation));
    last_ = kind;
  }

  void send(const FlowStep& step) {
    std::vector<int> peers;
    for (const FlowMessage& m : step.messages) {
      if (m.from != member_ || !ours(m)) continue;
      const int buffer = buffer_of({m.to, step.gathers ? 'i' : 's'});
      add(fmt::format(R"({{"name": "put", "src_buff": [{{"type": "i", "index": {}, "size": 1}}], )"
                      R"("dst_buff": [{{"buffer_id": {}, "index": {}, "size": 1}}], )"
                      R"("channel_ids": [{}], "channel_type": "{}"}})",
                      m.chunk, buffer, step.gathers ? m.chunk : plan_.slots.at(&m),
                      channel_to(m.to), word_of(plan_.kind(member_, m.to))),
          Last::kPut, last_ == Last::kWait || last_ == Last::kReduce);
      peers.push_back(m.to);
    }
    synchronize("signal", Last::kSignal, peers);
  }

  void receive(const FlowStep& step) {
    std::vector<int> peers;
    for (const FlowMessage& m : step.messages) {
      if (m.to == member_ && ours(m)) peers.push_back(m.from);
    }
    synchronize("wait", Last::kWait, peers);
    if (step.gathers) return;
    for (const FlowMessage& m : step.messages) {
      if (m.to != member_ || !ours(m)) continue;
      add(fmt::format(R"({{"name": "re", "src_buff": [{{"type": "i", "index": {0}, "size": 1}}, )"
                      R"({{"type": "s", "index": {1}, "size": 1}}], )"
                      R"("dst_buff": [{{"type": "i", "index": {0}, "size": 1}}], )"
                      R"("reduce_op": "sum"}})",
                      m.chunk, plan_.slots.at(&m)),
          Last::kReduce, last_ == Last::kWait);
    }
  }

  // One operation serves several channels of a kind, each once.
  void synchronize(std::string_view name, Last kind, const std::vector<int>& peers) {
    for (const Kind channels : kKinds) {
      std::vector<int> ids;
      const auto finish = [&] {
        if (ids.empty()) return;
        add(fmt::format(R"({{"name": "{}", "channel_ids": [{}], "channel_type": "{}"}})", name,
                        fmt::join(ids, ", "), word_of(channels)),
            kind, last_ == Last::kPut);
        ids.clear();
      };
      for (const int peer : peers) {
        if (plan_.kind(member_, peer) != channels) continue;
        const int id = channel_to(peer);
        const bool again = std::find(ids.begin(), ids.end(), id) != ids.end();
        if (again || ids.size() == kMostChannelsAnOperation) finish();
        ids.push_back(id);
      }
      finish();
    }
  }

  // What a port sends may still be read when the last message has arrived here.
  void flush() {
    std::vector<int> ids;
    for (const Buffer& buffer : buffers_[Kind::kPort]) {
      const int id = channel_to(buffer.first);
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    for (std::size_t i = 0; i < ids.size(); i += kMostChannelsAnOperation) {
      const std::size_t end = std::min(ids.size(), i + kMostChannelsAnOperation);
      const std::vector<int> some(ids.begin() + static_cast<std::ptrdiff_t>(i),
                                  ids.begin() + static_cast<std::ptrdiff_t>(end));
      operations_.push_back(
          fmt::format(R"({{"name": "flush", "channel_ids": [{}], "channel_type": "port"}})",
                      fmt::join(some, ", ")));
    }
  }

  const SlottedFlow& plan_;
  const int member_, block_;
  std::map<Kind, std::vector<int>> peers_;
  std::map<Kind, std::vector<Buffer>> buffers_;
  std::vector<std::string> operations_;
  Last last_ = Last::kNothing;
};

Status check_block(const BlockProgram& block, int member) {
  std::size_t channels = 0;
  for (const Kind kind : kKinds) {
    channels = std::max({channels, block.peers(kind).size(), block.buffers(kind).size()});
  }
  if (channels > kMostChannels) {
    return invalid_input(
        fmt::format("member {} needs {} channels or buffers in a thread block, MSCCL++ has {}\n"
                    "  hint: compile the plan for fewer ranks in a stage, or for another algorithm",
                    member, channels, kMostChannels));
  }
  if (block.operations().size() > kMostOperations) {
    return invalid_input(
        fmt::format("member {} needs {} operations in a thread block, MSCCL++ has {}\n"
                    "  hint: compile the plan for fewer ranks in a stage, or for another algorithm",
                    member, block.operations().size(), kMostOperations));
  }
  return {};
}

/// Joins items as lines of a JSON array that begin with `indent`.
std::string array(const std::vector<std::string>& items, std::string_view indent) {
  if (items.empty()) return "[]";
  return fmt::format("[\n{0}  {1}\n{0}]", indent, fmt::join(items, fmt::format(",\n{}  ", indent)));
}

std::vector<int> numbers(int first, std::size_t count) {
  std::vector<int> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(first + static_cast<int>(i));
  return all;
}

/// Numbers the channels and remote buffers of a GPU while its thread blocks are printed.
class GpuNumbers {
 public:
  std::string block_text(const BlockProgram& block, int id) {
    std::vector<std::string> channels, buffers;
    for (const Kind kind : kKinds) {
      const std::vector<int>& peers = block.peers(kind);
      std::vector<int>& connected = connected_[kind];
      if (!peers.empty()) {
        channels.push_back(fmt::format(
            R"({{"channel_type": "{}", "channel_ids": [{}]}})", word_of(kind),
            fmt::join(numbers(static_cast<int>(connected.size()), peers.size()), ", ")));
      }
      connected.insert(connected.end(), peers.begin(), peers.end());
      if (block.buffers(kind).empty()) continue;
      buffers.push_back(fmt::format(R"({{"access_channel_type": "{}", "remote_buffer_ids": [{}]}})",
                                    word_of(kind),
                                    fmt::join(ids_of(block.buffers(kind), kind), ", ")));
    }
    return fmt::format(
        "{{\n          \"id\": {},\n          \"ops\": {},\n          \"channels\": {},\n"
        "          \"remote_buffer_refs\": {}\n        }}",
        id, array(block.operations(), "          "), array(channels, "          "),
        array(buffers, "          "));
  }

  std::string channels_text() const {
    std::vector<std::string> lines;
    for (const auto& [kind, peers] : connected_) {
      if (peers.empty()) continue;
      lines.push_back(fmt::format(R"({{"channel_type": "{}", "connected_to": [{}]}})",
                                  word_of(kind), fmt::join(peers, ", ")));
    }
    return array(lines, "      ");
  }

  std::string buffers_text() const { return array(buffers_, "      "); }

 private:
  std::vector<int> ids_of(const std::vector<Buffer>& buffers, Kind kind) {
    std::vector<int> ids;
    for (const Buffer& buffer : buffers) {
      const auto [at, is_new] = id_of_.try_emplace(buffer, static_cast<int>(buffers_.size()));
      if (is_new) {
        buffers_.push_back(
            fmt::format(R"({{"rank": {}, "type": "{}", "access_channel_types": ["{}"]}})",
                        buffer.first, buffer.second, word_of(kind)));
      }
      ids.push_back(at->second);
    }
    return ids;
  }

  std::map<Kind, std::vector<int>> connected_;
  std::map<Buffer, int> id_of_;
  std::vector<std::string> buffers_;
};

Result<std::string> gpu_json(const SlottedFlow& plan, int member) {
  GpuNumbers gpu;
  std::vector<std::string> blocks;
  for (int b = 0; b < plan.blocks; ++b) {
    const BlockProgram block(plan, member, b);
    AGPCS_RETURN_IF_ERROR(check_block(block, member));
    blocks.push_back(gpu.block_text(block, b));
  }
  return fmt::format(
      "{{\n      \"id\": {0},\n      \"input_chunks\": {1},\n      \"output_chunks\": {1},\n"
      "      \"scratch_chunks\": {2},\n      \"threadblocks\": [\n        {3}\n      ],\n"
      "      \"channels\": {4},\n      \"remote_buffers\": {5},\n      \"semaphores\": []\n    }}",
      member, plan.chunks, plan.slot_counts[static_cast<std::size_t>(member)],
      fmt::join(blocks, ",\n        "), gpu.channels_text(), gpu.buffers_text());
}

}  // namespace

std::int64_t mscclpp_unit(const PlanFlow& flow, int members) {
  return std::int64_t{members} * flow.sub_chunks * kAlignment;
}

Result<std::string> mscclpp_json(const PlanFlow& flow, const std::vector<int>& host_of_member) {
  const SlottedFlow plan(flow, host_of_member);
  std::vector<std::string> gpus;
  for (int member = 0; member < static_cast<int>(host_of_member.size()); ++member) {
    AGPCS_TRY(std::string text, gpu_json(plan, member));
    gpus.push_back(std::move(text));
  }
  const int most_slots = *std::max_element(plan.slot_counts.begin(), plan.slot_counts.end());
  const std::int64_t unit = mscclpp_unit(flow, static_cast<int>(host_of_member.size()));
  const std::int64_t most_units =
      kMostOffset / (std::int64_t{std::max(plan.chunks, most_slots)} * kAlignment);
  return fmt::format(
      "{{\n  \"name\": \"agpcs-{}\",\n  \"collective\": \"allreduce\",\n"
      "  \"protocol\": \"Simple\",\n  \"inplace\": true,\n  \"reuse_resources\": false,\n"
      "  \"gpus\": [\n    {}\n  ],\n  \"num_threads_per_block\": 1024,\n"
      "  \"use_double_scratch_buffer\": false,\n  \"buffer_alignment\": {},\n"
      "  \"min_message_size\": {},\n  \"max_message_size\": {}\n}}\n",
      flow.name, fmt::join(gpus, ",\n    "), kAlignment, unit, most_units * unit);
}

}  // namespace agpcs
