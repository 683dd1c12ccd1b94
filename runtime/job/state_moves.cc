// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/state_moves.h"

#include "runtime/support/message_tags.h"
#include "runtime/support/state_part.h"
#include "runtime/support/withdraw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

// A rank and the elements of an item that it has or needs.
struct Place {
  int rank = 0;
  StateItem item;
  ElementRange range = item.range();
  bool has(std::int64_t element) const { return range.begin <= element && element < range.end; }
};

// The ranks that had an item and those that need it, ascending.
struct Places {
  std::int64_t elements = -1;  // under the old plan; -1: no rank held it
  std::vector<Place> before, after;
  // Some have or need parts along an axis.
  bool have_parts() const {
    const auto is_part = [](const Place& place) { return place.item.is_part_along_axis(); };
    return std::any_of(before.begin(), before.end(), is_part) ||
           std::any_of(after.begin(), after.end(), is_part);
  }
};
using Key = std::pair<std::string, std::string>;  // tensor, slot

std::int64_t bytes_of(const StateItem& item) {
  return item.size() * static_cast<std::int64_t>(sizeof(float));
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
      at.before.push_back({static_cast<int>(rank), item});
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
      at.after.push_back({static_cast<int>(rank), item});
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
  return std::tie(a.item.tensor, a.item.slot, a.to, a.item.before) <
         std::tie(b.item.tensor, b.item.slot, b.to, b.item.before);
}

// Puts together what ranks need from what ranks had.
class MovePlanner {
 public:
  explicit MovePlanner(std::size_t ranks) : sent_(ranks, 0) {}

  Status add(const StateItem& item, const Places& places) {
    if (places.have_parts()) return add_parts(item, places);
    for (const Place& to : places.after) {
      for (std::int64_t at = to.range.begin; at < to.range.end;) {
        const Place* const from = holder_of(places.before, at, to.rank);
        if (from == nullptr) return missing(item, places.before, at, to);
        std::int64_t end = std::min(from->range.end, to.range.end);
        if (from->rank != to.rank) {
          for (const Place& own : places.before) {  // what it has itself does not travel
            if (own.rank == to.rank && own.range.begin > at) end = std::min(end, own.range.begin);
          }
        }
        StateMove move{item, from->rank, to.rank};
        move.item.before = at;
        move.item.after = item.elements - end;
        if (from->rank != to.rank)
          sent_[static_cast<std::size_t>(from->rank)] += bytes_of(move.item);
        moves_.push_back(std::move(move));
        at = end;
      }
    }
    return {};
  }

  std::vector<StateMove> sorted() && {
    std::sort(moves_.begin(), moves_.end(), comes_before);
    return std::move(moves_);
  }

 private:
  /// Adds moves of what a rank needs and each part has of it. Parts are those of one team, of which
  /// an element has one, or all have the whole.
  Status add_parts(const StateItem& item, const Places& places) {
    for (const Place& to : places.after) {
      std::int64_t got = 0;
      for (const Place& part : places.before) {
        const Place& from = giver_of(part, places.before, to.rank);
        if (&from != &part) continue;
        std::optional<StateItem> moved = common_part(part.item, to.item);
        if (!moved || got == to.item.size()) continue;
        got += moved->size();
        if (from.rank != to.rank) sent_[static_cast<std::size_t>(from.rank)] += bytes_of(*moved);
        moves_.push_back({*std::move(moved), from.rank, to.rank});
      }
      if (got == to.item.size()) continue;
      return invalid_input(fmt::format("rank {} needs {} elements of {}, of which ranks have {}",
                                       to.rank, to.item.size(), text_of(item), got));
    }
    return {};
  }

  /// Returns which of the ranks that have the same part gives it to rank `to`.
  const Place& giver_of(const Place& part, const std::vector<Place>& before, int to) const {
    const Place* best = nullptr;
    for (const Place& holder : before) {
      if (!holder.item.is_same_part(part.item)) continue;
      if (holder.rank == to) return holder;
      if (best == nullptr || sent_[static_cast<std::size_t>(holder.rank)] <
                                 sent_[static_cast<std::size_t>(best->rank)]) {
        best = &holder;
      }
    }
    return *best;
  }

  // Returns who gives element `at` to rank `to`: itself, or else the one of its holders that has
  // sent least; nullptr: nobody has it.
  const Place* holder_of(const std::vector<Place>& before, std::int64_t at, int to) const {
    const Place* best = nullptr;
    for (const Place& holder : before) {
      if (!holder.has(at)) continue;
      if (holder.rank == to) return &holder;
      if (best == nullptr || sent_[static_cast<std::size_t>(holder.rank)] <
                                 sent_[static_cast<std::size_t>(best->rank)]) {
        best = &holder;
      }
    }
    return best;
  }

  static Status missing(const StateItem& item, const std::vector<Place>& before, std::int64_t at,
                        const Place& to) {
    std::int64_t end = to.range.end;
    for (const Place& holder : before) {
      if (holder.range.begin > at) end = std::min(end, holder.range.begin);
    }
    return invalid_input(
        fmt::format("rank {} needs elements {} to {} of {}, which has {}, and no rank has them",
                    to.rank, at, end, text_of(item), item.elements));
  }

  std::vector<std::int64_t> sent_;  // by rank: bytes
  std::vector<StateMove> moves_;
};

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
    for (auto move = moves.begin(); move != moves.end();) {
      const auto end = std::find_if(move + 1, moves.end(), [&](const StateMove& other) {
        return !are_parts_of_one(*move, other);
      });
      AGPCS_RETURN_IF_ERROR(carry_in_turn({move, end}));
      move = end;
    }
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      AGPCS_RETURN_IF_ERROR(finish(slots_[next_++ % slots_.size()]));
    }
    return {};
  }

  // Carries parts of one tensor in turn, a chunk of the tensor of each.
  Status carry_in_turn(std::span<const StateMove> parts) {
    const ElementRange range = parts.front().item.range();
    for (std::int64_t first = range.begin; first < range.end; first += kStateChunk) {
      for (const StateMove& move : parts) {
        const std::int64_t count = std::min(kStateChunk, range.end - first);
        if (!(sends(move) || receives(move)) || move.item.count_of(first, count) == 0) continue;
        Slot& slot = slots_[next_++ % slots_.size()];
        AGPCS_RETURN_IF_ERROR(finish(slot));
        slot.move = &move;
        slot.first = first;
        slot.count = count;
        AGPCS_RETURN_IF_ERROR(named(move, start(slot)));
      }
    }
    return {};
  }

  static bool are_parts_of_one(const StateMove& a, const StateMove& b) {
    return a.item.is_part_along_axis() && b.item.is_part_along_axis() && a.to == b.to &&
           a.item.tensor == b.item.tensor && a.item.slot == b.item.slot;
  }

  Status start(Slot& slot) {
    const StateMove& move = *slot.move;
    const auto count = static_cast<std::size_t>(move.item.count_of(slot.first, slot.count));
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
  std::size_t next_ = 0;
};

}  // namespace

Result<std::vector<StateMove>> plan_state_moves(const StateOwners& before,
                                                const StateOwners& after) {
  AGPCS_TRY(const auto places, places_of(before, after));
  MovePlanner planner(before.size());
  for (const auto* place : by_size(places)) {
    const auto& [key, at] = *place;
    AGPCS_RETURN_IF_ERROR(planner.add({key.first, key.second, at.elements}, at));
  }
  return std::move(planner).sorted();
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
