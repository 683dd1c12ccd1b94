// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/team/link.h"

#include "runtime/torch/ops/ops.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

using Dims = std::vector<std::int64_t>;

Buffer buffer_of(const at::Tensor& x) {
  return {x.data_ptr(), x.nbytes(), dtype_of(x.scalar_type()), x.is_cuda()};
}

std::int64_t elements(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

at::Tensor given(at::Tensor x, const TeamBlock& block) {
  for (const TeamBlock::Along& along : block.along) {
    x = x.narrow(along.axis, along.giver, along.size);
  }
  return x;
}

at::Tensor taken(at::Tensor x, const TeamBlock& block) {
  for (const TeamBlock::Along& along : block.along) {
    x = x.narrow(along.axis, along.taker, along.size);
  }
  return x;
}

void copy(const std::vector<TeamBlock>& blocks, const at::Tensor& giver, const at::Tensor& taker) {
  for (const TeamBlock& block : blocks) taken(taker, block).copy_(given(giver, block));
}

/// Writes blocks one behind the other to `flat`, or reads them from there.
void pack(const std::vector<TeamBlock>& blocks, const at::Tensor& giver, const at::Tensor& flat) {
  std::int64_t at = 0;
  for (const TeamBlock& block : blocks) {
    const at::Tensor own = given(giver, block);
    flat.narrow(0, at, own.numel()).view(own.sizes()).copy_(own);
    at += own.numel();
  }
}

void unpack(const std::vector<TeamBlock>& blocks, const at::Tensor& flat, const at::Tensor& taker) {
  std::int64_t at = 0;
  for (const TeamBlock& block : blocks) {
    const at::Tensor own = taken(taker, block);
    own.copy_(flat.narrow(0, at, own.numel()).view(own.sizes()));
    at += own.numel();
  }
}

/// Returns the elements of blocks of a tensor that has `dims` at its taker.
std::int64_t elements_of(const std::vector<TeamBlock>& blocks, const Dims& dims) {
  std::int64_t count = 0;
  for (const TeamBlock& block : blocks) {
    Dims own = dims;
    for (const TeamBlock::Along& along : block.along) {
      own[static_cast<std::size_t>(along.axis)] = along.size;
    }
    count += elements(own);
  }
  return count;
}

/// Returns whether members' parts that lie one behind the other are the whole tensor.
bool lie_behind_one_another(const TeamPlacement& part, const Dims& dims) {
  return part.bands.size() == 1 && elements({dims.begin(), dims.begin() + part.axis}) == 1;
}

}  // namespace

TeamLink::TeamLink(const TeamSeat& seat) : seat_(seat), by_rank_(seat.ranks.size()) {
  std::iota(by_rank_.begin(), by_rank_.end(), std::size_t{0});
  std::sort(by_rank_.begin(), by_rank_.end(),
            [&](std::size_t a, std::size_t b) { return seat_.ranks[a] < seat_.ranks[b]; });
}

void TeamLink::finish(const Result<Ticket>& ticket) {
  Status status = ticket.status();
  if (status.ok()) {
    status = seat_.over.transport->order_after(Stream::kCollective, *ticket, seat_.over.limit);
  }
  if (!status.ok()) fail(status);
  begun_ = *ticket;
}

void TeamLink::fail(const Status& why) {
  seat_.over.transport->abort(why);
  // Afterwards it touches no buffer any more.
  (void)seat_.over.transport->wait(Stream::kCollective, 0, seat_.over.limit);
  failure_ = why;
  throw KernelError(why.message());
}

void TeamLink::settle() {
  if (begun_ != 0) {
    const Status done = seat_.over.transport->wait(Stream::kCollective, begun_, seat_.over.limit);
    if (!done.ok()) fail(done);
  }
  parts_.clear();
}

std::vector<TeamBlock> TeamLink::blocks(const TeamPlacement& from, std::size_t giver,
                                        const TeamPlacement& to, std::size_t taker) const {
  return shared_blocks(seat_.body->divisions, from, giver, to, taker);
}

std::vector<std::int64_t> TeamLink::dims_of(const TeamPlacement& placement, std::size_t of,
                                            const Dims& dims) const {
  return member_dims(seat_.body->divisions, placement, of, dims);
}

const TeamLink::Parts& TeamLink::keep_parts(const TeamPlacement& placement, const Dims& dims) {
  Parts& parts = parts_.emplace_back();
  for (const std::size_t m : by_rank_) parts.push_back(elements(dims_of(placement, m, dims)));
  return parts;
}

std::vector<at::Tensor> TeamLink::parts_in(const at::Tensor& flat, const TeamPlacement& placement,
                                           const Dims& dims) const {
  std::vector<at::Tensor> parts(members());
  std::int64_t at = 0;
  for (const std::size_t m : by_rank_) {
    const Dims own = dims_of(placement, m, dims);
    parts[m] = flat.narrow(0, at, elements(own)).view(own);
    at += elements(own);
  }
  return parts;
}

at::Tensor TeamLink::sum(at::Tensor own) {
  // A view, or what autograd has saved, has the same storage.
  const bool mine = own.is_contiguous() && own.use_count() == 1 && own.storage().use_count() == 1;
  const at::Tensor sum = mine ? std::move(own) : own.clone(at::MemoryFormat::Contiguous);
  finish(seat_.over.transport->all_reduce(buffer_of(sum), seat_.over.group, AllReduce::kRing));
  return sum;
}

