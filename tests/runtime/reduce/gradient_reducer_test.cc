// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/reduce/reducers.h"

#include <agpcs/gradient_reducer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace agpcs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(All, ReducerOver, ::testing::ValuesIn(settings()),
                         [](const auto& setting) {
                           return setting.param.world.name + spell(setting.param.way);
                         });

TEST_P(ReducerOver, SumsWhatComesInADifferentOrderOnEveryRank) {
  const GradientSet declared = set({3, 1000, 1, 0, 70000, 8, 2});
  run(3, [&](Transport& transport) {
    auto reducer = reducer_of(declared, transport, options_of(way()));
    Gradients gradients(declared, transport.rank());
    Rng rng(static_cast<std::uint64_t>(transport.rank()));
    for (int step = 0; step < 5; ++step) {
      gradients.fill(step);
      for (const int g : shuffled(gradients.count(), rng)) {
        expect_ok(reducer->submit(g, gradients.buffer(g)));
      }
      expect_ok(reducer->wait_all());
      gradients.expect_sums(3, step);
    }
    const ReducerStats stats = reducer->stats();
    EXPECT_EQ(stats.steps, 5);
    if (way().coordination == Coordination::kPlanned) {
      EXPECT_EQ(stats.control_messages, 0);
      EXPECT_EQ(stats.all_reduces, 5 * 4);
    } else {
      EXPECT_GT(stats.control_messages, 0);
    }
  });
}

TEST_P(ReducerOver, AnAbsentGradientCountsAsZerosAndGetsTheSumOfTheOthers) {
  const GradientSet declared = set({3, 5, 2});
  run(3, [&](Transport& transport) {
    auto reducer = reducer_of(declared, transport, options_of(way()));
    for (int step = 0; step < 2; ++step) {
      std::vector<float> a(3, 1), b(5, 7), c(2, 7);
      expect_ok(reducer->submit("g0", buffer_of(a, DType::kFp32)));
      if (transport.rank() == 1) {
        expect_ok(reducer->submit_absent("g1", buffer_of(b, DType::kFp32)));
      } else {
        expect_ok(reducer->submit("g1", buffer_of(b, DType::kFp32)));
      }
      expect_ok(reducer->submit_absent("g2", buffer_of(c, DType::kFp32)));  // on all ranks
      expect_ok(reducer->wait_all());
      EXPECT_EQ(a, std::vector<float>(3, 3));
      EXPECT_EQ(b, std::vector<float>(5, 14));
      EXPECT_EQ(c, std::vector<float>(2, 0));
    }
  });
}

TEST_P(ReducerOver, UnequalSharesWeighTheGradients) {
  const GradientSet declared = set({3, 1});
  run(2, [&](Transport& transport) {
    ReducerOptions options = options_of(way());
    options.scale_in = transport.rank() == 0 ? 0.75 : 0.25;
    options.scale_out = 8;
    auto reducer = reducer_of(declared, transport, options);
    std::vector<float> a(3, transport.rank() == 0 ? 1.F : 5.F), b(1, 4);
    expect_ok(reducer->submit(1, buffer_of(b, DType::kFp32)));
    expect_ok(reducer->submit(0, buffer_of(a, DType::kFp32)));
    expect_ok(reducer->wait_all());
    EXPECT_EQ(a, std::vector<float>(3, 16));
    EXPECT_EQ(b, std::vector<float>(1, 32));
  });
}

// Sums in `wire` are within the bound that the header states, and half as many bytes travel.
void compress(const Setting& setting, DType wire, double u) {
  constexpr int kWidth = 3;
  constexpr std::size_t kCount = 3000;
  GradientSet declared = set_of({kCount, 1});
  if (!setting.way.grouped) declared.groups.clear();
  const auto drawn = [](int rank) {
    Rng rng(static_cast<std::uint64_t>(rank) + 11);
    std::vector<float> values(kCount);
    for (float& value : values) {
      value = static_cast<float>((rng.uniform() - 0.5) * (rng.below(2) == 0 ? 1 : 1e-4));
    }
    return values;
  };
  setting.world.run(kWidth, [&](Transport& transport) {
    ReducerOptions options = options_of(setting.way);
    options.wire_type = wire;
    auto reducer = reducer_of(declared, transport, options);
    std::vector<float> sums = drawn(transport.rank()), one = {1};
    expect_ok(reducer->submit(0, buffer_of(sums, DType::kFp32)));
    expect_ok(reducer->submit(1, buffer_of(one, DType::kFp32)));
    expect_ok(reducer->wait_all());
    EXPECT_EQ(reducer->stats().payload_bytes, 2 * (static_cast<std::int64_t>(kCount) + 1));
    std::vector<std::vector<float>> all;
    for (int r = 0; r < kWidth; ++r) all.push_back(drawn(r));
    double largest = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      double exact = 0, magnitude = 0;
      for (const auto& of_rank : all) {
        const double value = of_rank[i];
        exact += value;
        magnitude += std::abs(value);
      }
      const double bound =
          (std::pow(1 + u, kWidth) - 1) * magnitude + (wire == DType::kFp16 ? kWidth * 0x1p-25 : 0);
      ASSERT_LE(std::abs(static_cast<double>(sums[i]) - exact), bound) << "element " << i;
      largest = std::max(largest, std::abs(static_cast<double>(sums[i]) - exact) / bound);
    }
    EXPECT_GT(largest, 0.1);  // the bound is not idle
  });
}

