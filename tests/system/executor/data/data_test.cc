// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/data/data.h"

#include "runtime/torch/data/npy.h"
#include "tests/support/builders.h"
#include "tests/support/temp_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kModel = R"(
    input x [n,3]
    input ids int64[n,5]
    input mask int64[n,5]
    input labels int64[n]
    parameter table [7,3]
    parameter w [3,4]
    e = Gather(table, ids) [n,5,3]
    m = Cast(mask) [n,5] to=1
    y = MatMul(x, w) [n,4]
    l = SoftmaxCrossEntropyLoss(y, labels) []
    outputs y
    loss l
)";

template <typename T>
std::vector<T> read(DataSource& data, const Graph& graph, const char* input, std::int64_t first,
                    std::int64_t count, std::size_t per_sample) {
  std::vector<T> values(static_cast<std::size_t>(count) * per_sample);
  const Status status = data.fill(graph.find_tensor(input), first, count, values.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return values;
}

// A .npy file in a folder of its own, gone at the end.
class NpyTest : public ::testing::Test {
 protected:
  std::string write(const std::string& dictionary, const std::string& payload, char version = 1) {
    std::string header = dictionary + "\n";
    std::string text = std::string("\x93NUMPY") + version + '\0';
    text += static_cast<char>(header.size() & 0xff);
    text += static_cast<char>(header.size() >> 8);
    if (version > 1) text += std::string(2, '\0');
    const std::string path = folder_ / "values.npy";
    std::ofstream(path, std::ios::binary) << text << header << payload;
    return path;
  }

  template <typename T>
  static std::string bytes(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }

  const TempFolder temp_;
  std::filesystem::path folder_ = temp_.path();
};

TEST(SyntheticData, DoesNotDependOnHowItIsAskedFor) {
  const Graph graph = testing::graph_of(kModel);
  auto data = make_synthetic_data(graph, 7), other = make_synthetic_data(graph, 8);
  const auto whole = read<float>(*data, graph, "x", 10, 4, 3);
  auto parts = read<float>(*data, graph, "x", 10, 1, 3);
  const auto rest = read<float>(*data, graph, "x", 11, 3, 3);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(whole, parts);
  EXPECT_NE(whole, read<float>(*other, graph, "x", 10, 4, 3));
}

TEST(SyntheticData, HasMeanZeroAndVarianceOne) {
  const Graph graph = testing::graph_of(R"(
      input x [n,3000]
      input labels int64[n]
      parameter w [3000,4]
      y = MatMul(x, w) [n,4]
      l = SoftmaxCrossEntropyLoss(y, labels) []
      outputs y
      loss l
  )");
  auto data = make_synthetic_data(graph, 7);
  const auto x = read<float>(*data, graph, "x", 0, 40, 3000);
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  double variance = 0;
  for (float v : x) variance += (v - mean) * (v - mean) / static_cast<double>(x.size());
  // The patterns of four classes have 16 areas each: 64 draws of half the variance.
  EXPECT_NEAR(mean, 0, 0.3);
  EXPECT_NEAR(variance, 1, 0.3);
}

TEST(SyntheticData, IntegersLieInTheRangeOfWhatTheyIndex) {
  const Graph graph = testing::graph_of(kModel);
  auto data = make_synthetic_data(graph, 7);
  const auto ids = read<std::int64_t>(*data, graph, "ids", 0, 200, 5);
  EXPECT_EQ(*std::min_element(ids.begin(), ids.end()), 0);
  EXPECT_EQ(*std::max_element(ids.begin(), ids.end()), 6);
  const auto labels = read<std::int64_t>(*data, graph, "labels", 0, 200, 1);
  EXPECT_EQ(*std::min_element(labels.begin(), labels.end()), 0);
  EXPECT_EQ(*std::max_element(labels.begin(), labels.end()), 3);
  EXPECT_THAT(read<std::int64_t>(*data, graph, "mask", 0, 20, 5), Each(1));
}

TEST_F(NpyTest, FeedsAnInputAndStartsAgainAfterTheLastSample) {
  const Graph graph = testing::graph_of(kModel);
  const std::string path = write("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }",
                                 bytes<std::int64_t>({0, 1, 2}));
  auto data = open_data_files(graph, {.paths = {{"labels", path}}, .seed = 7});
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_THAT(read<std::int64_t>(**data, graph, "labels", 2, 5, 1), ElementsAre(2, 0, 1, 2, 0));
  auto synthetic = make_synthetic_data(graph, 7);
  EXPECT_EQ(read<float>(**data, graph, "x", 0, 2, 3), read<float>(*synthetic, graph, "x", 0, 2, 3));
}

constexpr const char* kPlain = R"(
    input x [n,1]
    parameter w [1,2]
    y = MatMul(x, w) [n,2]
    outputs y
)";

