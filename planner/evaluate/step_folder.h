// SPDX-License-Identifier: Apache-2.0
// StepFolder: of ranks that do the same at the same time, it leaves one.
#pragma once

#include "cost_model/step/flat_step.h"
#include "ir/base/at.h"
#include "ir/cluster/cluster.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Folds steps. Ranks, transfers, flows and links fall into classes such that all of a class have
/// equally many neighbours in each class (an equitable partition): a rank its transfers, the other
/// members of its team and the flows of its exchanges, these flows the members of the team and
/// their links, a transfer its two ranks and its links, a link what crosses it. As everything
/// begins alike, and links are shared by what crosses them alone, all of a class do the same at the
/// same time, to the last bit: it suffices to run one of each. The flow that is left crosses a link
/// as often as all of its class do. The report ends a step on a network without other flows, so
/// that it does not matter that its tree treats ranks differently.
///
/// Classes are found by refining colors (Berkholz, Bonsma and Grohe, Theory Comput. Syst. 60(4),
/// 2017), with hashes of 64 bits for colors. Refers to `cluster`. Not for concurrent use.
class StepFolder {
 public:
  explicit StepFolder(const Cluster& cluster);

  /// Returns `step` with one rank of each class; or `step` itself if that would not have far fewer
  /// ranks, or if computing and messages slow each other on some device. What it refers to must
  /// outlive the result, which is valid until the next call. Cost: O(rounds x crossings of links),
  /// with few rounds.
  const FlatStep& fold(const FlatStep& step);
  /// Returns the number of a rank's class in the step that was returned last: the rank there.
  int rank_of(int rank) const { return folded_ ? class_of_rank_[at(rank)] : rank; }

 private:
  /// A transfer, or a flow of an all-reduce or of a team's exchange, in this order.
  struct Node {
    const Flow* flow = nullptr;
    int from = -1, to = -1;  ///< ranks, of a transfer
    std::uint64_t color = 0;
    int team = -1;
  };
  /// Numbers colors as they appear.
  class Numbers {
   public:
    void clear(std::size_t most);
    int of(std::uint64_t color);
    int size() const { return size_; }

   private:
    std::vector<std::uint64_t> colors_;
    std::vector<int> numbers_;
    int size_ = 0;
  };

  bool load(const FlatStep& step);
  void load_ranks(const FlatStep& step);
  bool may_leave_few();
  bool load_transfers(const FlatStep& step);
  void load_collectives(const FlatStep& step);
  void load_teams(const FlatStep& step);
  void load_exchanges(const FlatStep& step, int team, int first, std::size_t count);
  void touch(const Flow& flow);
  void refine();
  void color_links();
  void color_ranks();
  void color_teams();
  void color_flows();
  int count();
  void number_all();
  void build(const FlatStep& step);
  void build_groups(const FlatStep& step);
  void build_teams(const FlatStep& step);
  int build_exchanges(const FlatStep& step, int first, std::size_t count);
  void build_flows(const FlatStep& step);
  void begin_exchange(const Exchange& exchange, std::size_t& node, Exchange& folded);

  const Cluster& cluster_;
  bool may_fold_ =
      true;  // not where messages slow computing: sums of rates would differ by rounding
  bool folded_ = false;
  const FlatStep* whole_ = nullptr;  // the step that is folded
  std::vector<std::uint64_t> times_color_, rank_color_, rank_sum_;
  std::vector<std::uint64_t> team_sum_;     // of the colors of members
  std::vector<std::size_t> exchange_node_;  // by team exchange: the first of its flows
  std::vector<Node> nodes_;
  std::vector<std::uint64_t> link_color_, link_sum_;  // by link
  std::vector<LinkId> links_;                         // those that something crosses
  std::vector<char> touched_;                         // by link: it is in links_
  Numbers numbers_;
  std::vector<int> class_of_rank_, class_of_node_;
  std::vector<char> stands_;          // by link: it stands for its class
  std::vector<Flow*> flow_of_class_;  // the folded one
  std::vector<Exchange> exchanges_;
  FlatStep step_;
};

}  // namespace agpcs
