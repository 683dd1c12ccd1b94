// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

namespace agpcs {
namespace {

TEST(WorkerPool, CallsEachWorkerOnceARoundAndReturnsWhenAllAreDone) {
  for (const int workers : {1, 2, 8}) {
    WorkerPool pool(workers);
    ASSERT_EQ(pool.workers(), workers);
    std::vector<int> calls(static_cast<std::size_t>(workers));  // each worker writes its own
    for (int round = 1; round <= 200; ++round) {
      pool.run([&](int worker) { ++calls[static_cast<std::size_t>(worker)]; });
      EXPECT_EQ(calls, std::vector<int>(static_cast<std::size_t>(workers), round));
    }
  }
}

TEST(WorkerPool, WorksAtTheSameTime) {
  WorkerPool pool(4);
  std::barrier all(4);
  std::atomic<int> passed = 0;
  pool.run([&](int) {
    all.arrive_and_wait();  // nobody passes before all four are here
    ++passed;
  });
  EXPECT_EQ(passed, 4);
}

TEST(WorkerPool, TheCallerIsWorker0) {
  WorkerPool pool(3);
  std::vector<std::thread::id> ids(3);
  pool.run([&](int worker) { ids[static_cast<std::size_t>(worker)] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), 3u);
}

TEST(WorkerPool, TakesEachNumberOnce) {
  for (const int workers : {1, 3, 8}) {
    WorkerPool pool(workers);
    for (const std::size_t count : {0u, 1u, 5u, 64u}) {
      std::vector<int> calls(count);
      std::atomic<int> strange = 0;
      pool.run_each(count, [&](int worker, std::size_t i) {
        ++calls[i];
        if (worker < 0 || worker >= workers) ++strange;
      });
      EXPECT_EQ(calls, std::vector<int>(count, 1));
      EXPECT_EQ(strange, 0);
    }
  }
}

TEST(WorkerPool, ABusyWorkerDoesNotHoldUpWhatOthersCanTake) {
  WorkerPool pool(2);
  std::atomic<int> others = 0;
  pool.run_each(10, [&](int, std::size_t i) {
    if (i != 0) {
      ++others;
      others.notify_all();
      return;
    }
    for (int so_far = others; so_far < 9; so_far = others) others.wait(so_far);  // for all others
  });
  EXPECT_EQ(others, 9);
}

TEST(WorkerPool, EndsWithoutWork) {
  for (int i = 0; i < 50; ++i) WorkerPool pool(1 + i % 4);
}

TEST(WorkerPool, WhatOneRoundWroteTheNextOneReads) {
  WorkerPool pool(4);
  std::vector<long> numbers(4, 1);
  long sum = 0;
  for (int round = 0; round < 100; ++round) {
    pool.run([&](int worker) { numbers[static_cast<std::size_t>(worker)] += sum % 7 + worker; });
    sum = std::accumulate(numbers.begin(), numbers.end(), 0L);
  }
  long expected_sum = 0;
  std::vector<long> expected(4, 1);
  for (int round = 0; round < 100; ++round) {
    for (long w = 0; w < 4; ++w) expected[static_cast<std::size_t>(w)] += expected_sum % 7 + w;
    expected_sum = std::accumulate(expected.begin(), expected.end(), 0L);
  }
  EXPECT_EQ(numbers, expected);
}

}  // namespace
}  // namespace agpcs
