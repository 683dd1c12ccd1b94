// SPDX-License-Identifier: Apache-2.0
// A step allocates nothing. In a binary of its own: it counts every allocation of its threads.
#include "runtime/transport/wire_collectives.h"
#include "tests/runtime/null_executor.h"
#include "tests/runtime/plans.h"

#include <agpcs/replayer.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>

namespace {
thread_local long allocations = 0;
}  // namespace

// Not inlined: GCC would warn that one half of a pair is replaced where it sees only that one.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace agpcs {
namespace {

long allocations_of_steps(const TestPlan& spec, int rank) {
  const Plan plan = make_plan(spec);
  InstantTransport transport(rank, plan.rank_count());
  NullExecutor executor;
  auto replayer = Replayer::create(plan, rank, transport, executor);
  EXPECT_TRUE(replayer.ok()) << replayer.status().message();
  const long before = allocations;
  for (int step = 0; step < 20; ++step) EXPECT_TRUE((*replayer)->run_step().ok());
  return allocations - before;
}

TEST(Allocation, TheCounterCounts) {
  const long before = allocations;
  std::vector<int>* made = new std::vector<int>(10);
  EXPECT_EQ(allocations - before, 2);
  delete made;
}

TEST(Allocation, AStepOfDataParallelAllocatesNothing) {
  EXPECT_EQ(allocations_of_steps({{{2, 1, 4, 1}}, {}, 2}, 1), 0);
}

TEST(Allocation, NeitherDoesOneWhoseGradientsTravelInAnotherType) {
  TestPlan spec = {{{2, 1, 4, 1}}, {}, 2};
  for (const DType type : {DType::kFp16, DType::kBf16}) {
    spec.wire_type = type;
    EXPECT_EQ(allocations_of_steps(spec, 1), 0);
  }
}

TEST(Allocation, AStepOfAPipelineOfReplicasAllocatesNothing) {
  const TestPlan spec = {{{3, 1}, {1, 3}, {2, 2}}, {{0, 1, {"a"}}, {1, 2, {"b", "W"}}}, 6};
  for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(allocations_of_steps(spec, rank), 0) << rank;
}

/// Its messages are done at once. Each is an allocation.
class InstantWire final : public Wire {
 public:
  using Posted = Result<std::unique_ptr<WireMessage>>;
  Posted send(const void* /*data*/, std::size_t /*bytes*/, int /*peer*/,
              std::uint64_t /*slot*/) override {
    return post();
  }
  Posted recv(void* /*data*/, std::size_t /*bytes*/, int /*peer*/,
              std::uint64_t /*slot*/) override {
    return post();
  }
  Posted recv_and_add(const Pieces& /*to*/, DType /*type*/, int /*peer*/,
                      std::uint64_t /*slot*/) override {
    return post();
  }
  void cancel(const Status& /*reason*/) override {}
  void announce(const Status& /*reason*/) override {}
  long posted = 0;

 private:
  class Done final : public WireMessage {
    Status wait(Deadline /*deadline*/) override { return {}; }
  };
  Posted post() {
    ++posted;
    return std::unique_ptr<WireMessage>(std::make_unique<Done>());
  }
};

TEST(Allocation, CollectivesAllocateTheirMessagesOnly) {
  const RankGroup group = *make_rank_group(0, {0, 1, 2, 3, 4}, {0, 0, 1, 1, 1}, 2, 5);
  const Parts parts = {400'000, 0, 7, 300'000, 1};
  std::vector<float> values(700'008);
  const Buffer buffer = {values.data(), values.size() * sizeof(float), DType::kFp32, false};
  for (const AllReduce algorithm : kAllReduces) {
    for (const Collective kind :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      InstantWire wire;
      WireCollectives collectives(wire, 2);
      const WireCollective call = {kind, algorithm, buffer,
                                   kind == Collective::kAllReduce ? nullptr : &parts};
      ASSERT_TRUE(collectives.run(group, call).ok());
      const long before = allocations, posted = wire.posted;
      ASSERT_TRUE(collectives.run(group, call).ok());
      EXPECT_GT(wire.posted, posted);
      EXPECT_EQ(allocations - before, wire.posted - posted)
          << name_of(kind) << " by " << name_of(algorithm);
    }
  }
}

}  // namespace
}  // namespace agpcs
