// SPDX-License-Identifier: Apache-2.0
#include "planner/team/choose.h"

#include "ir/base/rng.h"
#include "planner/team/content.h"
#include "planner/team/frontier.h"
#include "tests/support/team_models.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Parts = std::vector<std::int64_t>;

TeamProblem problem_of(const Graph& graph, Parts parts, TeamSpeeds speeds, std::int64_t samples = 1,
                       std::int64_t micro_batches = 1) {
  TeamProblem problem{graph, {}, std::move(parts), samples, micro_batches, Precision::kFp32, {}};
  problem.ops.resize(graph.ops.size());
  std::iota(problem.ops.begin(), problem.ops.end(), 0);
  problem.costs = roofline_costs(graph, std::move(speeds), samples, problem.precision);
  return problem;
}

TeamChoice choice_of(const TeamProblem& problem) {
  Result<TeamChoice> choice = choose_team_body(problem);
  AGPCS_CHECK(choice.ok(), "{}", choice.status().message());
  const Status sound = verify_team_body(problem.graph, choice->body);
  AGPCS_CHECK(sound.ok(), "{}", sound.message());
  return *std::move(choice);
}

/// Counts exchanges of activations by kind and bytes: "2 all-reduce of 96".
std::map<std::string, int> exchanges_of(const TeamProblem& problem, const TeamBody& body,
                                        bool forward) {
  std::map<std::string, int> counts;
  for (const TeamStep& step : forward ? body.forward : body.backward) {
    if (step.form == kNone) continue;
    const TeamExchange exchange = forward ? forward_exchange(body, step.form)
                                          : backward_exchange(problem.graph, body, step.form);
    if (!is_collective(exchange)) continue;
    const Tensor& tensor =
        problem.graph.tensor(body.forms[static_cast<std::size_t>(step.form)].tensor);
    ++counts[fmt::format("{} of {}", name_of(exchange),
                         exchanged_bytes(tensor, problem.samples, problem.precision))];
  }
  return counts;
}

/// Returns what splits the operators of a type have, in their order.
std::vector<std::string> splits_of_type(const Graph& graph, const TeamBody& body,
                                        const std::string& type) {
  std::vector<std::string> names;
  for (const TeamOp& op : body.ops) {
    if (graph.op(op.op).type != type) continue;
    names.push_back(op.split == kNone
                        ? "whole"
                        : splits_of(graph, op.op)[static_cast<std::size_t>(op.split)].name);
  }
  return names;
}

// GPT-2's largest layers, on two devices with 100 TFLOP/s and 2 TB/s, and 300 GB/s between them.
constexpr testing::TransformerSize kLayers = {3, 256, 1600, 25, 25, 6400, 50257};
constexpr std::int64_t kBatch = 1;
const TeamSpeeds kSpeeds = {{1e14, 1e14}, {2e12, 2e12}, 3e11, 5e-6};

TEST(ChooseTeamBody, FindsMegatronsTwoAllReducesOfALayerAndPass) {
  const Graph graph = testing::gpt_graph(kLayers);
  const TeamProblem problem = problem_of(graph, {1, 1}, kSpeeds, kBatch);
  const TeamChoice choice = choice_of(problem);
  EXPECT_TRUE(choice.exact);
  const std::string all_reduce =
      fmt::format("all-reduce of {}", kBatch * kLayers.sequence * kLayers.hidden * 4);
  // b x s x h, as in Megatron-LM (Shoeybi et al., 2019, section 3): two a layer and pass. One more
  // is behind the embedding, which is divided by vocabulary, and backward before the last product.
  const int layers = kLayers.layers;
  const std::map<std::string, int> expected = {{all_reduce, 2 * layers + 1}};
  EXPECT_EQ(exchanges_of(problem, choice.body, true), expected);
  EXPECT_EQ(exchanges_of(problem, choice.body, false), expected);
  std::vector<std::string> products;
  for (int i = 0; i < layers; ++i) {
    for (const char* name : {"columns", "rows", "columns", "rows"}) products.emplace_back(name);
  }
  products.emplace_back("columns");  // of the vocabulary
  EXPECT_EQ(splits_of_type(graph, choice.body, "MatMul"), products);
  EXPECT_EQ(splits_of_type(graph, choice.body, "Attention"),
            std::vector<std::string>(static_cast<std::size_t>(layers), "heads"));
  EXPECT_EQ(splits_of_type(graph, choice.body, "LayerNormalization"),
            std::vector<std::string>(static_cast<std::size_t>(2 * layers + 1), "whole"));
}

