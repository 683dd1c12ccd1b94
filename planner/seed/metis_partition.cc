// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/metis_partition.h"

#include "ir/base/at.h"

#include <fmt/format.h>
#include <metis.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <map>
#include <mutex>
#include <numeric>
#include <unistd.h>
#include <utility>

namespace agpcs {
namespace {

constexpr double kTotalWeight = 1e8;  // METIS adds up weights in 32 bits

/// Returns `value` as a part of `total` in METIS's integers.
idx_t scaled(double value, double total) {
  return total > 0 ? static_cast<idx_t>(std::llround(value / total * kTotalWeight)) : 0;
}

/// The block graph without directions, in METIS's compressed row format.
struct MetisGraph {
  std::vector<idx_t> first = {0}, neighbour, edge_weight, vertex_weight;
  std::vector<idx_t> vertex_size;  // what it sends to each part that reads it, by vertex

  explicit MetisGraph(const BlockGraph& blocks) {
    double flops = 0, bytes = 0, sent = 0;
    for (const Block& block : blocks.blocks) flops += block.flops;
    std::vector<std::vector<std::pair<int, double>>> rows(blocks.blocks.size());
    std::vector<double> out(blocks.blocks.size());
    for (const BlockEdge& edge : blocks.edges) {
      bytes += edge.bytes;
      out[at(edge.from)] = std::max(out[at(edge.from)], edge.bytes);
      rows[at(edge.from)].emplace_back(edge.to, edge.bytes);
      rows[at(edge.to)].emplace_back(edge.from, edge.bytes);
    }
    for (const double most : out) sent += most;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      vertex_size.push_back(std::max<idx_t>(1, scaled(out[i], sent)));
      vertex_weight.push_back(scaled(blocks.blocks[i].flops, flops));
      for (const auto& [to, weight] : rows[i]) {
        neighbour.push_back(to);
        edge_weight.push_back(std::max<idx_t>(1, scaled(weight, bytes)));
      }
      first.push_back(static_cast<idx_t>(neighbour.size()));
    }
  }
};

/// Undoes what METIS does to its process. One at a time in a process.
/// * METIS prints if a part gets no vertex, which is no error here. Meanwhile `stdout` leads
///   nowhere; file descriptor 1 stays, because other threads write there.
/// * METIS handles SIGTERM, which it raises for its own errors, and SIGABRT, and restores handlers
///   that work only once. A SIGTERM that comes meanwhile is blocked and delivered afterwards.
///   (Threads that block SIGTERM never see METIS's handler; another thread would.)
class AroundMetis {
 public:
  AroundMetis() : alone_(one_at_a_time()), stdout_(stdout) {
    sigemptyset(&term_);
    sigaddset(&term_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term_, &old_mask_);
    sigaction(SIGTERM, nullptr, &on_term_);
    sigaction(SIGABRT, nullptr, &on_abort_);
    nowhere_ = std::fopen("/dev/null", "we");
    if (nowhere_ != nullptr) stdout = nowhere_;
  }
  AroundMetis(const AroundMetis&) = delete;
  AroundMetis& operator=(const AroundMetis&) = delete;
  ~AroundMetis() {
    stdout = stdout_;
    if (nowhere_ != nullptr) std::fclose(nowhere_);
    sigaction(SIGTERM, &on_term_, nullptr);
    sigaction(SIGABRT, &on_abort_, nullptr);
    pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  }

  /// Returns whether METIS raised SIGTERM, as it does when it fails.
  bool failed() const {
    sigset_t pending;
    if (sigpending(&pending) != 0 || sigismember(&pending, SIGTERM) == 0) return false;
    const timespec at_once{};
    siginfo_t info;
    if (sigtimedwait(&term_, &info, &at_once) != SIGTERM) return false;
    const bool raised = info.si_code == SI_TKILL && info.si_pid == getpid();
    if (!raised) kill(getpid(), SIGTERM);
    return raised;
  }

 private:
  static std::mutex& one_at_a_time() {
    static std::mutex mutex;
    return mutex;
  }