at::Tensor TeamLink::maximum(const at::Tensor& own) {
  Dims dims = own.sizes().vec();
  dims.insert(dims.begin(), static_cast<std::int64_t>(members()));
  const at::Tensor all = at::empty(dims, own.options());
  const auto place = std::find(by_rank_.begin(), by_rank_.end(), member()) - by_rank_.begin();
  all.select(0, place).copy_(own);
  Parts& parts = parts_.emplace_back(members(), own.numel());
  finish(
      seat_.over.transport->all_gather(buffer_of(all), parts, seat_.over.group, AllReduce::kRing));
  return at::amax(all, {0});
}

at::Tensor TeamLink::exchange(at::Tensor own, const TeamPlacement& from, const TeamPlacement& to,
                              const Dims& dims) {
  switch (exchange_between(from, to)) {
    case TeamExchange::kNothing:
      return own;
    case TeamExchange::kTakePart:
      return part_of(own, to).clone();
    case TeamExchange::kKeepOne:
      return member() == 0 ? own : at::zeros_like(own);
    case TeamExchange::kFillWithZeros:
      return filled_with_zeros(own, from, dims);
    case TeamExchange::kAllReduce:
      return sum(std::move(own));
    case TeamExchange::kAllGather:
      return gather(own, from, dims);
    case TeamExchange::kReduceScatter:
      return scatter(own, to, dims);
    case TeamExchange::kAllToAll:
      return all_to_all(own, from, to, dims);
  }
  throw KernelError("an exchange that is none");
}

at::Tensor TeamLink::part_of(const at::Tensor& whole, const TeamPlacement& placement) const {
  std::vector<at::Tensor> pieces;
  for (const TeamBlock& block : blocks({}, member(), placement, member())) {
    pieces.push_back(given(whole, block));
  }
  return pieces.size() == 1 ? pieces.front() : at::cat(pieces, placement.axis);
}

at::Tensor TeamLink::filled_with_zeros(const at::Tensor& own, const TeamPlacement& from,
                                       const Dims& dims) const {
  const at::Tensor whole = at::zeros(dims, own.options());
  copy(blocks(from, member(), {}, member()), own, whole);
  return whole;
}

at::Tensor TeamLink::gather(const at::Tensor& own, const TeamPlacement& from, const Dims& dims) {
  const at::Tensor flat = at::empty({elements(dims)}, own.options());
  const std::vector<at::Tensor> parts = parts_in(flat, from, dims);
  parts[member()].copy_(own);
  finish(seat_.over.transport->all_gather(buffer_of(flat), keep_parts(from, dims), seat_.over.group,
                                          AllReduce::kRing));
  const bool in_order = std::is_sorted(by_rank_.begin(), by_rank_.end());
  if (in_order && lie_behind_one_another(from, dims)) return flat.view(dims);
  const at::Tensor whole = at::empty(dims, own.options());
  for (std::size_t m = 0; m < members(); ++m) copy(blocks(from, m, {}, m), parts[m], whole);
  return whole;
}

at::Tensor TeamLink::scatter(const at::Tensor& own, const TeamPlacement& to, const Dims& dims) {
  const at::Tensor flat = at::empty({elements(dims)}, own.options());
  const std::vector<at::Tensor> parts = parts_in(flat, to, dims);
  for (std::size_t m = 0; m < members(); ++m) copy(blocks({}, m, to, m), own, parts[m]);
  finish(seat_.over.transport->reduce_scatter(buffer_of(flat), keep_parts(to, dims),
                                              seat_.over.group, AllReduce::kRing));
  return parts[member()].clone();  // and not what is around it
}

at::Tensor TeamLink::all_to_all(const at::Tensor& own, const TeamPlacement& from,
                                const TeamPlacement& to, const Dims& dims) {
  const std::size_t me = member();
  const at::Tensor mine = at::empty(dims_of(to, me, dims), own.options());
  copy(blocks(from, me, to, me), own, mine);
  // What goes to each member, then what comes from each.
  Parts& parts = parts_.emplace_back();
  for (const std::size_t m : by_rank_) {
    const std::int64_t goes = elements_of(blocks(from, me, to, m), dims_of(to, m, dims));
    parts.push_back(m == me ? 0 : goes);
  }
  for (const std::size_t m : by_rank_) {
    parts.push_back(m == me ? 0 : elements_of(blocks(from, m, to, me), mine.sizes().vec()));
  }
  const at::Tensor flat =
      at::empty({std::accumulate(parts.begin(), parts.end(), std::int64_t{0})}, own.options());
  const std::vector<at::Tensor> split = flat.split_with_sizes(parts);
  for (std::size_t i = 0; i < members(); ++i) {
    if (by_rank_[i] != me) pack(blocks(from, me, to, by_rank_[i]), own, split[i]);
  }
  finish(seat_.over.transport->all_to_all(buffer_of(flat), parts, seat_.over.group));
  for (std::size_t i = 0; i < members(); ++i) {
    const std::size_t giver = by_rank_[i];
    if (giver != me) unpack(blocks(from, giver, to, me), split[members() + i], mine);
  }
  return mine;
}

}  // namespace agpcs