/// Returns the bytes that a member sends in a ring of two: of an all-reduce twice those of its
/// halves.
std::int64_t sent_of_two(const TeamProblem& problem, const TeamBody& body, bool forward) {
  std::int64_t bytes = 0;
  for (const TeamStep& step : forward ? body.forward : body.backward) {
    if (step.form == kNone) continue;
    const TeamExchange exchange = forward ? forward_exchange(body, step.form)
                                          : backward_exchange(problem.graph, body, step.form);
    if (!is_collective(exchange)) continue;
    EXPECT_NE(exchange, TeamExchange::kAllToAll);
    const Tensor& tensor =
        problem.graph.tensor(body.forms[static_cast<std::size_t>(step.form)].tensor);
    bytes += exchanged_bytes(tensor, problem.samples, problem.precision) /
             (exchange == TeamExchange::kAllReduce ? 1 : 2);
  }
  return bytes;
}

/// As `roofline_costs`, where an all-to-all is as slow as gathering all, and nothing is copied
/// within a device: what Megatron-LM has.
TeamCosts without_all_to_all(const Graph& graph, const TeamSpeeds& speeds, std::int64_t samples) {
  TeamCosts costs = roofline_costs(graph, speeds, samples, Precision::kFp32);
  costs.exchange = [given = costs.exchange](TeamTraffic traffic) {
    traffic.copied.clear();
    if (traffic.exchange != TeamExchange::kAllToAll) return given(traffic);
    const std::int64_t all =
        std::accumulate(traffic.bytes.begin(), traffic.bytes.end(), std::int64_t{0});
    return given({TeamExchange::kAllReduce, {all}});
  };
  return costs;
}

TEST(ChooseTeamBody, DividesTheSequenceBetweenProductsWhereThatIsWorthIt) {
  testing::TransformerSize size = kLayers;
  size.sequence = 2048;
  const Graph graph = testing::gpt_graph(size);
  TeamProblem problem = problem_of(graph, {1, 1}, kSpeeds);
  problem.costs = without_all_to_all(graph, kSpeeds, 1);
  const TeamChoice choice = choice_of(problem);
  EXPECT_TRUE(choice.exact);
  // Korthikanti et al., 2022: a reduce-scatter and an all-gather move the bytes of the all-reduce.
  const std::int64_t hidden = size.sequence * size.hidden * 4;
  EXPECT_EQ(sent_of_two(problem, choice.body, true), (2 * size.layers + 1) * hidden);
  EXPECT_EQ(exchanges_of(problem, choice.body, true).count(fmt::format("all-reduce of {}", hidden)),
            0u);
  EXPECT_EQ(splits_of_type(graph, choice.body, "LayerNormalization"),
            std::vector<std::string>(static_cast<std::size_t>(2 * size.layers + 1), "axis 1"));
}

TEST(ChooseTeamBody, GivesMembersExpertsOfTheirOwn) {
  const testing::TransformerSize size = {1, 512, 1024, 16, 16, 4096, 1000, false, 16, 4, 8};
  const Graph graph = testing::moe_graph(size);
  const TeamSpeeds speeds = {{3e13, 1e13}, {2e12, 2e12}, 3e11, 5e-6};
  const TeamProblem problem = problem_of(graph, {3, 1}, speeds, 4);
  const TeamChoice choice = choice_of(problem);
  const std::vector<std::string> splits = splits_of_type(graph, choice.body, "Einsum");
  EXPECT_EQ(splits[3], "index e");  // up
  EXPECT_EQ(splits[4], "index e");  // down
  int weights = 0;
  for (const TeamForm& form : choice.body.forms) {
    const Tensor& tensor = graph.tensor(form.tensor);
    if (tensor.kind != TensorKind::kParameter || tensor.shape.size() != 3) continue;
    EXPECT_EQ(form.placement.kind, Placement::Kind::kPart) << tensor.name;
    EXPECT_EQ(form.placement.axis, 0) << tensor.name;
    ++weights;
  }
  EXPECT_EQ(weights, 2);
}

TEST(ChooseTeamBody, SlowLinksDivideNothing) {
  const Graph graph = testing::cnn_graph();
  const TeamProblem problem = problem_of(graph, {1, 1}, {{1e14, 1e14}, {2e12, 2e12}, 1e6, 1e-2});
  const TeamChoice choice = choice_of(problem);
  EXPECT_EQ(print_team_body(graph, choice.body, 1, Precision::kFp32).find("all-"),
            std::string::npos);
  for (const TeamOp& op : choice.body.ops) EXPECT_EQ(op.split, kNone);
}