TEST_P(ReducerOver, Fp16OnTheWireIsAsExactAsStated) { compress(GetParam(), DType::kFp16, 0x1p-11); }
TEST_P(ReducerOver, Bf16OnTheWireIsAsExactAsStated) { compress(GetParam(), DType::kBf16, 0x1p-8); }

TEST_P(ReducerOver, ThreadsMaySubmitAtTheSameTime) {
  const GradientSet declared = set(std::vector<std::int64_t>(40, 100));
  run(2, [&](Transport& transport) {
    auto reducer = reducer_of(declared, transport, options_of(way()));
    Gradients gradients(declared, transport.rank());
    for (int step = 0; step < 3; ++step) {
      gradients.fill(step);
      std::vector<std::thread> threads;
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          for (int g = t; g < 40; g += 4) expect_ok(reducer->submit(g, gradients.buffer(g)));
        });
      }
      expect_ok(reducer->wait_all());
      for (std::thread& thread : threads) thread.join();
      gradients.expect_sums(2, step);
    }
  });
}

TEST_P(ReducerOver, AGradientThatNeverComesIsNamedOnEveryRank) {
  const auto said = failures(set({4, 4, 4, 4}), 1, [](auto& reducer, auto& gradients, int rank) {
    for (const int g : {0, 1, 2, 3}) {
      if (rank == 1 && g == 2) continue;
      expect_ok(reducer.submit(g, gradients.buffer(g)));
    }
  });
  for (const Status& status : said) {
    EXPECT_THAT(status.message(), HasSubstr("gradient 'g2' did not come on rank 1"));
  }
  EXPECT_EQ(said[1].code(), StatusCode::kTimeout);
}

TEST_P(ReducerOver, AGradientThatComesTwiceIsNamedOnEveryRank) {
  const auto said = failures(set({4, 4, 4, 4}), -1, [](auto& reducer, auto& gradients, int rank) {
    for (const int g : {0, 1, 2, 3}) {
      const bool twice = rank == 2 && g == 3;
      [[maybe_unused]] const Status seen = reducer.submit(twice ? 0 : g, gradients.buffer(g));
    }
  });
  for (const Status& status : said) {
    EXPECT_THAT(status.message(), HasSubstr("gradient 'g0' came twice in a step on rank 2"));
  }
}

TEST_P(ReducerOver, AGradientOfAnotherSizeOnOneRankIsNamedOnEveryRank) {
  const auto said = failures(set({4, 4, 4, 4}), -1, [](auto& reducer, auto& gradients, int rank) {
    if (rank == 1) gradients.at(3).resize(5);
    for (const int g : {0, 1, 2, 3}) {
      [[maybe_unused]] const Status seen = reducer.submit(g, gradients.buffer(g));
    }
  });
  for (const Status& status : said) {
    EXPECT_THAT(status.message(), HasSubstr("gradient 'g3' has "));
    EXPECT_THAT(status.message(), AllOf(HasSubstr("5"), HasSubstr("4"), HasSubstr("rank 1")));
  }
}

TEST_P(ReducerOver, AGradientOfAnotherTypeOnOneRankIsNamedOnEveryRank) {
  const auto said = failures(set({4, 4, 4, 4}), -1, [](auto& reducer, auto& gradients, int rank) {
    for (const int g : {0, 1, 2, 3}) {
      Buffer buffer = gradients.buffer(g);
      if (rank == 2 && g == 0) buffer.type = DType::kInt32;
      [[maybe_unused]] const Status seen = reducer.submit(g, buffer);
    }
  });
  for (const Status& status : said) {
    EXPECT_THAT(status.message(), AllOf(HasSubstr("gradient 'g0' has "), HasSubstr("int32")));
  }
}

