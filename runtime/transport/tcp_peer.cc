// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/tcp_peer.h"

#include "runtime/support/sum.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utility>

namespace agpcs {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

constexpr std::uint64_t kWanted = std::uint64_t{1} << 63;  // in a frame's word
constexpr std::size_t kStagedBytes = 4 * TcpPeer::kEagerBytes;
constexpr std::size_t kMostKeptBytes = std::size_t{64} << 20;
constexpr std::size_t kMostWishes = std::size_t{1} << 20;
constexpr std::size_t kMostAtOnce = std::size_t{1} << 20;  // read for one peer before the next

// Returns the first transfer of `slot` that is small or not, as `small` says.
auto find(std::deque<TcpTransfer*>& transfers, std::uint64_t slot, bool small) {
  return std::find_if(transfers.begin(), transfers.end(), [&](const TcpTransfer* transfer) {
    return transfer->slot == slot && (transfer->bytes <= TcpPeer::kEagerBytes) == small;
  });
}

Status another_length(std::uint64_t sent, std::uint64_t awaited) {
  return {StatusCode::kUnavailable,
          fmt::format("a message of {} bytes was sent where one of {} was awaited", sent, awaited)};
}

// Puts the first bytes of a message in their place.
void put(const TcpTransfer& transfer, std::string_view bytes) {
  transfer.pieces.each(0, bytes.size(), [&](Span piece) {
    std::memcpy(piece.data, bytes.data(), piece.bytes);
    bytes.remove_prefix(piece.bytes);
    return true;
  });
}

// Adds whole elements to those of a message from byte `from` on.
void add(const TcpTransfer& transfer, std::size_t from, const char* elements, std::size_t bytes) {
  const DType type = *transfer.added_as;
  transfer.pieces.each(from, from + bytes, [&](Span piece) {
    add_into(piece.data, elements, piece.bytes / size_of(type), type);
    elements += piece.bytes;
    return true;
  });
}

// Puts a whole small message in its place, or adds it. `bytes` may lie anywhere.
void take_in(const TcpTransfer& transfer, std::string_view bytes) {
  if (!transfer.added_as) return put(transfer, bytes);
  alignas(std::max_align_t) std::array<char, TcpPeer::kEagerBytes> elements;
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  add(transfer, 0, elements.data(), bytes.size());
}

}  // namespace

void TcpTransfer::finish(const Status& status) {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  status_ = status;
  changed_.notify_all();  // under the lock: afterwards, this transfer may be gone
}

bool TcpTransfer::wait(Deadline deadline, Status& status) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [&] { return finished_; })) return false;
  status = status_;
  return true;
}

bool TcpTransfer::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

TcpPeer::TcpPeer(Connection connection, std::string where, int epoll)
    : connection_(std::move(connection)),
      where_(std::move(where)),
      epoll_(epoll),
      staged_(kStagedBytes) {}

Status TcpPeer::watch() {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = this;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, connection_.fd(), &event) == 0) return {};
  return {StatusCode::kUnavailable, fmt::format("cannot watch the connection with {}", where_)};
}

void TcpPeer::forget() {
  const std::lock_guard lock(out_mutex_);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, connection_.fd(), nullptr);
}

Status TcpPeer::send(TcpTransfer& transfer) {
  const std::lock_guard lock(out_mutex_);
  if (!over_.ok()) return over_;
  if (transfer.bytes <= kEagerBytes) {
    start(transfer);
    return {};
  }
  const auto wish = std::find_if(wishes_.begin(), wishes_.end(),
                                 [&](const Frame& f) { return f.slot == transfer.slot; });
  if (wish == wishes_.end()) {
    unwanted_.push_back(&transfer);
    return {};
  }
  const std::uint64_t wanted = wish->word;
  wishes_.erase(wish);
  if (wanted != transfer.bytes) return another_length(transfer.bytes, wanted);
  start(transfer);
  return {};
}