TEST(ChooseTeamBody, UnequalMembersHaveWholeHeadsOfBandsInOneProduct) {
  testing::TransformerSize size = {1, 256, 768, 12, 12, 3072, 50257};
  const Graph graph = testing::gpt_graph(size);
  const TeamProblem problem =
      problem_of(graph, {5, 3}, {{5e13, 3e13}, {2e12, 1.2e12}, 3e11, 5e-6}, 4);
  const TeamBody body = choice_of(problem).body;
  const std::string text = print_team_body(graph, body, 4, Precision::kFp32);
  // Eight of twelve heads; columns as five to three.
  EXPECT_NE(text.find("d0 2/3 + 1/3\nd1 5/8 + 3/8\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  h0_qkv0: columns in 768+768+768 as d0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  h0_att: heads as d0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  h0_up0: columns as d1\n"), std::string::npos) << text;
}

/// Makes a graph of products (two of them may have one weight), additions, activations and
/// softmaxes in random order.
class RandomGraph {
 public:
  explicit RandomGraph(std::uint64_t seed) : rng_(seed) {}

  Graph make(int operators) {
    text_ =
        "graph random\ninput x0 fp32[n,4,8]\n"
        "parameter shared fp32[8,8]\n";
    add_line("first: x1 = MatMul-13(x0, shared) -> fp32[n,4,8]");
    deep_ = {"x1"};
    for (int i = 2; i <= operators; ++i) add(i);
    // The loss reads what nothing else does, and something else.
    add_line(fmt::format("last: all = Mul-14({}, {}) -> fp32[n,4,8]", deep_.back(), any()));
    add_line("loss: l = ReduceMean-13(all) keepdims=0 -> fp32[]");
    return testing::derived(text_ + "loss l\n");
  }

 private:
  void add_line(const std::string& line) { text_ += line + "\n"; }
  const std::string& any() { return deep_[rng_.below(deep_.size())]; }

  void add(int i) {
    const std::string out = fmt::format("x{}", i), in = deep_.back();
    switch (rng_.below(6)) {
      case 0:
        add_line(fmt::format("parameter w{0} fp32[8,8]", i));
        add_line(fmt::format("o{0}: {1} = MatMul-13({2}, w{0}) -> fp32[n,4,8]", i, out, in));
        break;
      case 1:
        add_line(fmt::format("o{0}: {1} = MatMul-13({2}, shared) -> fp32[n,4,8]", i, out, in));
        break;
      case 2:
        add_line(fmt::format("o{0}: {1} = Add-14({2}, {3}) -> fp32[n,4,8]", i, out, in, any()));
        break;
      case 3:
        add_line(fmt::format("o{0}: {1} = Relu-14({2}) -> fp32[n,4,8]", i, out, in));
        break;
      case 4:
        add_line(fmt::format("parameter b{0} fp32[8]", i));
        add_line(fmt::format("o{0}: {1} = Add-14({2}, b{0}) -> fp32[n,4,8]", i, out, in));
        break;
      default:
        add_line(fmt::format("o{0}: {1} = Softmax-13({2}) axis=-1 -> fp32[n,4,8]", i, out, in));
        break;
    }
    deep_.push_back(out);
  }

  Rng rng_;
  std::string text_;
  std::vector<std::string> deep_;
};

/// Counts up through all combinations of numbers below `limits`; false: there is none left.
bool next_combination(std::vector<int>& numbers, const std::vector<int>& limits) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (++numbers[i] < limits[i]) return true;
    numbers[i] = 0;
  }
  return false;
}

/// Returns the tensors that may begin in several forms, and that several operators read.
std::vector<std::size_t> open_beginnings(const Graph& graph, const TeamSpace& space) {
  std::vector<std::size_t> open;
  for (std::size_t id = 0; id < space.tensors.size(); ++id) {
    const bool shared = graph.tensors[id].consumers.size() > 1;
    if (shared && space.tensors[id].beginnings.size() > 1) open.push_back(id);
  }
  return open;
}

/// Returns how many bodies there are: options of operators, beginnings of tensors.
double combinations(const Graph& graph, const TeamSpace& space) {
  double count = 1;
  for (const auto& options : space.options) count *= static_cast<double>(options.size());
  for (const std::size_t id : open_beginnings(graph, space)) {
    count *= static_cast<double>(space.tensors[id].beginnings.size());
  }
  return count;
}