TEST_P(ReducerOver, ARankThatLeavesInTheMiddleOfAStepIsNamed) {
  const GradientSet declared = set({4, 4});
  std::barrier created(2);
  run(2, [&](Transport& transport) {
    Gradients gradients(declared, transport.rank());  // outlives the reducer, which may use it
    auto reducer = reducer_of(declared, transport, options_of(way()));
    created.arrive_and_wait();
    // What the other rank does may be known already.
    [[maybe_unused]] Status seen = reducer->submit(0, gradients.buffer(0));
    if (transport.rank() == 1) return;
    seen = reducer->submit(1, gradients.buffer(1));
    EXPECT_THAT(reducer->wait_all().message(), HasSubstr("rank 1 left in the middle of a step"));
  });
}

TEST_P(ReducerOver, AfterAnErrorNothingTouchesTheGradients) {
  const GradientSet declared = set({1 << 19, 4, 4});
  for (int round = 0; round < 5; ++round) {
    std::barrier created(2);
    run(2, [&](Transport& transport) {
      Gradients gradients(declared, transport.rank());
      auto reducer = reducer_of(declared, transport, options_of(way()));
      created.arrive_and_wait();
      [[maybe_unused]] Status seen = reducer->submit(0, gradients.buffer(0));
      seen = reducer->submit(1, gradients.buffer(1));
      if (transport.rank() == 1) return;  // while the first group is summed
      seen = reducer->submit(2, gradients.buffer(2));
      EXPECT_FALSE(reducer->wait_all().ok());
      gradients.at(0).assign(gradients.at(0).size(), -1);
      reducer.reset();
      const auto touched = [](float value) { return value != -1; };
      EXPECT_EQ(std::ranges::count_if(gradients.at(0), touched), 0);
    });
  }
}

TEST_P(ReducerOver, WhatRanksDeclareDifferentlyIsNamedOnEveryRank) {
  std::vector<std::string> said(3);
  run(3, [&](Transport& transport) {
    GradientSet declared = set({4, 4, 4, 4});
    if (transport.rank() == 2) declared.gradients[3].elements = 7;
    const auto reducer = GradientReducer::create(declared, transport, options_of(way()));
    said[static_cast<std::size_t>(transport.rank())] = reducer.status().message();
  });
  for (const std::string& text : said) {
    EXPECT_EQ(text, "rank 2 has 'gradient 'g3' fp32 7', rank 0 'gradient 'g3' fp32 4'");
  }
}

TEST_P(ReducerOver, GroupsThatDifferAreNamedOnEveryRank) {
  if (!way().grouped) GTEST_SKIP() << "no groups";
  std::vector<std::string> said(3);
  run(3, [&](Transport& transport) {
    GradientSet declared = set({4, 4, 4, 4});
    if (transport.rank() == 1) std::swap(declared.groups[0], declared.groups[1]);
    const auto reducer = GradientReducer::create(declared, transport, options_of(way()));
    said[static_cast<std::size_t>(transport.rank())] = reducer.status().message();
  });
  for (const std::string& text : said) {
    EXPECT_THAT(text, AllOf(HasSubstr("rank 1 has 'group 'b1'"), HasSubstr("rank 0 'group 'b0'")));
  }
}

class EveryWay : public ::testing::TestWithParam<How> {};
INSTANTIATE_TEST_SUITE_P(All, EveryWay, ::testing::ValuesIn(kWays),
                         [](const auto& way) { return spell(way.param); });

TEST_P(EveryWay, EightRanksAndTwoHundredGradientsInRandomOrders) {
  Rng rng(3);
  std::vector<std::int64_t> elements;
  for (int g = 0; g < 200; ++g) elements.push_back(static_cast<std::int64_t>(rng.below(3000)));
  GradientSet declared = set_of(elements, 7);
  if (!GetParam().grouped) declared.groups.clear();
  loopback_world().run(8, [&](Transport& transport) {
    ReducerOptions options = options_of(GetParam());
    options.cache_capacity = 150;  // fewer than there are
    options.fusion_bytes = 100'000;
    options.cycle = std::chrono::microseconds(100);
    auto reducer = reducer_of(declared, transport, options);
    Gradients gradients(declared, transport.rank());
    Rng order(static_cast<std::uint64_t>(transport.rank()) + 100);
    for (int step = 0; step < 3; ++step) {
      gradients.fill(step);
      for (const int g : shuffled(gradients.count(), order)) {
        expect_ok(reducer->submit(g, gradients.buffer(g)));
        if (order.below(20) == 0) std::this_thread::yield();
      }
      expect_ok(reducer->wait_all());
      gradients.expect_sums(8, step);
    }
  });
}

