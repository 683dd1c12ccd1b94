// SPDX-License-Identifier: Apache-2.0
// Tells all ranks what each of them holds: ranks send their items to rank 0, which sends all lists
// to every rank. Replicas often have equal lists; each list travels once, with a number for each
// rank.
//
//     list: count, then per item: length, tensor, length, slot, elements, before, after, period,
//           count, then begin and end of each run
//     all:  count, then lists; then per rank the number of its list
//
// Numbers are 64-bit, little-endian. A receiver checks every field of a message before it uses it.
#include "runtime/job/state_moves.h"
#include "runtime/support/message_tags.h"
#include "runtime/support/withdraw.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they lie");

constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

using Items = std::vector<StateItem>;

void put(std::string& out, std::int64_t number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof bytes);
}

void put(std::string& out, const std::string& text) {
  put(out, static_cast<std::int64_t>(text.size()));
  out += text;
}

std::string encoded(const Items& items) {
  std::string out;
  put(out, static_cast<std::int64_t>(items.size()));
  for (const StateItem& item : items) {
    put(out, item.tensor);
    put(out, item.slot);
    for (const std::int64_t number : {item.elements, item.before, item.after, item.period}) {
      put(out, number);
    }
    put(out, static_cast<std::int64_t>(item.runs.size()));
    for (const ElementRange& run : item.runs) {
      put(out, run.begin);
      put(out, run.end);
    }
  }
  return out;
}

// Reads a message; after the first error, everything reads as zero or empty.
class MessageReader {
 public:
  explicit MessageReader(std::string_view text) : rest_(text) {}

  bool whole() const { return ok_ && rest_.empty(); }

  std::int64_t number(std::int64_t most) {
    std::int64_t value = 0;
    if (!ok_ || rest_.size() < sizeof value) return failed();
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value < 0 || value > most ? failed() : value;
  }
  /// Reads a count of things that take at least `bytes` bytes each.
  std::int64_t count(std::size_t bytes) {
    return number(static_cast<std::int64_t>(rest_.size() / bytes));
  }
  std::string text() {
    const auto length = static_cast<std::size_t>(count(1));
    std::string text(rest_.substr(0, length));
    rest_.remove_prefix(text.size());
    return text;
  }
  Items items() {
    constexpr std::size_t kLeast = 7 * sizeof(std::int64_t);
    Items items(static_cast<std::size_t>(count(kLeast)));
    for (StateItem& item : items) {
      item.tensor = text();
      item.slot = text();
      item.elements = number(kMostElements);
      item.before = number(item.elements);
      item.after = number(item.elements - item.before);
      item.period = number(item.elements);
      if (item.period > 0 && item.elements % item.period != 0) failed();
      read_runs(item);
    }
    return items;
  }

 private:
  void read_runs(StateItem& item) {
    item.runs.resize(static_cast<std::size_t>(count(2 * sizeof(std::int64_t))));
    std::int64_t end = 0;
    for (ElementRange& run : item.runs) {
      run = {number(item.period), number(item.period)};
      if (run.begin < end || run.end < run.begin) failed();
      end = run.end;
    }
  }
  std::int64_t failed() {
    ok_ = false;
    rest_ = {};
    return 0;
  }
  std::string_view rest_;
  bool ok_ = true;
};

class OwnersExchange {
 public:
  OwnersExchange(Transport& transport, std::chrono::milliseconds limit)
      : transport_(transport), limit_(limit), size_(static_cast<std::size_t>(transport.size())) {}

  Result<StateOwners> run(const Items& own) {
    auto owners = transport_.rank() == 0 ? gather(own) : tell(own);
    if (!owners.ok()) return withdraw(transport_, owners.status(), limit_);
    return owners;
  }