/// Returns the least seconds over all options of operators and all beginnings of tensors. Bodies
/// tell what they take.
double least_of_all(const TeamProblem& problem, const TeamSpace& space, std::int64_t& bodies) {
  std::vector<int> limits;
  for (const auto& options : space.options) limits.push_back(static_cast<int>(options.size()));
  const std::vector<std::size_t> begun = open_beginnings(problem.graph, space);
  for (const std::size_t id : begun) {
    limits.push_back(static_cast<int>(space.tensors[id].beginnings.size()));
  }
  double least = std::numeric_limits<double>::infinity();
  std::vector<int> numbers(limits.size(), 0), beginnings(space.tensors.size(), kNone);
  do {
    const auto end_of_options = numbers.begin() + static_cast<std::ptrdiff_t>(space.options.size());
    for (std::size_t i = 0; i < begun.size(); ++i) {
      beginnings[begun[i]] =
          space.tensors[begun[i]]
              .beginnings[static_cast<std::size_t>(end_of_options[static_cast<std::ptrdiff_t>(i)])];
    }
    const std::optional<TeamBody> body =
        team_body(problem, space, {numbers.begin(), end_of_options}, beginnings);
    if (!body) continue;
    ++bodies;
    least = std::min(least, team_seconds(problem, *body).per_micro_batch(problem.micro_batches));
  } while (next_combination(numbers, limits));
  return least;
}

TEST(ChooseTeamBody, IsAsGoodAsTheBestOfAllCombinations) {
  std::int64_t bodies = 0;
  int graphs = 0, divided = 0, shared = 0, dropped = 0;
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    const Graph graph = RandomGraph(seed).make(seed % 2 == 0 ? 2 : 3);
    for (const double link : {1e9, 1e11}) {
      const Parts parts = seed % 4 < 2 ? Parts{1, 1} : Parts{5, 3};
      const TeamProblem problem =
          problem_of(graph, parts, {{5e9, 3e9}, {5e9, 3e9}, link, 1e-8}, 2, 4);
      const TeamSpace space = team_space(problem);
      if (combinations(graph, space) > 30'000) continue;  // the test is to be quick
      const TeamChoice choice = choice_of(problem);
      EXPECT_TRUE(choice.exact);
      const double least = least_of_all(problem, space, bodies);
      EXPECT_NEAR(choice.seconds, least, 1e-9 * least)
          << "seed " << seed << ", link " << link << "\n"
          << print_graph(graph) << print_team_body(graph, choice.body, 2, Precision::kFp32);
      const Result<TeamChoice> quick = choose_team_body(problem, 1);
      ASSERT_TRUE(quick.ok());
      EXPECT_NEAR(quick->seconds, least, 1e-9 * least) << "what is dropped is hopeless";
      dropped += !quick->exact;
      ++graphs;
      shared += !open_beginnings(graph, space).empty();
      divided +=
          std::ranges::any_of(choice.body.ops, [](const TeamOp& op) { return op.split != kNone; });
    }
  }
  fmt::print(
      "{} choices, {} of them divided, {} with a parameter of several operators; {} bodies\n",
      graphs, divided, shared, bodies);
  EXPECT_GT(divided, graphs / 3);
  EXPECT_GT(shared, 0);
  EXPECT_GT(dropped, graphs / 2);
}

/// Returns the least seconds over all ways to give each needed form another needed one, or the
/// root, that it is made of.
double least_tree(const TensorForms& tensor, const std::vector<int>& forms) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<int> from(forms.size() - 1, 0);
  const std::vector<int> limits(from.size(), static_cast<int>(forms.size()));
  do {
    double seconds = 0;
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::size_t at = i + 1;  // follows it to the root, unless it goes round in a circle
      for (std::size_t n = 0; n < forms.size() && at != 0; ++n) {
        at = static_cast<std::size_t>(from[at - 1]);
      }
      if (at != 0) seconds = std::numeric_limits<double>::infinity();
      seconds += tensor.seconds[static_cast<std::size_t>(forms[static_cast<std::size_t>(from[i])])]
                               [static_cast<std::size_t>(forms[i + 1])];
    }
    least = std::min(least, seconds);
  } while (next_combination(from, limits));
  return least;
}

