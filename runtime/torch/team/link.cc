// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/team/link.h"

#include "ir/team/body.h"
#include "runtime/support/message_tags.h"
#include "runtime/torch/ops/ops.h"

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

/// Returns whether the members' parts, one behind the other, are the whole tensor.
bool lie_behind_one_another(const TeamPlacement& part, const Dims& dims) {
  return part.bands.size() == 1 && elements({dims.begin(), dims.begin() + part.axis}) == 1;
}

}  // namespace

void TeamLink::finish(Stream stream, const Result<Ticket>& ticket) {
  Status status = ticket.status();
  if (status.ok()) status = seat_.transport->order_after(stream, *ticket, seat_.limit);
  if (!status.ok()) fail(status);
  begun_[static_cast<std::size_t>(stream)] = *ticket;
}

void TeamLink::fail(const Status& why) {
  seat_.transport->abort(why);
  for (const Stream stream : {Stream::kSend, Stream::kRecv, Stream::kCollective}) {
    (void)seat_.transport->wait(stream, 0, seat_.limit);  // then it touches no buffer any more
  }
  throw KernelError(why.message());
}

void TeamLink::settle() {
  for (std::size_t stream = 0; stream < begun_.size(); ++stream) {
    if (begun_[stream] == 0) continue;
    const Status done =
        seat_.transport->wait(static_cast<Stream>(stream), begun_[stream], seat_.limit);
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
  for (std::size_t m = 0; m < members(); ++m) {
    parts.push_back(elements(dims_of(placement, m, dims)));
  }
  return parts;
}

at::Tensor TeamLink::sum(at::Tensor own) {
  // A view, or what autograd has saved, has the same storage.
  const bool mine = own.is_contiguous() && own.use_count() == 1 && own.storage().use_count() == 1;
  const at::Tensor sum = mine ? std::move(own) : own.clone(at::MemoryFormat::Contiguous);
  finish(Stream::kCollective,
         seat_.transport->all_reduce(buffer_of(sum), seat_.group, AllReduce::kRing));
  return sum;
}

at::Tensor TeamLink::maximum(const at::Tensor& own) {
  Dims dims = own.sizes().vec();
  dims.insert(dims.begin(), static_cast<std::int64_t>(members()));
  const at::Tensor all = at::empty(dims, own.options());
  all.select(0, static_cast<std::int64_t>(member())).copy_(own);
  Parts& parts = parts_.emplace_back(members(), own.numel());
  finish(Stream::kCollective,
         seat_.transport->all_gather(buffer_of(all), parts, seat_.group, AllReduce::kRing));
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
  const Parts& parts = keep_parts(from, dims);
  const at::Tensor flat = at::empty({elements(dims)}, own.options());
  const auto part = [&](std::size_t m) {
    const auto first = parts.begin() + static_cast<std::ptrdiff_t>(m);
    const std::int64_t at = std::accumulate(parts.begin(), first, std::int64_t{0});
    return flat.narrow(0, at, *first).view(dims_of(from, m, dims));
  };
  part(member()).copy_(own);
  finish(Stream::kCollective,
         seat_.transport->all_gather(buffer_of(flat), parts, seat_.group, AllReduce::kRing));
  if (lie_behind_one_another(from, dims)) return flat.view(dims);
  const at::Tensor whole = at::empty(dims, own.options());
  for (std::size_t m = 0; m < members(); ++m) copy(blocks(from, m, {}, m), part(m), whole);
  return whole;
}

at::Tensor TeamLink::scatter(const at::Tensor& own, const TeamPlacement& to, const Dims& dims) {
  const Parts& parts = keep_parts(to, dims);
  const at::Tensor flat = at::empty({elements(dims)}, own.options());
  at::Tensor mine;
  std::int64_t at = 0;
  for (std::size_t m = 0; m < members(); ++m) {
    const at::Tensor part = flat.narrow(0, at, parts[m]).view(dims_of(to, m, dims));
    copy(blocks({}, m, to, m), own, part);
    if (m == member()) mine = part;
    at += parts[m];
  }
  finish(Stream::kCollective,
         seat_.transport->reduce_scatter(buffer_of(flat), parts, seat_.group, AllReduce::kRing));
  return mine.clone();  // and not what is around it
}

at::Tensor TeamLink::all_to_all(const at::Tensor& own, const TeamPlacement& from,
                                const TeamPlacement& to, const Dims& dims) {
  const std::uint64_t tag = kTeamTag + static_cast<std::uint64_t>(seat_.group);
  const std::size_t me = member(), n = members();
  const at::Tensor mine = at::empty(dims_of(to, me, dims), own.options());
  copy(blocks(from, me, to, me), own, mine);
  std::vector<at::Tensor> sent, received(n);
  std::vector<Result<Ticket>> sends, recvs;
  for (std::size_t step = 1; step < n; ++step) {
    const std::size_t taker = (me + step) % n, giver = (me + n - step) % n;
    const std::vector<TeamBlock> out = blocks(from, me, to, taker);
    sent.push_back(at::empty({elements_of(out, dims_of(to, taker, dims))}, own.options()));
    pack(out, own, sent.back());
    const std::int64_t expected = elements_of(blocks(from, giver, to, me), mine.sizes().vec());
    received[giver] = at::empty({expected}, own.options());
    if (received[giver].numel() > 0) {
      recvs.push_back(seat_.transport->recv(buffer_of(received[giver]), seat_.ranks[giver], tag));
    }
    if (sent.back().numel() > 0) {
      sends.push_back(seat_.transport->send(buffer_of(sent.back()), seat_.ranks[taker], tag));
    }
  }
  for (const Result<Ticket>& ticket : recvs) finish(Stream::kRecv, ticket);
  for (const Result<Ticket>& ticket : sends) finish(Stream::kSend, ticket);
  for (std::size_t giver = 0; giver < n; ++giver) {
    if (giver != me) unpack(blocks(from, giver, to, me), received[giver], mine);
  }
  return mine;
}

}  // namespace agpcs