 private:
  // Collects all lists, on rank 0.
  Result<StateOwners> gather(const Items& own) {
    StateOwners owners{own};
    for (std::size_t rank = 1; rank < size_; ++rank) {
      AGPCS_RETURN_IF_ERROR(receive(static_cast<int>(rank)));
      MessageReader reader(in_);
      owners.push_back(reader.items());
      if (!reader.whole()) return nonsense(static_cast<int>(rank));
    }
    std::vector<std::int64_t> list_of;
    std::vector<const Items*> lists;
    for (const Items& items : owners) {
      const auto same = [&](const Items* list) { return *list == items; };
      const auto at = std::find_if(lists.begin(), lists.end(), same);
      list_of.push_back(at - lists.begin());
      if (at == lists.end()) lists.push_back(&items);
    }
    std::string text;
    put(text, static_cast<std::int64_t>(lists.size()));
    for (const Items* list : lists) text += encoded(*list);
    for (const std::int64_t list : list_of) put(text, list);
    AGPCS_RETURN_IF_ERROR(prepare(std::move(text)));
    for (std::size_t rank = 1; rank < size_; ++rank) {
      AGPCS_RETURN_IF_ERROR(send(static_cast<int>(rank)));
    }
    AGPCS_RETURN_IF_ERROR(transport_.wait(Stream::kSend, sent_, limit_));
    return owners;
  }

  // Sends this rank's list to rank 0 and receives all lists, on the other ranks.
  Result<StateOwners> tell(const Items& own) {
    AGPCS_RETURN_IF_ERROR(prepare(encoded(own)));
    AGPCS_RETURN_IF_ERROR(send(0));
    AGPCS_RETURN_IF_ERROR(transport_.wait(Stream::kSend, sent_, limit_));
    AGPCS_RETURN_IF_ERROR(receive(0));
    MessageReader reader(in_);
    std::vector<Items> lists(static_cast<std::size_t>(reader.count(sizeof(std::int64_t))));
    for (Items& list : lists) list = reader.items();
    StateOwners owners;
    for (std::size_t rank = 0; rank < size_ && !lists.empty(); ++rank) {
      const auto list = reader.number(static_cast<std::int64_t>(lists.size()) - 1);
      owners.push_back(lists[static_cast<std::size_t>(list)]);
    }
    if (!reader.whole() || owners.size() != size_) return nonsense(0);
    return owners;
  }

  // Sets what is sent next, to one rank or several; it stays until all these sends are waited for.
  Status prepare(std::string text) {
    out_ = std::move(text);
    out_bytes_ = static_cast<std::int64_t>(out_.size());
    if (out_bytes_ <= kMostBytes) return {};
    return invalid_input(fmt::format("what ranks hold takes {} bytes to say, at most {} are sent",
                                     out_bytes_, kMostBytes));
  }

  Status send(int peer) {
    const Buffer length{&out_bytes_, sizeof out_bytes_, DType::kInt64, false};
    AGPCS_TRY(sent_, transport_.send(length, peer, kOwnersTag));
    const Buffer text{out_.data(), out_.size(), DType::kUint8, false};
    AGPCS_TRY(sent_, transport_.send(text, peer, kOwnersTag));
    return {};
  }

  Status receive(int peer) {
    const Buffer length{&in_bytes_, sizeof in_bytes_, DType::kInt64, false};
    AGPCS_TRY(Ticket ticket, transport_.recv(length, peer, kOwnersTag));
    AGPCS_RETURN_IF_ERROR(transport_.wait(Stream::kRecv, ticket, limit_));
    if (in_bytes_ < 0 || in_bytes_ > kMostBytes) return nonsense(peer);
    in_.resize(static_cast<std::size_t>(in_bytes_));
    const Buffer text{in_.data(), in_.size(), DType::kUint8, false};
    AGPCS_TRY(ticket, transport_.recv(text, peer, kOwnersTag));
    return transport_.wait(Stream::kRecv, ticket, limit_);
  }

  static Status nonsense(int peer) {
    return internal_error(
        fmt::format("what rank {} says that it holds cannot be understood", peer));
  }

  Transport& transport_;
  const std::chrono::milliseconds limit_;
  const std::size_t size_;
  std::string out_, in_;
  std::int64_t out_bytes_ = 0, in_bytes_ = 0;
  Ticket sent_ = 0;
};

}  // namespace

Result<StateOwners> share_state_owners(const std::vector<StateItem>& own, Transport& transport,
                                       std::chrono::milliseconds limit) {
  return OwnersExchange(transport, limit).run(own);
}

}  // namespace agpcs