TEST(ChooseTeamBody, FormsAreMadeOfOneAnotherAsCheaplyAsCanBe) {
  Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    TensorForms tensor;
    constexpr int kForms = 6;
    for (int from = 0; from < kForms; ++from) {
      std::vector<double>& row = tensor.seconds.emplace_back();
      for (int to = 0; to < kForms; ++to) row.push_back(rng.below(4) == 0 ? 0 : rng.uniform());
    }
    const auto root = static_cast<int>(rng.below(kForms));
    std::vector<int> forms = {root};
    FormSet needed = 0;
    for (int form = 0; form < kForms; ++form) {
      if (form == root || rng.below(4) == 0 || forms.size() == 5) continue;
      forms.push_back(form);
      needed |= form_bit(form);
    }
    const FormTree tree = cheapest_tree(tensor, root, needed);
    EXPECT_EQ(tree.made.size(), forms.size() - 1);
    if (forms.size() == 1) continue;
    EXPECT_NEAR(tree.seconds, least_tree(tensor, forms), 1e-12);
  }
}

// y is cheap, and x is cheaper from y than from the root: one more form makes less.
TEST(TensorStates, NoFormMakesAnotherForLessThanNothing) {
  TensorForms forms;
  forms.placements.resize(3);
  forms.seconds = {{0, 10, 3}, {10, 0, 10}, {3, 3, 0}};
  forms.made_here = true;
  TensorStates states(forms);
  const std::uint16_t x = states.number(0, form_bit(1)), y = states.number(0, form_bit(2));
  EXPECT_EQ(states.seconds(x), 10);
  EXPECT_EQ(states.seconds(states.after(x, form_bit(2))), 6);
  EXPECT_EQ(states.seconds_to_have(x, y), 0);
  EXPECT_EQ(states.seconds_to_have(y, x), 3);
}

TEST(TeamSeconds, AreTheSameWhereAlikeOperatorsAreTimedOnce) {
  const Graph graph = testing::gpt_graph(kLayers);
  TeamProblem problem = problem_of(graph, {1, 1}, kSpeeds, kBatch);
  const TeamBody body = choice_of(problem).body;
  const TeamSeconds each = team_seconds(problem, body);
  problem.alike = StageContents(graph).of(problem.ops).signatures;
  const TeamSeconds once = team_seconds(problem, body);
  EXPECT_NEAR(once.compute, each.compute, 1e-12 * each.compute);
  EXPECT_NEAR(once.exchange, each.exchange, 1e-12 * each.exchange);
  EXPECT_EQ(once.step_end, each.step_end);
}

TEST(ChooseTeamBody, WithFewStatesItSaysThatNothingIsProven) {
  const Graph graph = testing::gpt_graph(kLayers);
  const TeamProblem problem = problem_of(graph, {1, 1}, kSpeeds, kBatch);
  const Result<TeamChoice> few = choose_team_body(problem, 8);
  ASSERT_TRUE(few.ok());
  EXPECT_FALSE(few->exact);
  EXPECT_GE(few->seconds, choice_of(problem).seconds * (1 - 1e-9));
  EXPECT_NEAR(team_seconds(problem, few->body).per_micro_batch(1), few->seconds,
              1e-9 * few->seconds);
}

TEST(ChooseTeamBody, ATeamOfSeveralStagesTakesItsOwnOperatorsAlone) {
  const Graph graph = testing::gpt_graph(kLayers);
  TeamProblem problem = problem_of(graph, {1, 1}, kSpeeds, kBatch);
  const OpId first = graph.find_op("h1_ln1"), end = graph.find_op("h2_ln1");
  problem.ops.resize(static_cast<std::size_t>(end - first));
  std::iota(problem.ops.begin(), problem.ops.end(), first);
  const TeamBody body = choice_of(problem).body;
  EXPECT_EQ(body.ops.size(), problem.ops.size());
  for (const TeamForm& form : body.forms) {
    if (graph.tensor(form.tensor).name == "h0_x2" && form.from == kNone) {
      EXPECT_EQ(form.placement, TeamPlacement());  // it comes as a copy
    }
  }
}

TEST(ChooseTeamBody, RefusesATeamOfOne) {
  const Graph graph = testing::cnn_graph();
  const auto choice = choose_team_body(problem_of(graph, {1}, {{1e9}, {1e9}, 1e9, 0}));
  EXPECT_EQ(choice.status().code(), StatusCode::kUsage);
}

}  // namespace
}  // namespace agpcs