TEST_F(NpyTest, GivesEachEpochAnOrderOfItsOwn) {
  const Graph graph = testing::graph_of(kPlain);
  std::vector<float> rows(50);
  std::iota(rows.begin(), rows.end(), 0.0F);
  const std::string path =
      write("{'descr': '<f4', 'fortran_order': False, 'shape': (50, 1), }", bytes(rows));
  auto data = open_data_files(graph, {.paths = {{"x", path}}, .order = SampleOrder::shuffled(7)});
  ASSERT_TRUE(data.ok()) << data.status().message();
  const auto first = read<float>(**data, graph, "x", 0, 50, 1);
  const auto second = read<float>(**data, graph, "x", 50, 50, 1);
  EXPECT_THAT(first, ::testing::UnorderedElementsAreArray(rows));
  EXPECT_THAT(second, ::testing::UnorderedElementsAreArray(rows));
  EXPECT_NE(first, rows);
  EXPECT_NE(first, second);
  // A sample has its row whoever asks for it, and whatever was asked for before.
  auto other = open_data_files(graph, {.paths = {{"x", path}}, .order = SampleOrder::shuffled(7)});
  EXPECT_THAT(read<float>(**other, graph, "x", 48, 4, 1),
              ElementsAre(first[48], first[49], second[0], second[1]));
  EXPECT_EQ(read<float>(**other, graph, "x", 150, 1, 1),
            read<float>(**data, graph, "x", 150, 1, 1));
  EXPECT_THAT(read<float>(**other, graph, "x", 0, 2, 1), ElementsAre(first[0], first[1]));
  auto another =
      open_data_files(graph, {.paths = {{"x", path}}, .order = SampleOrder::shuffled(8)});
  EXPECT_NE(read<float>(**another, graph, "x", 0, 50, 1), first);
}

TEST_F(NpyTest, ShardsFollowEachOtherByTheirNames) {
  const Graph graph = testing::graph_of(kPlain);
  const std::string shards = folder_ / "shards", header = "{'descr': '<f4', 'fortran_order': False";
  std::filesystem::create_directory(shards);
  const auto move = [&](const std::string& name, const std::vector<float>& values) {
    const std::string shape = ", 'shape': (" + std::to_string(values.size()) + ", 1), }";
    std::filesystem::rename(write(header + shape, bytes(values)), shards + "/" + name);
  };
  move("b.npy", {3, 4, 5});
  move("a.npy", {0, 1, 2});
  move("c.npy", {6});
  std::ofstream(shards + "/notes.txt") << "not a shard";
  for (const std::string& path : {shards, shards + "/[a-c].npy"}) {
    auto data = open_data_files(graph, {.paths = {{"", path}}});
    ASSERT_TRUE(data.ok()) << data.status().message();
    EXPECT_EQ((*data)->rows(), 7);
    EXPECT_THAT(read<float>(**data, graph, "x", 1, 9, 1), ElementsAre(1, 2, 3, 4, 5, 6, 0, 1, 2));
  }
  // Files that are given one by one follow each other as given; orders of epochs are over all rows.
  const DataFiles given{.paths = {{"x", shards + "/c.npy"}, {"x", shards + "/a.npy"}}};
  auto data = open_data_files(graph, given);
  EXPECT_THAT(read<float>(**data, graph, "x", 0, 4, 1), ElementsAre(6, 0, 1, 2));
  auto shuffled =
      open_data_files(graph, {.paths = {{"x", shards}}, .order = SampleOrder::shuffled(7)});
  EXPECT_THAT(read<float>(**shuffled, graph, "x", 7, 7, 1),
              ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6));
  const auto error = [&](const std::string& path) {
    return open_data_files(graph, {.paths = {{"x", path}}}).status().message();
  };
  EXPECT_EQ(error(shards + "/*.npz"), shards + "/*.npz: no file has a name of this pattern");
  std::ofstream(shards + "/d.npz") << "";
  EXPECT_EQ(error(shards), shards +
                               ": 1 .npz files beside 3 .npy files\n"
                               "  hint: give a pattern, such as 'shard-*.npz'");
}

