// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/data/read_ahead.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Fills the inputs of a pass with its number, and says what has been filled.
class Source {
 public:
  ReadAhead ahead(std::size_t depth) {
    return ReadAhead(
        depth,
        [](std::int64_t) {
          return ReadAhead::Inputs{at::zeros({2}), at::zeros({1})};
        },
        [this](std::int64_t pass, const ReadAhead::Inputs& inputs) { return fill(pass, inputs); });
  }
  /// Returns the passes of the first `count` fills, as soon as there are so many.
  std::vector<std::int64_t> first(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return filled_.size() >= count; });
    return {filled_.begin(), filled_.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  std::vector<std::int64_t> all() {
    const std::lock_guard lock(mutex_);
    return filled_;
  }
  std::int64_t broken = -1;  // the pass that cannot be read

 private:
  Status fill(std::int64_t pass, const ReadAhead::Inputs& inputs) {
    for (const at::Tensor& input : inputs) input.fill_(static_cast<double>(pass));
    const std::lock_guard lock(mutex_);
    filled_.push_back(pass);
    changed_.notify_all();
    if (pass == broken) return invalid_input("row 7 has a label that is no class");
    return {};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int64_t> filled_;
};

/// Returns the values of the inputs, one after the other.
std::vector<float> values(const Result<ReadAhead::Inputs>& inputs) {
  std::vector<float> all;
  for (const at::Tensor& input : *inputs) {
    all.insert(all.end(), input.data_ptr<float>(), input.data_ptr<float>() + input.numel());
  }
  return all;
}

TEST(ReadAhead, GivesEachPassItsInputs) {
  Source source;
  ReadAhead ahead = source.ahead(3);
  for (const std::int64_t pass : {5, 6, 7, 8, 9}) {
    const auto value = static_cast<float>(pass);
    EXPECT_THAT(values(ahead.take(pass)), ElementsAre(value, value, value));
  }
}

TEST(ReadAhead, ReadsWhatFollowsBeforeItIsTaken) {
  Source source;
  ReadAhead ahead = source.ahead(2);
  EXPECT_TRUE(ahead.take(0).ok());
  EXPECT_THAT(source.first(3), ElementsAre(0, 1, 2)) << "would wait for ever";
  EXPECT_TRUE(ahead.take(1).ok());
  EXPECT_THAT(source.first(4), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(source.all().size(), 4U) << "two passes are ahead, and no third";
}

TEST(ReadAhead, BeginsAnewAtAPassThatIsOutOfOrder) {
  Source source;
  ReadAhead ahead = source.ahead(4);
  for (const std::int64_t pass : {0, 1, 7, 8, 2, 2, 3}) {
    const auto value = static_cast<float>(pass);
    EXPECT_THAT(values(ahead.take(pass)), ElementsAre(value, value, value));
  }
}

TEST(ReadAhead, AnErrorComesWithItsPassAndNothingIsReadBehindIt) {
  Source source;
  source.broken = 2;
  ReadAhead ahead = source.ahead(4);
  EXPECT_TRUE(ahead.take(0).ok());
  EXPECT_TRUE(ahead.take(1).ok());
  EXPECT_EQ(ahead.take(2).status().message(), "row 7 has a label that is no class");
  EXPECT_THAT(source.all(), ElementsAre(0, 1, 2));
  EXPECT_THAT(values(ahead.take(3)), ElementsAre(3, 3, 3));
}

TEST(ReadAhead, AnExceptionIsAnErrorOfItsPass) {
  ReadAhead ahead(
      1, [](std::int64_t) { return ReadAhead::Inputs(); },
      [](std::int64_t, const ReadAhead::Inputs&) -> Status { throw std::bad_alloc(); });
  EXPECT_THAT(ahead.take(0).status().message(), HasSubstr("reading samples ahead: out of memory"));
}

}  // namespace
}  // namespace agpcs
