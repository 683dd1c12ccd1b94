// SPDX-License-Identifier: Apache-2.0
// Parts of tensors along an axis: which elements they have, and that moves bring each of them where
// it is needed.
#include "runtime/support/state_part.h"

#include "ir/base/rng.h"
#include "runtime/job/state_moves.h"
#include "tests/runtime/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace agpcs {
namespace {

constexpr std::chrono::milliseconds kLong{60'000};

StateItem range_of(std::int64_t elements, std::int64_t begin, std::int64_t end) {
  return {"w", "value", elements, begin, elements - end};
}

StateItem rows_of(std::int64_t elements, std::int64_t period, std::vector<ElementRange> runs) {
  StateItem item{"w", "value", elements};
  item.period = period;
  item.runs = std::move(runs);
  return item;
}

std::set<std::int64_t> elements_of(const StateItem& item) {
  std::set<std::int64_t> all;
  for (std::int64_t e = item.before; e < item.elements - item.after; ++e) {
    bool has = item.period == 0;
    for (const ElementRange& run : item.runs) {
      has = has || (e % item.period >= run.begin && e % item.period < run.end);
    }
    if (has) all.insert(e);
  }
  return all;
}

/// Returns a part of a tensor of 60 elements: a range, or of rows of 60, 12, 4 or 1.
StateItem random_part(Rng& rng) {
  const std::int64_t periods[] = {0, 60, 12, 4, 1};
  const std::int64_t period = periods[rng.below(5)];
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(end)));
  };
  if (period == 0) {
    const std::int64_t begin = below(60);
    return range_of(60, begin, begin + below(61 - begin));
  }
  std::vector<ElementRange> runs;
  for (std::int64_t at = below(period + 1); at < period; at += 1 + below(4)) {
    const std::int64_t end = std::min(period, at + 1 + below(5));
    runs.push_back({at, end});
    at = end;
  }
  return rows_of(60, period, runs);
}

TEST(StateParts, HaveTheElementsThatTheySay) {
  Rng rng(5);
  for (int round = 0; round < 3000; ++round) {
    const StateItem a = random_part(rng), b = random_part(rng);
    const std::set<std::int64_t> in_a = elements_of(a), in_b = elements_of(b);
    const auto first = static_cast<std::int64_t>(rng.below(60));
    const auto count = static_cast<std::int64_t>(rng.below(61 - static_cast<std::uint64_t>(first)));
    std::set<std::int64_t> window, both;
    for (const std::int64_t e : in_a) {
      if (e >= first && e < first + count) window.insert(e);
      if (in_b.count(e) > 0) both.insert(e);
    }
    ASSERT_EQ(a.count_of(first, count), static_cast<std::int64_t>(window.size()));
    ASSERT_EQ(a.size(), static_cast<std::int64_t>(in_a.size()));
    const std::optional<StateItem> common = common_part(a, b);
    ASSERT_EQ(common ? elements_of(*common) : std::set<std::int64_t>(), both) << round;
    if (!a.is_part_along_axis()) continue;
    const bool all = std::all_of(window.begin(), window.end(),
                                 [&](std::int64_t e) { return in_b.count(e) > 0; });
    ASSERT_EQ(has_all_of(b, a, first, count), all) << round;
  }
}

TEST(StateParts, ArePackedInTheOrderOfTheWhole) {
  Rng rng(6);
  for (int round = 0; round < 500; ++round) {
    const StateItem part = random_part(rng);
    std::vector<float> whole(60), back(60, -1), packed(60, -1);
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<float>(i);
    pack(part, 10, 40, whole.data() + 10, packed.data());
    std::size_t next = 0;
    for (const std::int64_t e : elements_of(part)) {
      if (e < 10 || e >= 50) continue;
      ASSERT_EQ(packed[next++], static_cast<float>(e));
    }
    unpack(part, 10, 40, packed.data(), back.data() + 10);
    for (std::int64_t e = 0; e < 60; ++e) {
      const bool has = e >= 10 && e < 50 && elements_of(part).count(e) > 0;
      ASSERT_EQ(back[static_cast<std::size_t>(e)], has ? static_cast<float>(e) : -1.F);
    }
  }
}

/// What a rank holds of one tensor, by element of the whole; NaN: another rank has it.
class Store {
 public:
  Store(const StateItem& item, bool filled) : item_(item) {
    values_.resize(static_cast<std::size_t>(item.elements), std::nanf(""));
    if (!filled) return;
    for (const std::int64_t e : elements_of(item)) values_[static_cast<std::size_t>(e)] = value(e);
  }
  static float value(std::int64_t element) { return static_cast<float>(element % 9973); }