TEST(CachedReducer, AsksTheCoordinatorInTheFirstStepOnly) {
  const GradientSet declared = set_of({4, 4, 4, 4});
  loopback_world().run(3, [&](Transport& transport) {
    auto reducer = reducer_of(declared, transport, options_of({Coordination::kCached}));
    Gradients gradients(declared, transport.rank());
    std::vector<std::int64_t> coordinated;
    for (int step = 0; step < 4; ++step) {
      for (const int g : {3, 1, 0, 2}) expect_ok(reducer->submit(g, gradients.buffer(g)));
      expect_ok(reducer->wait_all());
      coordinated.push_back(reducer->stats().coordinated);
    }
    EXPECT_GT(coordinated[0], 0);
    EXPECT_EQ(coordinated[3], coordinated[0]);
    EXPECT_EQ(reducer->stats().hits, 3 * 2);
  });
}

TEST(CachedReducer, ASizeThatChangesOnAllRanksIsAgreedOnAnew) {
  const GradientSet declared = set_of({4, 4, 4, 4});
  loopback_world().run(3, [&](Transport& transport) {
    auto reducer = reducer_of(declared, transport, options_of({Coordination::kCached}));
    for (const std::int64_t size : {4, 4, 9, 9, 4}) {
      Gradients gradients(set_of({size, 4, 4, 4}), transport.rank());
      gradients.fill(0);
      for (const int g : {0, 1, 2, 3}) expect_ok(reducer->submit(g, gradients.buffer(g)));
      expect_ok(reducer->wait_all());
      gradients.expect_sums(3, 0);
    }
    EXPECT_EQ(reducer->stats().invalidations, 2);
  });
}

TEST(CachedReducer, ASmallCacheEvictsAndStaysRight) {
  const GradientSet declared = set_of({4, 4, 4, 4}, 1);
  loopback_world().run(2, [&](Transport& transport) {
    ReducerOptions options = options_of({Coordination::kCached});
    options.cache_capacity = 3;
    auto reducer = reducer_of(declared, transport, options);
    Gradients gradients(declared, transport.rank());
    for (int step = 0; step < 5; ++step) {
      gradients.fill(step);
      for (const int g : {0, 1, 2, 3}) expect_ok(reducer->submit(g, gradients.buffer(g)));
      expect_ok(reducer->wait_all());
      gradients.expect_sums(2, step);
    }
    EXPECT_GT(reducer->stats().evictions, 0);
  });
}

TEST(CoordinatedReducer, LargeGradientsAreNotFused) {
  const GradientSet declared = set_of({10, 500, 10, 600, 10}, 5);
  loopback_world().run(2, [&](Transport& transport) {
    ReducerOptions options = options_of({Coordination::kCoordinator});
    options.alone_bytes = 500 * 4;
    auto reducer = reducer_of(declared, transport, options);
    Gradients gradients(declared, transport.rank());
    gradients.fill(0);
    for (int g = 0; g < 5; ++g) expect_ok(reducer->submit(g, gradients.buffer(g)));
    expect_ok(reducer->wait_all());
    gradients.expect_sums(2, 0);
    EXPECT_EQ(reducer->stats().all_reduces, 3);
    EXPECT_EQ(reducer->stats().copied_bytes, 0);
  });
}

TEST(CoordinatedReducer, FusesUpToTheThreshold) {
  const GradientSet declared = set_of({10, 10, 10, 10, 10, 10, 10}, 7);
  loopback_world().run(2, [&](Transport& transport) {
    ReducerOptions options = options_of({Coordination::kCoordinator});
    options.fusion_bytes = 3 * 10 * 4;
    auto reducer = reducer_of(declared, transport, options);
    Gradients gradients(declared, transport.rank());
    for (int g = 0; g < 7; ++g) expect_ok(reducer->submit(g, gradients.buffer(g)));
    expect_ok(reducer->wait_all());
    EXPECT_EQ(reducer->stats().all_reduces, 3);  // 3, 3, 1: the group is ready at once
  });
}

}  // namespace
}  // namespace agpcs
