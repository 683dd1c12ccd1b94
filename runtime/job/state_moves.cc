// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/state_moves.h"

#include "runtime/support/message_tags.h"
#include "runtime/support/withdraw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

// The ranks that had an item and those that need it.
struct Places {
  std::int64_t elements = -1;  // under the old plan; -1: no rank held it
  std::vector<int> before, after;
};
using Key = std::pair<std::string, std::string>;  // tensor, slot

std::int64_t bytes_of(const StateItem& item) {
  return item.elements * static_cast<std::int64_t>(sizeof(float));
}

std::string text_of(const StateItem& item) {
  return fmt::format("'{}' of '{}'", item.slot, item.tensor);
}

Status other_size(const StateItem& item, std::int64_t before) {
  return invalid_input(
      fmt::format("{} had {} elements, and now has {}", text_of(item), before, item.elements));
}

Result<std::map<Key, Places>> places_of(const StateOwners& before, const StateOwners& after) {
  std::map<Key, Places> places;
  for (std::size_t rank = 0; rank < before.size(); ++rank) {
    for (const StateItem& item : before[rank]) {
      Places& at = places[{item.tensor, item.slot}];
      if (at.elements >= 0 && at.elements != item.elements) return other_size(item, at.elements);
      at.elements = item.elements;
      at.before.push_back(static_cast<int>(rank));
    }
  }
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    for (const StateItem& item : after[rank]) {
      Places& at = places[{item.tensor, item.slot}];
      if (at.elements < 0) {
        return invalid_input(
            fmt::format("rank {} needs {}, which no rank has", rank, text_of(item)));
      }
      if (at.elements != item.elements) return other_size(item, at.elements);
      at.after.push_back(static_cast<int>(rank));
    }
  }
  return places;
}

// Returns the items, large ones first, so that small ones even out the work.
std::vector<const std::pair<const Key, Places>*> by_size(const std::map<Key, Places>& places) {
  std::vector<const std::pair<const Key, Places>*> order;
  for (const auto& place : places) order.push_back(&place);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->second.elements > b->second.elements;
  });
  return order;
}

bool comes_before(const StateMove& a, const StateMove& b) {
  return std::tie(a.item.tensor, a.item.slot, a.to) < std::tie(b.item.tensor, b.item.slot, b.to);
}

// Carries out one rank's part of the moves.
class Carrier {
 public:
  Carrier(const ReadState& read, const WriteState& write, Transport& transport,
          std::chrono::milliseconds limit)
      : read_(read), write_(write), transport_(transport), limit_(limit) {}

  Status run(const std::vector<StateMove>& moves) {
    const Status status = carry(moves);
    return status.ok() ? status : withdraw(transport_, status, limit_);
  }

 private:
  // A chunk under way.
  struct Slot {
    const StateMove* move = nullptr;  // nullptr: none
    std::int64_t first = 0, count = 0;
    Ticket ticket = 0;
    std::vector<float> values;
  };

  bool sends(const StateMove& move) const { return move.from == transport_.rank(); }
  bool receives(const StateMove& move) const { return move.to == transport_.rank(); }

  Status carry(const std::vector<StateMove>& moves) {
    std::size_t next = 0;
    for (const StateMove& move : moves) {
      if (!sends(move) && !receives(move)) continue;
      for (std::int64_t first = 0; first < move.item.elements; first += kStateChunk) {
        Slot& slot = slots_[next++ % slots_.size()];
        AGPCS_RETURN_IF_ERROR(finish(slot));
        slot.move = &move;
        slot.first = first;
        slot.count = std::min(kStateChunk, move.item.elements - first);
        AGPCS_RETURN_IF_ERROR(named(move, start(slot)));
      }
    }
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      AGPCS_RETURN_IF_ERROR(finish(slots_[next++ % slots_.size()]));
    }
    return {};
  }

  Status start(Slot& slot) {
    const StateMove& move = *slot.move;
    const auto count = static_cast<std::size_t>(slot.count);
    if (slot.values.size() < count) slot.values.resize(count);
    if (sends(move)) {
      AGPCS_RETURN_IF_ERROR(read_(move.item, slot.first, slot.count, slot.values.data()));
    }
    if (sends(move) && receives(move)) return {};
    const Buffer buffer{slot.values.data(), count * sizeof(float), DType::kFp32, false};
    AGPCS_TRY(slot.ticket, sends(move) ? transport_.send(buffer, move.to, kStateTag)
                                       : transport_.recv(buffer, move.from, kStateTag));
    return {};
  }

  Status finish(Slot& slot) {
    if (slot.move == nullptr) return {};
    const StateMove& move = *slot.move;
    if (!sends(move) || !receives(move)) {
      const Stream stream = sends(move) ? Stream::kSend : Stream::kRecv;
      AGPCS_RETURN_IF_ERROR(named(move, transport_.wait(stream, slot.ticket, limit_)));
    }
    slot.move = nullptr;
    if (!receives(move)) return {};
    return named(move, write_(move.item, slot.first, slot.count, slot.values.data()));
  }

  static Status named(const StateMove& move, const Status& status) {
    if (status.ok()) return status;
    return {status.code(), fmt::format("moving {} from rank {} to rank {}: {}", text_of(move.item),
                                       move.from, move.to, status.message())};
  }

  const ReadState& read_;
  const WriteState& write_;
  Transport& transport_;
  const std::chrono::milliseconds limit_;
  std::array<Slot, 2> slots_;
};

}  // namespace

Result<std::vector<StateMove>> plan_state_moves(const StateOwners& before,
                                                const StateOwners& after) {
  AGPCS_TRY(const auto places, places_of(before, after));
  std::vector<StateMove> moves;
  std::vector<std::int64_t> sent(before.size(), 0);
  for (const auto* place : by_size(places)) {
    const Places& at = place->second;
    const StateItem item{place->first.first, place->first.second, at.elements};
    for (const int to : at.after) {
      const bool stays = std::binary_search(at.before.begin(), at.before.end(), to);
      const auto less = [&](int a, int b) {
        return sent[static_cast<std::size_t>(a)] < sent[static_cast<std::size_t>(b)];
      };
      const int from = stays ? to : *std::min_element(at.before.begin(), at.before.end(), less);
      if (!stays) sent[static_cast<std::size_t>(from)] += bytes_of(item);
      moves.push_back({item, from, to});
    }
  }
  std::sort(moves.begin(), moves.end(), comes_before);
  return moves;
}

std::int64_t bytes_of(const std::vector<StateMove>& moves) {
  std::int64_t bytes = 0;
  for (const StateMove& move : moves) {
    if (move.from != move.to) bytes += bytes_of(move.item);
  }
  return bytes;
}

Status carry_state(const std::vector<StateMove>& moves, const ReadState& read,
                   const WriteState& write, Transport& transport, std::chrono::milliseconds limit) {
  return Carrier(read, write, transport, limit).run(moves);
}

Status move_state(const std::vector<StateMove>& moves, Executor& from, Executor& to,
                  Transport& transport, std::chrono::milliseconds limit) {
  const auto read = [&](const StateItem& item, std::int64_t first, std::int64_t count, float* out) {
    return from.read_state(item, first, count, out);
  };
  const auto write = [&](const StateItem& item, std::int64_t first, std::int64_t count,
                         const float* values) {
    return to.write_state(item, first, count, values);
  };
  return carry_state(moves, read, write, transport, limit);
}

}  // namespace agpcs