  Status read(const StateItem& item, std::int64_t first, std::int64_t count, float* out) const {
    pack(item, first, count, values_.data() + first, out);
    return {};
  }
  Status write(const StateItem& item, std::int64_t first, std::int64_t count, const float* in) {
    unpack(item, first, count, in, values_.data() + first);
    return {};
  }
  std::int64_t wrong() const {
    std::int64_t wrong = 0;
    for (const std::int64_t e : elements_of(item_)) {
      wrong += values_[static_cast<std::size_t>(e)] == value(e) ? 0 : 1;
    }
    return wrong;
  }

 private:
  StateItem item_;
  std::vector<float> values_;
};

class PartMovesOver : public OverWorld {};

INSTANTIATE_TEST_SUITE_P(All, PartMovesOver, ::testing::ValuesIn(worlds()),
                         [](const auto& world) { return world.param.name; });

// Of three ranks: parts of columns, of rows in bands, other parts of columns, and the whole. The
// tensor has several chunks.
TEST_P(PartMovesOver, BringEveryPartWhatItNeeds) {
  constexpr std::int64_t kColumns = 1000, kRows = 2500, kAll = kColumns * kRows;
  static_assert(kAll > 2 * kStateChunk);
  const StateItem whole{"w", "value", kAll};
  const std::vector<StateItem> columns = {rows_of(kAll, kColumns, {{0, 100}, {400, 700}}),
                                          rows_of(kAll, kColumns, {{100, 400}}),
                                          rows_of(kAll, kColumns, {{700, 1000}})};
  const std::vector<StateItem> others = {rows_of(kAll, kColumns, {{0, 500}}),
                                         rows_of(kAll, kColumns, {{500, 1000}}),
                                         rows_of(kAll, kColumns, {{0, 500}})};
  const std::vector<StateItem> rows = {
      rows_of(kAll, kAll, {{0, 500 * kColumns}, {2000 * kColumns, 2200 * kColumns}}),
      rows_of(kAll, kAll, {{500 * kColumns, 2000 * kColumns}}),
      rows_of(kAll, kAll, {{2200 * kColumns, kAll}})};
  const std::vector<std::vector<StateItem>> layouts = {
      {whole, whole, whole}, columns, rows, others, columns};
  for (std::size_t i = 0; i + 1 < layouts.size(); ++i) {
    StateOwners before, after;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      before.push_back({layouts[i][rank]});
      after.push_back({layouts[i + 1][rank]});
    }
    const Result<std::vector<StateMove>> moves = plan_state_moves(before, after);
    ASSERT_TRUE(moves.ok()) << moves.status().message();
    GetParam().run(3, [&](Transport& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      const auto owners = share_state_owners(before[rank], transport, kLong);
      ASSERT_TRUE(owners.ok()) << owners.status().message();
      EXPECT_EQ(*owners, before);
      const Store from(layouts[i][rank], true);
      Store to(layouts[i + 1][rank], false);
      const Status moved = carry_state(
          *moves,
          [&](const StateItem& item, std::int64_t first, std::int64_t count, float* out) {
            return from.read(item, first, count, out);
          },
          [&](const StateItem& item, std::int64_t first, std::int64_t count, const float* in) {
            return to.write(item, first, count, in);
          },
          transport, kLong);
      ASSERT_TRUE(moved.ok()) << moved.message();
      EXPECT_EQ(to.wrong(), 0) << "layout " << i << ", rank " << rank;
    });
  }
}

TEST(PartMoves, NameWhatNoMemberHas) {
  const auto moves = plan_state_moves({{rows_of(60, 12, {{0, 5}})}, {rows_of(60, 12, {{5, 9}})}},
                                      {{{"w", "value", 60}}, {}});
  EXPECT_EQ(moves.status().message(),
            "rank 0 needs 60 elements of 'value' of 'w', of which ranks have 45");
}

TEST(PartMoves, KeepWhatARankHasItself) {
  const std::vector<StateItem> parts = {rows_of(60, 12, {{0, 5}}), rows_of(60, 12, {{5, 12}})};
  const auto moves = plan_state_moves({{parts[0]}, {parts[1]}, {parts[0]}},
                                      {{parts[0]}, {}, {{"w", "value", 60}}});
  ASSERT_TRUE(moves.ok()) << moves.status().message();
  std::string text;
  for (const StateMove& move : *moves) {
    text += std::to_string(move.item.size()) + " of " + std::to_string(move.from) + " to " +
            std::to_string(move.to) + "\n";
  }
  EXPECT_EQ(text, "25 of 0 to 0\n35 of 1 to 2\n25 of 2 to 2\n");
}

}  // namespace
}  // namespace agpcs