Status TcpPeer::recv(TcpTransfer& transfer) {
  const bool small = transfer.bytes <= kEagerBytes;
  {
    const std::lock_guard lock(in_mutex_);
    const std::lock_guard out_lock(out_mutex_);
    const auto kept = std::find_if(kept_.begin(), kept_.end(),
                                   [&](const Kept& k) { return k.slot == transfer.slot; });
    if (small && kept != kept_.end()) {
      if (kept->bytes.size() != transfer.bytes) {
        return another_length(kept->bytes.size(), transfer.bytes);
      }
      take_in(transfer, kept->bytes);
      kept_bytes_ -= transfer.bytes;
      kept_.erase(kept);
      transfer.finish({});
      return {};
    }
    if (!over_.ok()) return over_;
    awaited_.push_back(&transfer);
    if (small) return {};
    wanted_out_.push_back({{transfer.slot, kWanted | transfer.bytes}, nullptr});
  }
  const std::lock_guard lock(out_mutex_);
  flush();
  return {};
}

void TcpPeer::withdraw(TcpTransfer& transfer) {
  bool half = false;
  {
    std::unique_lock lock(in_mutex_);
    read_changed_.wait(lock, [&] { return arriving_ != &transfer || !reading_; });
    const std::lock_guard out_lock(out_mutex_);
    if (transfer.finished()) return;
    std::erase(awaited_, &transfer);
    std::erase(unwanted_, &transfer);
    std::erase_if(messages_out_, [&](const Outgoing& out) { return out.transfer == &transfer; });
    half = arriving_ == &transfer || (is_leaving_ && leaving_.transfer == &transfer);
  }
  if (half) fail({StatusCode::kCancelled, "a message was withdrawn half through"});
}

void TcpPeer::fail(const Status& why) {
  std::unique_lock lock(in_mutex_);
  read_changed_.wait(lock, [this] { return !reading_; });
  const std::lock_guard out_lock(out_mutex_);
  if (!over_.ok()) return;
  over_ = why;
  failed_ = true;
  const auto end = [&](std::deque<TcpTransfer*>& transfers) {
    for (TcpTransfer* transfer : transfers) transfer->finish(why);
    transfers.clear();
  };
  end(awaited_);
  end(unwanted_);
  if (TcpTransfer* half = std::exchange(arriving_, nullptr)) half->finish(why);
  for (const Outgoing& out : messages_out_) out.transfer->finish(why);
  messages_out_.clear();
  if (std::exchange(is_leaving_, false) && leaving_.transfer) leaving_.transfer->finish(why);
  shutdown(connection_.fd(), SHUT_RDWR);  // the reading thread notices
}

// Writing.

void TcpPeer::start(TcpTransfer& transfer) {
  messages_out_.push_back({{transfer.slot, transfer.bytes}, &transfer});
  flush();
}

// Writes until nothing is left or there is no more room. An error of the connection is the reader's
// to find, which then ends all transfers.
void TcpPeer::flush() {
  while (true) {
    Parts parts;
    gather(parts);
    if (parts.count == 0) return want_room(!connection_.flush());
    const auto count = connection_.write(parts.all.data(), static_cast<int>(parts.count));
    if (count >= 0) {
      sent(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      return want_room(errno == EAGAIN);
    }
  }
}

bool TcpPeer::Parts::add(const TcpTransfer& transfer, std::size_t from) {
  std::size_t left = transfer.bytes - from;
  transfer.pieces.each(from, transfer.bytes, [&](Span piece) {
    if (full()) return false;
    add(piece.data, piece.bytes);
    left -= piece.bytes;
    return true;
  });
  return left == 0;
}

// Sets `parts` to what leaves next, in order: the frame that has begun, wishes, messages.
void TcpPeer::gather(Parts& parts) {
  const auto add = [&](Outgoing& out) {
    if (parts.full()) return false;
    if (out.sent < sizeof(Frame)) {
      parts.add(reinterpret_cast<char*>(&out.frame) + out.sent, sizeof(Frame) - out.sent);
    }
    const std::size_t begun = std::max(out.sent, sizeof(Frame)) - sizeof(Frame);
    return out.transfer == nullptr || parts.add(*out.transfer, begun);
  };
  if (is_leaving_ && !add(leaving_)) return;
  for (std::deque<Outgoing>* queue : {&wanted_out_, &messages_out_}) {
    for (Outgoing& out : *queue) {
      if (!add(out)) return;
    }
  }
}

// Takes `bytes` bytes that have left off what `gather` gave.
void TcpPeer::sent(std::size_t bytes) {
  if (is_leaving_) is_leaving_ = !advance(leaving_, bytes);
  for (std::deque<Outgoing>* queue : {&wanted_out_, &messages_out_}) {
    while (bytes > 0 && !queue->empty()) {
      Outgoing out = queue->front();
      queue->pop_front();
      if (advance(out, bytes)) continue;
      leaving_ = out;
      is_leaving_ = true;
    }
  }
}

// Returns whether all of `outgoing` has left.
bool TcpPeer::advance(Outgoing& outgoing, std::size_t& bytes) {
  const std::size_t now = std::min(bytes, outgoing.size() - outgoing.sent);
  outgoing.sent += now;
  bytes -= now;
  if (outgoing.sent < outgoing.size()) return false;
  if (outgoing.transfer) outgoing.transfer->finish({});
  return true;
}

void TcpPeer::want_room(bool wanted) {
  if (std::exchange(wants_room_, wanted) == wanted) return;
  epoll_event event{};
  event.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.ptr = this;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, connection_.fd(), &event);
}

