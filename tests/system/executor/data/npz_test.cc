// SPDX-License-Identifier: Apache-2.0
// Samples from .npz archives.
#include "runtime/torch/data/data.h"
#include "tests/support/builders.h"
#include "tests/support/temp_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kModel = R"(
    input x [n,2]
    input labels int64[n]
    parameter w [2,4]
    y = MatMul(x, w) [n,4]
    l = SoftmaxCrossEntropyLoss(y, labels) []
    outputs y
    loss l
)";

std::string number(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

template <typename T>
std::string npy(const std::string& type, const std::string& shape, const std::vector<T>& values) {
  const std::string header =
      "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  return std::string("\x93NUMPY\x01\x00", 8) + number(header.size(), 2) + header +
         std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

using Files = std::vector<std::pair<std::string, std::string>>;  // name, contents

// An archive as numpy.savez writes it; with `wide` as it writes one beyond 4 GiB.
std::string zip(const Files& files, bool wide = false, int method = 0) {
  std::string out, directory;
  for (const auto& [name, contents] : files) {
    const std::string size = number(contents.size(), 8), none = number(0xffffffff, 4);
    const std::string offset = number(out.size(), 8);
    const std::string middle = number(0, 2) + number(static_cast<std::uint64_t>(method), 2) +
                               number(0, 4) + number(0, 4);  // flags, method, time, checksum
    const std::string local = number(1, 2) + number(16, 2) + size + size;
    out += "PK\3\4" + number(45, 2) + middle + none + none + number(name.size(), 2) +
           number(local.size(), 2) + name + local + contents;
    const std::string extra = wide ? number(0xcafe, 2) + number(1, 2) + "?" + number(1, 2) +
                                         number(24, 2) + size + size + offset
                                   : "";
    const std::string short_size = wide ? none : size.substr(0, 4);
    directory += "PK\1\2" + number(45, 2) + number(45, 2) + middle + short_size + short_size +
                 number(name.size(), 2) + number(extra.size(), 2) + number(0, 2) + number(0, 8) +
                 (wide ? none : offset.substr(0, 4)) + name + extra;
  }
  const std::string count = number(files.size(), 8), bytes = number(directory.size(), 8);
  const std::string at = number(out.size(), 8), record = number(out.size() + directory.size(), 8);
  out += directory;
  if (wide) {
    out += "PK\6\6" + number(44, 8) + number(45, 2) + number(45, 2) + number(0, 8) + count + count +
           bytes + at + "PK\6\7" + number(0, 4) + record + number(1, 4);
  }
  const auto end = [&](const std::string& value, std::size_t width) {
    return wide ? std::string(width, '\xff') : value.substr(0, width);
  };
  return out + "PK\5\6" + number(0, 4) + end(count, 2) + end(count, 2) + end(bytes, 4) +
         end(at, 4) + number(0, 2);
}

class NpzTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<DataSource>> open(const std::string& archive) {
    std::ofstream(path_, std::ios::binary) << archive;
    return open_data_files(graph_, {.paths = {{"", path_}}});
  }
  std::string error(const std::string& archive) { return open(archive).status().message(); }

  const Graph graph_ = testing::graph_of(kModel);
  const TempFolder temp_;
  const std::string path_ = temp_ / "train.npz";
  const Files files_ = {{"labels.npy", npy<std::int64_t>("<i8", "(3,)", {3, 1, 2})},
                        {"x.npy", npy<float>("<f4", "(3, 2)", {1, 2, 3, 4, 5, 6})}};
};

TEST_F(NpzTest, ArraysFeedTheInputsOfTheirNames) {
  for (const bool wide : {false, true}) {
    auto data = open(zip(files_, wide));
    ASSERT_TRUE(data.ok()) << data.status().message();
    std::vector<std::int64_t> labels(4);
    std::vector<float> x(8);
    ASSERT_TRUE((*data)->fill(graph_.find_tensor("labels"), 1, 4, labels.data()).ok());
    ASSERT_TRUE((*data)->fill(graph_.find_tensor("x"), 1, 4, x.data()).ok());
    EXPECT_THAT(labels, ElementsAre(1, 2, 3, 1)) << wide;
    EXPECT_THAT(x, ElementsAre(3, 4, 5, 6, 1, 2, 3, 4)) << wide;
  }
}

TEST_F(NpzTest, RefusesWhatItCannotFeed) {
  EXPECT_THAT(
      error(zip({{"label.npy", files_[0].second}})),
      HasSubstr(path_ + ": the model has no input 'label'\n  hint: did you mean 'labels'?"));
  EXPECT_EQ(error(zip(files_, false, 8)),
            path_ +
                ": 'labels.npy' is compressed\n"
                "  hint: write it with numpy.savez, which does not compress");
  EXPECT_EQ(error("no archive, but a text"),
            path_ + ": not a .npz file\n  hint: write it with numpy.savez");
  EXPECT_EQ(error(zip({{"labels.npy", npy<std::int64_t>("<i8", "(1,)", {9})}})), "");
  auto data = open(zip({{"labels.npy", npy<std::int64_t>("<i8", "(1,)", {9})}}));
  std::int64_t label = 0;
  EXPECT_THAT(
      (*data)->fill(graph_.find_tensor("labels"), 0, 1, &label).message(),
      HasSubstr(path_ + "/labels.npy: row 0 has label 9, input 'labels' takes classes 0 to 3"));
}

TEST_F(NpzTest, RefusesEveryTruncatedArchive) {
  for (const bool wide : {false, true}) {
    const std::string whole = zip(files_, wide);
    for (std::size_t length = 0; length < whole.size(); ++length) {
      EXPECT_FALSE(open(whole.substr(0, length)).ok()) << length;
    }
    // What lies before an archive moves everything that its directory points to.
    EXPECT_THAT(error("moved" + whole), HasSubstr("the archive is truncated or damaged"));
  }
}

TEST_F(NpzTest, ReadsNothingOutsideADamagedArchive) {
  for (const bool wide : {false, true}) {
    const std::string whole = zip(files_, wide);
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (const char byte : {'\0', '\xff'}) {
        std::string damaged = whole;
        damaged[at] = byte;
        auto data = open(damaged);
        if (!data.ok()) {
          EXPECT_THAT(data.status().message(), HasSubstr(path_)) << at;
          continue;
        }
        std::vector<std::int64_t> labels(3);
        // A damaged value may be a label, too.
        const Status filled = (*data)->fill(graph_.find_tensor("labels"), 0, 3, labels.data());
        if (!filled.ok()) {
          EXPECT_THAT(filled.message(), HasSubstr(path_)) << at;
        }
      }
    }
  }
}

}  // namespace
}  // namespace agpcs
