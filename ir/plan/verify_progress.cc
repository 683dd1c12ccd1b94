// SPDX-License-Identifier: Apache-2.0
// Checks all programs together: the graph of waits has no cycle.
//
// Ranks of a program run it alike, so one node stands for an instruction on all of them: a cycle
// among ranks would be a cycle among these nodes. Both ends of a transfer are one node, and so are
// all ends of `report` and of the collectives of a bucket that stages share. That is rendezvous,
// the strictest way to carry them out. `issue` nodes stand for a rank that walks through its
// program with one thread. Where ranks divide gradients, a backward pass waits within, for the sum
// of one bucket when it has filled the next: that is one node for each such bucket. Where they
// divide parameters, passes wait within for each bucket that they need, and let the gather of the
// next begin there: that is two nodes.
#include "ir/plan/lookup.h"
#include "ir/plan/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <tuple>

namespace agpcs {
namespace {

class ProgressChecker {
 public:
  explicit ProgressChecker(const Plan& plan) : plan_(plan) {
    for (const Program& program : plan.programs) add_program(program);
  }

  /// Returns a message that spells out a cycle; empty when the graph has no cycle.
  std::string run() {
    std::vector<std::size_t> waits_for(nodes_.size());
    for (const Node& node : nodes_) {
      for (const std::size_t next : node.next) ++waits_for[next];
    }
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (waits_for[i] == 0) ready.push_back(i);
    }
    std::size_t done = 0;
    while (!ready.empty()) {
      const std::size_t node = ready.back();
      ready.pop_back();
      ++done;
      for (const std::size_t next : nodes_[node].next) {
        if (--waits_for[next] == 0) ready.push_back(next);
      }
    }
    return done == nodes_.size() ? "" : spell_cycle(waits_for);
  }

 private:
  struct Node {
    std::string name;  ///< empty for an issue node
    std::vector<std::size_t> next;
  };

  std::size_t add_node(std::string name) {
    nodes_.push_back({std::move(name), {}});
    return nodes_.size() - 1;
  }
  void add_edge(std::size_t first, std::size_t then) { nodes_[first].next.push_back(then); }

  /// Returns whether the programs of several stages have this collective of a bucket.
  bool is_shared(const InstructionId& id) const {
    return stream_of(id.opcode) == StreamKind::kCollective && id.object >= 0 &&
           plan_.buckets[static_cast<std::size_t>(id.object)].is_shared();
  }

  /// Returns the node of an instruction: one for both ends of a transfer, one for all of a norm or
  /// report, or of a shared bucket's collective.
  std::size_t node_of(int stage, const InstructionId& id) {
    InstructionId key = id;
    int owner = stage;
    if (id.opcode == Opcode::kRecv) key.opcode = Opcode::kSend;
    if (id.opcode == Opcode::kRecvGradient) key.opcode = Opcode::kSendGradient;
    if (key.opcode == Opcode::kSend || key.opcode == Opcode::kSendGradient ||
        is_of_all_ranks(key.opcode) || is_shared(key)) {
      owner = -1;
    }
    const auto tuple = std::tuple(owner, key.opcode, key.object, key.micro_batch);
    const auto it = ends_.find(tuple);
    if (it != ends_.end()) return it->second;
    const std::size_t node = add_node(owner < 0 ? fmt::format("'{}'", spelled(key))
                                                : fmt::format("'{}' of s{}", spelled(key), stage));
    ends_.emplace(tuple, node);
    return node;
  }