bool TcpPeer::write() {
  const std::lock_guard lock(out_mutex_);
  if (!over_.ok()) return false;
  flush();
  return true;
}

// Reading.

bool TcpPeer::read(std::vector<char>& scratch) {
  Status why;
  bool wished = false;
  {
    std::unique_lock lock(in_mutex_);
    for (std::size_t total = 0; (total < kMostAtOnce || connection_.has_unread()) && why.ok();) {
      const auto got = read_unlocked(lock, scratch);
      if (failed_) return false;  // what was read may be the rest of a message that has ended
      if (got > 0) {
        total += static_cast<std::size_t>(got);
        why = take(static_cast<std::size_t>(got), scratch);
      } else if (got == 0 || errno != EINTR) {
        if (got < 0 && errno == EAGAIN) break;
        why = {StatusCode::kPeerFailed, fmt::format("its connection at {} {}", where_,
                                                    got == 0 ? "was closed" : loss_text(errno))};
      }
    }
    wished = std::exchange(wished_, false);
  }
  if (!why.ok()) fail(why);
  return wished ? write() && why.ok() : why.ok();
}

// Reads to the message that arrives, whose elements are added if they are to be, and to `staged_`,
// and returns what readv says. Meanwhile others may post; who would end the message that arrives
// waits.
ssize_t TcpPeer::read_unlocked(std::unique_lock<std::mutex>& lock, std::vector<char>& scratch) {
  Parts parts;
  const bool adds = arriving_ != nullptr && arriving_->added_as.has_value();
  bool all = true;  // of the message that arrives
  if (adds) {
    const std::size_t left = arriving_->bytes - arrived_;
    parts.add(scratch.data() + odd_bytes_, std::min(left, scratch.size() - odd_bytes_));
    all = parts.all[0].iov_len == left;
  } else if (arriving_ != nullptr) {
    all = parts.add(*arriving_, arrived_);
  }
  if (all && !parts.full()) {
    parts.add(staged_.data() + staged_bytes_, staged_.size() - staged_bytes_);
  }
  reading_ = true;
  lock.unlock();
  const auto got = connection_.read(parts.all.data(), static_cast<int>(parts.count));
  const int error = errno;
  if (adds && got > 0) {
    add_arrived(scratch, std::min(static_cast<std::size_t>(got), parts.all[0].iov_len));
  }
  lock.lock();
  reading_ = false;
  read_changed_.notify_all();
  errno = error;
  return got;
}

// Adds the next `bytes` bytes of the message that arrives. They are in `scratch`, behind a place
// for those before them that are no whole element yet.
void TcpPeer::add_arrived(std::vector<char>& scratch, std::size_t bytes) {
  std::memcpy(scratch.data(), odd_.data(), odd_bytes_);
  const std::size_t from = arrived_ - odd_bytes_, all = odd_bytes_ + bytes;
  odd_bytes_ = all % size_of(*arriving_->added_as);
  add(*arriving_, from, scratch.data(), all - odd_bytes_);
  std::memcpy(odd_.data(), scratch.data() + all - odd_bytes_, odd_bytes_);
}

