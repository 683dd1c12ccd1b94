// SPDX-License-Identifier: Apache-2.0
// Gradients and ways to reduce them, for the tests of the reducers.
#pragma once

#include "ir/base/rng.h"
#include "tests/runtime/transport/conformance.h"
#include "tests/runtime/world.h"

#include <agpcs/gradient_reducer.h>

#include <gtest/gtest.h>

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

// Gradients 'g0', 'g1', ... of the given sizes, in groups of `per_group` in that order.
inline GradientSet set_of(const std::vector<std::int64_t>& elements, std::size_t per_group = 2) {
  GradientSet set;
  for (std::size_t g = 0; g < elements.size(); ++g) {
    set.gradients.push_back({"g" + std::to_string(g), DType::kFp32, elements[g]});
    if (g % per_group == 0) set.groups.push_back({"b" + std::to_string(g / per_group), {}});
    set.groups.back().gradients.push_back(static_cast<int>(g));
  }
  return set;
}

struct How {
  Coordination coordination = Coordination::kPlanned;
  bool grouped = true;
};

inline std::string spell(const How& way) {
  std::string text(name_of(way.coordination));
  text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return way.coordination == Coordination::kPlanned || !way.grouped ? text : "Grouped" + text;
}

inline void PrintTo(const How& way, std::ostream* out) { *out << spell(way); }  // NOLINT

inline const std::vector<How> kWays = {{Coordination::kPlanned, true},
                                       {Coordination::kCoordinator, false},
                                       {Coordination::kCoordinator, true},
                                       {Coordination::kCached, false},
                                       {Coordination::kCached, true}};

inline ReducerOptions options_of(const How& way, milliseconds limit = kLong) {
  ReducerOptions options;
  options.coordination = way.coordination;
  options.limit = limit;
  return options;
}

/// The gradients of one rank: element i of gradient g on rank r in step s.
inline float value_of(int r, int g, int s, std::size_t i) {
  return static_cast<float>((r + 1) * (g % 7 + 1) + s + static_cast<int>(i % 5));
}

class Gradients {
 public:
  Gradients(const GradientSet& set, int rank) : rank_(rank) {
    for (const Gradient& gradient : set.gradients) {
      values_.emplace_back(static_cast<std::size_t>(gradient.elements));
    }
  }
  std::size_t count() const { return values_.size(); }
  std::vector<float>& at(int g) { return values_[static_cast<std::size_t>(g)]; }
  Buffer buffer(int g) { return buffer_of(at(g), DType::kFp32); }
  void fill(int step) {
    for (std::size_t g = 0; g < values_.size(); ++g) {
      for (std::size_t i = 0; i < values_[g].size(); ++i) {
        values_[g][i] = value_of(rank_, static_cast<int>(g), step, i);
      }
    }
  }
  void expect_sums(int ranks, int step) {
    for (std::size_t g = 0; g < values_.size(); ++g) {
      std::vector<float> expected(values_[g].size(), 0);
      for (int r = 0; r < ranks; ++r) {
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expected[i] += value_of(r, static_cast<int>(g), step, i);
        }
      }
      ASSERT_EQ(values_[g], expected) << "gradient " << g << ", step " << step;
    }
  }

 private:
  int rank_;
  std::vector<std::vector<float>> values_;
};

/// 0 to count - 1 in an order that `rng` picks.
inline std::vector<int> shuffled(std::size_t count, Rng& rng) {
  std::vector<int> order;
  for (std::size_t i = 0; i < count; ++i) {
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(rng.below(i + 1)),
                 static_cast<int>(i));
  }
  return order;
}

inline std::unique_ptr<GradientReducer> reducer_of(const GradientSet& set, Transport& transport,
                                                   const ReducerOptions& options) {
  auto reducer = GradientReducer::create(set, transport, options);
  EXPECT_TRUE(reducer.ok()) << reducer.status().message();
  return reducer.ok() ? std::move(*reducer) : nullptr;
}

struct Setting {
  WorldKind world;
  How way;
};

inline void PrintTo(const Setting& setting, std::ostream* out) {  // NOLINT
  *out << setting.world.name << " " << spell(setting.way);
}

class ReducerOver : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    const std::string obstacle = GetParam().world.obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << GetParam().world.name << ": " << obstacle;
  }
  const How& way() const { return GetParam().way; }
  GradientSet set(const std::vector<std::int64_t>& elements) const {
    GradientSet made = set_of(elements);
    if (!way().grouped) made.groups.clear();
    return made;
  }
  void run(int ranks, const std::function<void(Transport&)>& body) const {
    GetParam().world.run(ranks, body);
  }
  /// What each rank is told when a step goes wrong; `body` submits and returns. `impatient`: a rank
  /// that gives up after a short while, where the others wait until they are told; -1: none.
  std::vector<Status> failures(
      const GradientSet& set, int impatient,
      const std::function<void(GradientReducer&, Gradients&, int rank)>& body) const {
    std::vector<Status> said(3);
    std::barrier created(3);  // so that no rank fails while others create theirs
    run(3, [&](Transport& transport) {
      const milliseconds limit = transport.rank() == impatient ? milliseconds(2500) : kLong;
      auto reducer = reducer_of(set, transport, options_of(way(), limit));
      created.arrive_and_wait();
      Gradients gradients(set, transport.rank());
      body(*reducer, gradients, transport.rank());
      Status& status = said[static_cast<std::size_t>(transport.rank())];
      status = reducer->wait_all();
      EXPECT_EQ(reducer->wait_all().message(), status.message());
      EXPECT_EQ(reducer->submit(0, gradients.buffer(0)).message(), status.message());
    });
    return said;
  }
};

inline std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const WorldKind& world : {loopback_world(), tcp_world(), gloo_world()}) {
    for (const How& way : kWays) all.push_back({world, way});
  }
  return all;
}

}  // namespace agpcs