  void add_program(const Program& program) {
    constexpr std::size_t kNobody = static_cast<std::size_t>(-1);
    std::array<std::size_t, kStreamKindCount> last;
    last.fill(kNobody);
    std::size_t issued = kNobody, scattered = kNobody;
    std::map<std::pair<Opcode, int>, std::size_t> reached;  // by pass: how far it has come
    const InstructionId* gather = nullptr;                  // the last one
    for (const Instruction& instruction : program.instructions) {
      const InstructionId& id = instruction.id;
      const bool scatters = sums_one_micro_batch(id);
      const std::size_t issue = add_node("");
      const std::size_t end = node_of(program.stage, id);
      add_edge(issue, end);
      const bool within = scatters || (gathers_for_pass(id.opcode) && gather != nullptr);
      if (scatters) {  // it is issued within the pass, which then waits for the one before it
        const InstructionId pass = plan_.weight_pass(program.stage, id.micro_batch);
        std::size_t& now = reached.at({pass.opcode, id.micro_batch});
        add_edge(now, issue);
        add_edge(issue, node_of(program.stage, pass));
        if (scattered != kNobody) add_edge(scattered, issue);
        now = issue;
        scattered = end;
      } else if (within) {  // it is issued where a pass needs what the one before it brings
        const InstructionId pass = pass_of(*gather);
        std::size_t& now = reached.at({pass.opcode, pass.micro_batch});
        add_edge(now, issue);
        now = add_node("");
        add_edge(issue, now);
        add_edge(node_of(program.stage, *gather), now);
        add_edge(now, node_of(program.stage, pass));
      } else {
        if (issued != kNobody) add_edge(issued, issue);
        add_waits(program.stage, instruction, issue);
      }
      if (gathers_for_pass(id.opcode)) gather = &id;
      if (id.opcode == Opcode::kForward || makes_gradients(id.opcode)) {
        reached[{id.opcode, id.micro_batch}] = issue;
      }
      std::size_t& before = last[static_cast<std::size_t>(stream_of(id.opcode))];
      if (before != kNobody) add_edge(before, end);
      before = end;
      if (within) continue;
      issued = stream_of(id.opcode) == StreamKind::kCompute ? end : issue;
    }
    if (gather == nullptr) return;
    add_edge(node_of(program.stage, *gather), node_of(program.stage, pass_of(*gather)));
  }

  /// Returns the stage of the program of `stage` that has a bucket.
  int stage_with(int stage, int bucket) const {
    const PlanBucket& of = plan_.buckets[static_cast<std::size_t>(bucket)];
    for (const int own : stages_of(of)) {
      if (plan_.program_of(own) == plan_.program_of(stage)) return own;
    }
    return stage;
  }

  void add_waits(int stage, const Instruction& instruction, std::size_t issue) {
    for (InstructionId dependency : instruction.after) {
      if (dependency.opcode == Opcode::kGradients) {  // those of gathers are edges already
        dependency =
            plan_.weight_pass(stage_with(stage, dependency.object), dependency.micro_batch);
      }
      add_edge(node_of(stage, dependency), issue);
    }
  }

  /// Spells out a cycle. Every node that is left waits for another one that is left, so walking
  /// back reaches one that repeats.
  std::string spell_cycle(const std::vector<std::size_t>& waits_for) const {
    std::vector<std::size_t> cause(nodes_.size());
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (waits_for[i] == 0) continue;
      for (const std::size_t next : nodes_[i].next) cause[next] = i;
    }
    std::size_t at = 0;
    while (waits_for[at] == 0) ++at;
    for (std::size_t i = 0; i < nodes_.size(); ++i) at = cause[at];
    while (nodes_[at].name.empty()) at = cause[at];
    std::string text = nodes_[at].name;
    for (std::size_t i = cause[at]; i != at; i = cause[i]) {
      if (!nodes_[i].name.empty()) text += " waits for " + nodes_[i].name + ", which";
    }
    return text + " waits for " + nodes_[at].name;
  }

  const Plan& plan_;
  std::vector<Node> nodes_;
  std::map<std::tuple<int, Opcode, int, int>, std::size_t> ends_;
};

}  // namespace

void check_progress(const Plan& plan, PlanFaults& faults) {
  const std::string cycle = ProgressChecker(plan).run();
  if (cycle.empty()) return;
  faults.push_back(
      {"the ranks would wait for each other forever: " + cycle,
       "receives and sends of both stages, and all-reduces that they share, must come in one "
       "order"});
}

}  // namespace agpcs
