// SPDX-License-Identifier: Apache-2.0
#include "codegen/export_msccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

// Limits from microsoft/msccl, src/include/msccl.h.
constexpr std::size_t kMostSteps = 256, kMostBlocks = 216;
constexpr int kMostBlocksAChannel = 32;
constexpr long long kMostBytes = 1LL << 35;

/// A step of a thread block, and the step that it waits for (-1: it waits for none).
struct Step {
  std::string_view type;
  int chunk = 0;
  int block = -1, step = -1;  // the step that it waits for
  bool awaited = false;       // another step waits for this one
};

struct Block {
  int send = -1, recv = -1, channel = 0;
  std::vector<Step> steps;
};

/// The thread blocks of one member.
class Gpu {
 public:
  Gpu(const PlanFlow& flow, int members, int member) : flow_(flow), members_(members) {
    add_blocks(member);
    last_.resize(static_cast<std::size_t>(members * flow.sub_chunks));
    for (const FlowStep& step : flow.steps) {
      for (const FlowMessage& m : step.messages) {
        if (m.from == member) add(send_.at(m.to), "s", m.chunk, !step.gathers);
      }
      for (const FlowMessage& m : step.messages) {
        if (m.to == member) add(recv_.at(m.from), step.gathers ? "r" : "rrc", m.chunk, true);
      }
    }
  }

  const std::vector<Block>& blocks() const { return blocks_; }

 private:
  struct Place {
    int block = -1, step = -1;
  };

  // A sender and its receiver use the same channel. On a channel, at most half of a GPU's blocks
  // send, and at most half receive.
  int channel_of(int from, int to) const {
    return ((to - from + members_) % members_ - 1) / (kMostBlocksAChannel / 2);
  }

  void add_blocks(int member) {
    for (const FlowStep& step : flow_.steps) {
      for (const FlowMessage& m : step.messages) {
        if (m.from == member) send_[m.to] = 0;
        if (m.to == member) recv_[m.from] = 0;
      }
    }
    for (auto& [peer, block] : send_) {
      block = static_cast<int>(blocks_.size());
      blocks_.push_back({peer, -1, channel_of(member, peer), {}});
    }
    for (auto& [peer, block] : recv_) {
      block = static_cast<int>(blocks_.size());
      blocks_.push_back({-1, peer, channel_of(peer, member), {}});
    }
  }

  // Appends a step to `block`. A step that touches a chunk waits for the last step that received
  // into it; a gather also waits for the send of the part that it replaces. If `leads`, the next
  // step on the chunk waits for this one.
  void add(int block, std::string_view type, int chunk, bool leads) {
    Place& last = last_[static_cast<std::size_t>(chunk)];
    std::vector<Step>& steps = blocks_[static_cast<std::size_t>(block)].steps;
    Step& step = steps.emplace_back(Step{type, chunk});
    if (last.block >= 0 && last.block != block) {
      step.block = last.block;
      step.step = last.step;
      blocks_[static_cast<std::size_t>(last.block)]
          .steps[static_cast<std::size_t>(last.step)]
          .awaited = true;
    }
    if (leads) last = {block, static_cast<int>(steps.size()) - 1};
  }

  const PlanFlow& flow_;
  const int members_;
  std::vector<Block> blocks_;
  std::map<int, int> send_, recv_;  // the block, by peer
  std::vector<Place> last_;         // by chunk: the step that the next step on it waits for
};

Status check_limits(const std::vector<Block>& blocks, int member) {
  if (blocks.size() > kMostBlocks) {
    return invalid_input(fmt::format("member {} needs {} thread blocks, MSCCL has {}", member,
                                     blocks.size(), kMostBlocks));
  }
  for (const Block& block : blocks) {
    if (block.steps.size() <= kMostSteps) continue;
    return invalid_input(
        fmt::format("{} messages from member {} to member {}, MSCCL takes {} steps a thread block\n"
                    "  hint: compile the plan for fewer ranks in a stage, or export a flow with "
                    "fewer sub-chunks",
                    block.steps.size(), block.send < 0 ? block.recv : member,
                    block.send < 0 ? member : block.send, kMostSteps));
  }
  return {};
}

std::string gpu_text(const std::vector<Block>& blocks, int member, int chunks) {
  std::string text = fmt::format(
      "  <gpu id=\"{}\" i_chunks=\"{}\" o_chunks=\"{}\" s_chunks=\"0\">\n", member, chunks, chunks);
  const auto out = std::back_inserter(text);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const Block& block = blocks[b];
    fmt::format_to(out, "    <tb id=\"{}\" send=\"{}\" recv=\"{}\" chan=\"{}\">\n", b, block.send,
                   block.recv, block.channel);
    for (std::size_t s = 0; s < block.steps.size(); ++s) {
      const Step& step = block.steps[s];
      fmt::format_to(out,
                     "      <step s=\"{}\" type=\"{}\" srcbuf=\"i\" srcoff=\"{}\" dstbuf=\"i\" "
                     "dstoff=\"{}\" cnt=\"1\" depid=\"{}\" deps=\"{}\" hasdep=\"{}\"/>\n",
                     s, step.type, step.chunk, step.chunk, step.block, step.step,
                     step.awaited ? 1 : 0);
    }
    text += "    </tb>\n";
  }
  return text + "  </gpu>\n";
}

}  // namespace

Result<std::string> msccl_xml(const PlanFlow& flow, int members) {
  const int chunks = members * flow.sub_chunks;
  std::string gpus;
  int channels = 1;
  for (int member = 0; member < members; ++member) {
    const Gpu gpu(flow, members, member);
    AGPCS_RETURN_IF_ERROR(check_limits(gpu.blocks(), member));
    for (const Block& block : gpu.blocks()) channels = std::max(channels, block.channel + 1);
    gpus += gpu_text(gpu.blocks(), member, chunks);
  }
  return fmt::format(
             "<algo name=\"agpcs-{}\" nchunksperloop=\"{}\" nchannels=\"{}\" proto=\"Simple\" "
             "ngpus=\"{}\" coll=\"allreduce\" redop=\"sum\" inplace=\"1\" outofplace=\"0\" "
             "minBytes=\"0\" maxBytes=\"{}\">\n",
             flow.name, chunks, channels, members, kMostBytes) +
         gpus + "</algo>\n";
}

}  // namespace agpcs