  const std::lock_guard<std::mutex> alone_;
  std::FILE* const stdout_;
  std::FILE* nowhere_ = nullptr;
  sigset_t term_{}, old_mask_{};
  struct sigaction on_term_ {};
  struct sigaction on_abort_ {};
};

/// Returns the FLOPs of the most loaded part, relative to its target.
double worst_load(const BlockGraph& blocks, const std::vector<int>& parts,
                  const std::vector<double>& targets) {
  std::vector<double> load(targets.size());
  for (std::size_t i = 0; i < parts.size(); ++i) load[at(parts[i])] += blocks.blocks[i].flops;
  double worst = 0;
  for (std::size_t i = 0; i < load.size(); ++i) worst = std::max(worst, load[i] / targets[i]);
  return worst;
}

/// Returns the old part numbers by mean position, with parts without FLOPs last; ties go to the
/// lower number.
std::vector<int> by_position(const BlockGraph& blocks, const std::vector<int>& parts,
                             std::size_t count) {
  std::vector<double> position(count), weight(count);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    position[at(parts[i])] += blocks.blocks[i].flops * static_cast<double>(i);
    weight[at(parts[i])] += blocks.blocks[i].flops;
  }
  const auto mean = [&](int part) {
    return weight[at(part)] > 0 ? position[at(part)] / weight[at(part)]
                                : static_cast<double>(parts.size());
  };
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return mean(a) < mean(b); });
  return order;
}

}  // namespace

Result<std::vector<int>> metis_partition(const BlockGraph& blocks,
                                         const std::vector<double>& targets,
                                         const MetisOptions& given) {
  MetisGraph graph(blocks);
  idx_t options[METIS_NOPTIONS];
  METIS_SetDefaultOptions(options);
  const bool volume = given.objective == MetisObjective::kVolume;
  options[METIS_OPTION_SEED] = static_cast<idx_t>(given.seed & 0x7fffffff);
  options[METIS_OPTION_NUMBERING] = 0;
  options[METIS_OPTION_UFACTOR] = given.imbalance;
  options[METIS_OPTION_OBJTYPE] = volume ? METIS_OBJTYPE_VOL : METIS_OBJTYPE_CUT;
  std::vector<real_t> fractions(targets.begin(), targets.end());
  idx_t vertices = static_cast<idx_t>(blocks.blocks.size());
  idx_t constraints = 1, parts = static_cast<idx_t>(targets.size()), cut = 0;
  std::vector<idx_t> part(blocks.blocks.size());
  const AroundMetis around;
  const int result = METIS_PartGraphKway(
      &vertices, &constraints, graph.first.data(), graph.neighbour.data(),
      graph.vertex_weight.data(), volume ? graph.vertex_size.data() : nullptr,
      graph.edge_weight.data(), &parts, fractions.data(), nullptr, options, &cut, part.data());
  if (around.failed() || result != METIS_OK) {
    return internal_error(fmt::format("METIS_PartGraphKway returned {} for {} blocks in {} parts",
                                      result, blocks.blocks.size(), targets.size()));
  }
  return std::vector<int>(part.begin(), part.end());
}

std::vector<int> make_convex(const BlockGraph& blocks, const std::vector<int>& parts,
                             const std::vector<double>& targets, std::vector<int>& order) {
  order = by_position(blocks, parts, targets.size());
  std::vector<int> rank(targets.size());
  std::vector<double> ordered_targets;
  for (std::size_t i = 0; i < order.size(); ++i) {
    rank[at(order[i])] = static_cast<int>(i);
    ordered_targets.push_back(targets[at(order[i])]);
  }
  std::vector<int> later;
  for (const int part : parts) later.push_back(rank[at(part)]);
  std::vector<int> earlier = later;
  for (const BlockEdge& edge : blocks.edges) {  // all edges into `from` came before
    later[at(edge.to)] = std::max(later[at(edge.to)], later[at(edge.from)]);
  }
  for (auto edge = blocks.edges.rbegin(); edge != blocks.edges.rend(); ++edge) {
    earlier[at(edge->from)] = std::min(earlier[at(edge->from)], earlier[at(edge->to)]);
  }
  const double worst_later = worst_load(blocks, later, ordered_targets);
  const double worst_earlier = worst_load(blocks, earlier, ordered_targets);
  return worst_earlier < worst_later ? earlier : later;
}

std::vector<int> cut_at_targets(const BlockGraph& blocks, const std::vector<double>& targets) {
  double total = 0, before = 0, bound = targets[0];
  for (const Block& block : blocks.blocks) total += block.flops;
  std::vector<int> parts;
  std::size_t part = 0;
  for (const Block& block : blocks.blocks) {
    while (part + 1 < targets.size() && before + block.flops / 2 > bound * total) {
      bound += targets[++part];
    }
    parts.push_back(static_cast<int>(part));
    before += block.flops;
  }
  return parts;
}

}  // namespace agpcs