TEST_F(NpyTest, WholeNumbersBecomeFloatingOnesByAScaleOnly) {
  const Graph graph = testing::graph_of(kPlain);
  std::vector<std::uint8_t> all(256);
  std::iota(all.begin(), all.end(), std::uint8_t{0});
  const std::string path =
      write("{'descr': '|u1', 'fortran_order': False, 'shape': (256, 1), }", bytes(all));
  EXPECT_EQ(open_data_files(graph, {.paths = {{"x", path}}}).status().message(),
            path +
                ": holds uint8, input 'x' is fp32\n"
                "  hint: --scale x=1/255 turns bytes into 0 to 1, --scale x=1 leaves numbers as "
                "they are; or save it with numpy's astype");
  DataFiles files{.paths = {{"x", path}}, .scales = {{"x", *parse_scale("1/255")}}};
  auto data = open_data_files(graph, files);
  ASSERT_TRUE(data.ok()) << data.status().message();
  const auto values = read<float>(**data, graph, "x", 0, 256, 1);
  for (std::size_t i = 0; i < 256; ++i) EXPECT_EQ(values[i], static_cast<float>(i) / 255.0F);
  files.scales.emplace("y", Scale{});
  EXPECT_THAT(open_data_files(graph, files).status().message(), HasSubstr("no input 'y'"));
  const std::string floats =
      write("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), }", bytes<float>({1}));
  EXPECT_THAT(open_data_files(graph, {.paths = {{"x", floats}}, .scales = {{"x", Scale{}}}})
                  .status()
                  .message(),
              HasSubstr("holds fp32, input 'x' is fp32\n  hint: --scale turns whole numbers"));
  for (const char* text : {"", "0", "-1", "1/0", "1/", "255x", "nan", "1e999"}) {
    EXPECT_FALSE(parse_scale(text)) << text;
  }
}

TEST_F(NpyTest, NarrowTypesBecomeWiderOnesWithoutAWord) {
  const Graph graph = testing::graph_of(kModel);
  const std::string path = write("{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }",
                                 bytes<std::int32_t>({3, -100, 4}));
  auto data = open_data_files(graph, {.paths = {{"labels", path}}});
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_THAT(read<std::int64_t>(**data, graph, "labels", 0, 2, 1), ElementsAre(3, -100));
  std::int64_t label = 0;
  EXPECT_THAT((*data)->fill(graph.find_tensor("labels"), 2, 1, &label).message(),
              HasSubstr("row 2 has label 4, input 'labels' takes classes 0 to 3"));
  const Graph plain = testing::graph_of(kPlain);
  const std::string wide =
      write("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1), }", bytes<double>({1}));
  EXPECT_EQ(open_data_files(plain, {.paths = {{"x", wide}}}).status().message(),
            wide + ": holds fp64, input 'x' is fp32\n  hint: save it with numpy's astype");
}

TEST_F(NpyTest, ReadsVersionTwo) {
  const std::string path = write("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }",
                                 bytes<float>({1.5f, -2}), 2);
  auto file = NpyFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_THAT(file->shape(), ElementsAre(2, 1));
  std::vector<float> values(2);
  ASSERT_TRUE(file->read_rows(0, 2, values.data()).ok());
  EXPECT_THAT(values, ElementsAre(1.5f, -2));
}

