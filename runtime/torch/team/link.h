// SPDX-License-Identifier: Apache-2.0
// TeamLink: what a member of a team exchanges with the others.
#pragma once

#include "ir/team/blocks.h"
#include "ir/team/body.h"

#include <agpcs/executor.h>
#include <agpcs/transport.h>

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace agpcs {

/// The place of a rank in a team, whose members compute a stage together.
struct TeamSeat {
  const TeamBody* body = nullptr;
  std::size_t member = 0;
  std::vector<int> ranks;  ///< of the members, in the body's order
  TeamExchanges over;
};

/// All members call the same functions in the same order, with tensors of the same type. Each call
/// comes back when its result is there, or, on a GPU, when work that is given to the device from
/// then on comes after it. Errors are KernelErrors.
class TeamLink {
 public:
  /// Needs: `seat` has a body, and where anything is exchanged a transport. It must outlive this
  /// object.
  explicit TeamLink(const TeamSeat& seat);

  std::size_t member() const { return seat_.member; }
  std::size_t members() const { return seat_.ranks.size(); }

  /// Returns the sum of the members' tensors. Takes `own`'s memory for it if nobody else has it.
  at::Tensor sum(at::Tensor own);
  /// Returns the maximum of the members' tensors, element by element.
  at::Tensor maximum(const at::Tensor& own);
  /// Makes what this member has as `to` of what the members have as `from`. `dims`: of the whole
  /// tensor. Takes `own`'s memory as `sum` does.
  at::Tensor exchange(at::Tensor own, const TeamPlacement& from, const TeamPlacement& to,
                      const std::vector<std::int64_t>& dims);
  /// Returns what this member has as `placement` of a tensor of which it has a copy; as a view, if
  /// that is one range.
  at::Tensor part_of(const at::Tensor& whole, const TeamPlacement& placement) const;
  /// Returns the dims of what a member has.
  std::vector<std::int64_t> dims_of(const TeamPlacement& placement, std::size_t of,
                                    const std::vector<std::int64_t>& dims) const;

  /// Waits until all is done that was begun.
  void settle();
  /// Returns why an exchange failed, with the code that a KernelError lacks.
  const Status& failure() const { return failure_; }

 private:
  using Parts = std::vector<std::int64_t>;
  at::Tensor gather(const at::Tensor& own, const TeamPlacement& from,
                    const std::vector<std::int64_t>& dims);
  at::Tensor scatter(const at::Tensor& own, const TeamPlacement& to,
                     const std::vector<std::int64_t>& dims);
  at::Tensor all_to_all(const at::Tensor& own, const TeamPlacement& from, const TeamPlacement& to,
                        const std::vector<std::int64_t>& dims);
  at::Tensor filled_with_zeros(const at::Tensor& own, const TeamPlacement& from,
                               const std::vector<std::int64_t>& dims) const;
  /// Returns how many elements each member has, in the order of their ranks, which must stay until
  /// the collective is done.
  const Parts& keep_parts(const TeamPlacement& placement, const std::vector<std::int64_t>& dims);
  /// Returns the members' parts of `flat`, in which they lie one behind the other.
  std::vector<at::Tensor> parts_in(const at::Tensor& flat, const TeamPlacement& placement,
                                   const std::vector<std::int64_t>& dims) const;
  std::vector<TeamBlock> blocks(const TeamPlacement& from, std::size_t giver,
                                const TeamPlacement& to, std::size_t taker) const;
  void finish(const Result<Ticket>& ticket);
  [[noreturn]] void fail(const Status& why);

  const TeamSeat& seat_;
  Status failure_;
  std::vector<std::size_t> by_rank_;  // the members in the order of their ranks
  std::deque<Parts> parts_;           // of collectives that may be under way
  Ticket begun_ = 0;                  // the last collective that was waited for on the device
};

}  // namespace agpcs