// Takes `bytes` bytes that were read: to the message that arrives, if there is one, then to
// `staged_`.
Status TcpPeer::take(std::size_t bytes, std::vector<char>& scratch) {
  if (arriving_ != nullptr) bytes -= arrive(bytes);
  staged_bytes_ += bytes;
  std::size_t at = 0;
  while (staged_bytes_ - at >= sizeof(Frame)) {
    Frame frame{};
    std::memcpy(&frame, staged_.data() + at, sizeof frame);
    const std::string_view rest(staged_.data() + at + sizeof frame,
                                staged_bytes_ - at - sizeof frame);
    if ((frame.word & kWanted) != 0) {
      AGPCS_RETURN_IF_ERROR(take_wish({frame.slot, frame.word & ~kWanted}));
      at += sizeof frame;
    } else if (frame.word > kEagerBytes) {
      AGPCS_TRY(const std::size_t taken, take_large(frame, rest, scratch));
      at += sizeof frame + taken;
    } else if (rest.size() < frame.word) {
      break;
    } else {
      AGPCS_RETURN_IF_ERROR(take_small(frame.slot, rest.substr(0, frame.word)));
      at += sizeof frame + frame.word;
    }
  }
  staged_bytes_ -= at;
  std::memmove(staged_.data(), staged_.data() + at, staged_bytes_);
  return {};
}

// Counts up to `bytes` bytes that are in their place, and returns how many.
std::size_t TcpPeer::arrive(std::size_t bytes) {
  const std::size_t now = std::min(bytes, arriving_->bytes - arrived_);
  arrived_ += now;
  if (arrived_ == arriving_->bytes) std::exchange(arriving_, nullptr)->finish({});
  return now;
}

Status TcpPeer::take_small(std::uint64_t slot, std::string_view bytes) {
  const auto to = find(awaited_, slot, true);
  if (to == awaited_.end()) {
    kept_bytes_ += bytes.size();
    if (kept_bytes_ > kMostKeptBytes) {
      return {StatusCode::kUnavailable,
              fmt::format("{} bytes of messages came that nobody awaits", kept_bytes_)};
    }
    kept_.push_back({slot, std::string(bytes)});
    return {};
  }
  TcpTransfer& transfer = **to;
  if (transfer.bytes != bytes.size()) return another_length(bytes.size(), transfer.bytes);
  take_in(transfer, bytes);
  awaited_.erase(to);
  transfer.finish({});
  return {};
}

Result<std::size_t> TcpPeer::take_large(const Frame& frame, std::string_view rest,
                                        std::vector<char>& scratch) {
  const auto to = find(awaited_, frame.slot, false);
  if (to == awaited_.end()) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("a message of {} bytes came that nobody awaits", frame.word));
  }
  TcpTransfer& transfer = **to;
  if (transfer.bytes != frame.word) return another_length(frame.word, transfer.bytes);
  awaited_.erase(to);
  arriving_ = &transfer;
  arrived_ = odd_bytes_ = 0;
  const std::size_t here = std::min(rest.size(), transfer.bytes);
  if (transfer.added_as) {
    std::memcpy(scratch.data(), rest.data(), here);
    add_arrived(scratch, here);
  } else {
    put(transfer, rest.substr(0, here));
  }
  return arrive(here);
}

Status TcpPeer::take_wish(const Frame& wish) {
  const std::lock_guard lock(out_mutex_);
  const auto transfer = find(unwanted_, wish.slot, false);
  if (transfer == unwanted_.end()) {
    if (wishes_.size() == kMostWishes) {
      return {StatusCode::kUnavailable,
              fmt::format("more than {} messages were asked for that nobody sends", kMostWishes)};
    }
    wishes_.push_back(wish);
    return {};
  }
  if ((*transfer)->bytes != wish.word) return another_length((*transfer)->bytes, wish.word);
  messages_out_.push_back({{wish.slot, wish.word}, *transfer});
  unwanted_.erase(transfer);
  wished_ = true;
  return {};
}

}  // namespace agpcs