TEST_F(NpyTest, RefusesWhatItCannotRead) {
  const auto error = [](const std::string& path) { return NpyFile::open(path).status().message(); };
  EXPECT_THAT(error(folder_ / "absent.npy"),
              HasSubstr("absent.npy: error: cannot be read: No such file or directory"));
  EXPECT_EQ(error("/dev/zero"), "/dev/zero: error: it is a character device, not a .npy file");
  EXPECT_THAT(error(write("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "1234")),
              HasSubstr("element type '>f4'"));
  EXPECT_THAT(error(write("{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", "1234")),
              HasSubstr("Fortran order"));
  EXPECT_THAT(error(write("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "1234")),
              HasSubstr("holds 4 bytes of values, its shape needs 8"));
  EXPECT_THAT(error(write("{'descr': '<f4', 'fortran_order': False, 'shape': (2, -1), }", "1234")),
              HasSubstr("shape is not a tuple of whole numbers"));
  EXPECT_THAT(error(write("{'descr': '<f4'}", "1234")),
              HasSubstr("without descr, fortran_order or shape"));
  EXPECT_THAT(
      error(write("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387905, 4), }",
                  "1")),
      HasSubstr("shape is too large"));
  std::ofstream(folder_ / "text.npy") << "1, 2, 3, 4, 5";
  EXPECT_THAT(error(folder_ / "text.npy"), HasSubstr("not a .npy file"));
}

TEST_F(NpyTest, RefusesAFileThatDoesNotFitItsInput) {
  const Graph graph = testing::graph_of(kModel);
  const auto error = [&graph](const char* input, const std::string& path) {
    return open_data_files(graph, {.paths = {{input, path}}}).status().message();
  };
  const std::string path = write("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }",
                                 bytes<float>({1, 2, 3, 4}));
  EXPECT_THAT(error("x", path), HasSubstr("has shape [2, 2], input 'x' needs [samples, 3]"));
  EXPECT_THAT(error("labels", path), HasSubstr("holds fp32, input 'labels' is int64"));
  EXPECT_THAT(error("labelz", path),
              HasSubstr("no input 'labelz'\n  hint: did you mean 'labels'?"));
}

TEST_F(NpyTest, RefusesALabelThatIsNoClass) {
  const Graph graph = testing::graph_of(kModel);
  for (const std::int64_t label : {4, 99, -1}) {
    const std::string path = write("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }",
                                   bytes<std::int64_t>({3, -100, label}));
    auto data = open_data_files(graph, {.paths = {{"labels", path}}});
    ASSERT_TRUE(data.ok()) << data.status().message();
    const TensorId labels = graph.find_tensor("labels");
    std::int64_t out[3];
    EXPECT_TRUE((*data)->fill(labels, 3, 2, out).ok());  // those of rows 0 and 1
    EXPECT_EQ((*data)->fill(labels, 4, 3, out).message(),
              path + ": row 2 has label " + std::to_string(label) +
                  ", input 'labels' takes classes 0 to 3\n  hint: rows and classes count from 0");
  }
}

constexpr const char* kPositions = R"(
    input x [n,2,3]
    input labels int64[n,2]
    constant all int64[1]
    parameter w [3,4]
    y = MatMul(x, w) [n,2,4]
    rows = Flatten(y) [2n,4] axis=2
    flat = Reshape(labels, all) int64[2n]
    l = SoftmaxCrossEntropyLoss(rows, flat) [] ignore_index=-1
    outputs y
    loss l
)";

TEST_F(NpyTest, RefusesALabelOfAPositionThatIsNoClass) {
  const Graph graph = testing::graph_of(kPositions);
  const std::string path = write("{'descr': '<i8', 'fortran_order': False, 'shape': (2, 2), }",
                                 bytes<std::int64_t>({3, -1, 0, 4}));
  auto data = open_data_files(graph, {.paths = {{"labels", path}}});
  ASSERT_TRUE(data.ok()) << data.status().message();
  std::int64_t out[4];
  EXPECT_TRUE((*data)->fill(graph.find_tensor("labels"), 0, 1, out).ok());
  EXPECT_EQ((*data)->fill(graph.find_tensor("labels"), 0, 2, out).message(),
            path +
                ": row 1 has label 4 at [1], input 'labels' takes classes 0 to 3, and -1 that "
                "does not count\n  hint: rows and classes count from 0");
}

constexpr const char* kBinary = R"(
    input x [n,3]
    input target [n,2]
    parameter w [3,2]
    y = MatMul(x, w) [n,2]
    s = Softplus(y) [n,2]
    c = Mul(y, target) [n,2]
    d = Sub(s, c) [n,2]
    l = ReduceMean(d) []
    outputs y
    loss l
)";

TEST_F(NpyTest, RefusesATruthThatIsNeitherYesNorNo) {
  const Graph graph = testing::graph_of(kBinary);
  const std::string path = write("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }",
                                 bytes<float>({0, 1, 0.5F, -1}));
  auto data = open_data_files(graph, {.paths = {{"target", path}}});
  ASSERT_TRUE(data.ok()) << data.status().message();
  float out[4];
  EXPECT_TRUE((*data)->fill(graph.find_tensor("target"), 0, 1, out).ok());
  EXPECT_EQ((*data)->fill(graph.find_tensor("target"), 0, 2, out).message(),
            path + ": row 1 has -1 at [1], input 'target' takes 0 (no) to 1 (yes)");
}

TEST(SyntheticData, FollowsTheLoss) {
  const Graph positions = testing::graph_of(kPositions);
  const auto labels =
      read<std::int64_t>(*make_synthetic_data(positions, 7), positions, "labels", 0, 500, 2);
  EXPECT_EQ(*std::min_element(labels.begin(), labels.end()), 0);
  EXPECT_EQ(*std::max_element(labels.begin(), labels.end()), 3);
  // Low labels are likelier: the cube of a uniform number is below 1/4 with probability 0.63.
  EXPECT_NEAR(static_cast<double>(std::count(labels.begin(), labels.end(), 0)), 630, 60);
  const Graph binary = testing::graph_of(kBinary);
  const auto truths = read<float>(*make_synthetic_data(binary, 7), binary, "target", 0, 500, 2);
  EXPECT_THAT(truths, Each(::testing::AnyOf(0.0F, 1.0F)));
  EXPECT_NEAR(static_cast<double>(std::count(truths.begin(), truths.end(), 1.0F)), 206, 60);
}

TEST_F(NpyTest, RefusesFilesOfDifferentLengths) {
  const Graph graph = testing::graph_of(kModel);
  const std::string labels = folder_ / "labels.npy";
  std::filesystem::rename(write("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }",
                                bytes<std::int64_t>({0, 1, 2})),
                          labels);
  const std::string samples = write("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
                                    bytes<float>({1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(
      open_data_files(graph, {.paths = {{"labels", labels}, {"x", samples}}}).status().message(),
      labels + ": has 3 rows, " + samples +
          " has 2\n"
          "  hint: row i of every file is sample i");
}

}  // namespace
}  // namespace agpcs
