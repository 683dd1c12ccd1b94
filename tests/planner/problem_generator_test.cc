// SPDX-License-Identifier: Apache-2.0
#include "planner/problem_generator.h"

#include "ir/strategy.h"
#include "planner/generated_clusters.h"
#include "planner/generated_models.h"
#include "planner/problem.h"
#include "planner/seeder.h"
#include "tests/bench/unseen_problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace agpcs {
namespace {

constexpr int kProblems = 140;  // of training, that a test looks at

/// All that the problem says, as text.
std::string text_of(const GeneratedProblem& problem) {
  return problem.name + "\n" + print_graph(problem.graph) + print_cluster(problem.cluster) +
         std::to_string(problem.training.batch) + problem.training.precision +
         problem.training.optimizer.kind + problem.training.loss.kind;
}

bool has_held_out_device(const Cluster& cluster) {
  return std::any_of(cluster.kinds.begin(), cluster.kinds.end(),
                     [](const DeviceKind& kind) { return is_held_out_device(kind.name); });
}

void expect_sound(const GeneratedProblem& problem) {
  SCOPED_TRACE(problem.name);
  EXPECT_TRUE(verify_graph(problem.graph).ok()) << verify_graph(problem.graph).message();
  EXPECT_TRUE(verify_cluster(problem.cluster).ok());
  EXPECT_GE(problem.graph.ops.size(), 20u);
  EXPECT_LE(problem.graph.ops.size(), 400u);
  EXPECT_GE(problem.cluster.device_count(), 2);
  EXPECT_LE(problem.cluster.device_count(), 32);
  EXPECT_GE(problem.training.batch, 8);
  EXPECT_LE(problem.training.batch, 4096);
}

TEST(ProblemGenerator, MakesSoundProblemsOfTheSizesThatItPromises) {
  for (int index = 0; index < kProblems; ++index) expect_sound(generate_problem(3, index));
  for (const ProblemSpec& spec : bench::kUnseenProblems) expect_sound(generate_problem(spec));
}

TEST(ProblemGenerator, MakesTheSameProblemOfTheSameSeedAndIndex) {
  EXPECT_EQ(text_of(generate_problem(1, 5)), text_of(generate_problem(1, 5)));
  EXPECT_NE(text_of(generate_problem(1, 5)), text_of(generate_problem(2, 5)));
  EXPECT_NE(text_of(generate_problem(1, 5)), text_of(generate_problem(1, 12)));
}

TEST(ProblemGenerator, PutsAGivenModelOnARandomCluster) {
  const GeneratedProblem model = generate_problem(1, 0);
  const GeneratedProblem first = generate_problem(model.graph, model.training.loss, 1, 0);
  const GeneratedProblem second = generate_problem(model.graph, model.training.loss, 1, 1);
  EXPECT_EQ(print_graph(first.graph), print_graph(model.graph));
  EXPECT_NE(print_cluster(first.cluster), print_cluster(second.cluster));
}

TEST(ProblemGenerator, MakesProblemsThatCanBePlannedFor) {
  for (int index = 0; index < 14; ++index) {
    GeneratedProblem made = generate_problem(11, index);
    SCOPED_TRACE(made.name);
    const auto problem = Problem::make(made.graph, made.cluster, made.training);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const Result<Strategy> plain = plain_data_parallelism(**problem);
    ASSERT_TRUE(plain.ok()) << plain.status().message();
    EXPECT_TRUE(
        verify_strategy(*plain, (*problem)->graph, (*problem)->cluster, (*problem)->training.batch)
            .ok());
  }
}

// What the policy never saw.

TEST(UnseenProblems, AreFortyDifferentOnesOfWhatIsHeldOut) {
  std::set<std::string> names, texts;
  for (const ProblemSpec& spec : bench::kUnseenProblems) {
    SCOPED_TRACE(spec.name);
    ASSERT_NE(find_model_family(spec.family), nullptr);
    ASSERT_NE(find_cluster_shape(spec.cluster), nullptr);
    EXPECT_TRUE(find_model_family(spec.family)->held_out);
    EXPECT_TRUE(find_cluster_shape(spec.cluster)->held_out);
    const GeneratedProblem problem = generate_problem(spec);
    EXPECT_TRUE(has_held_out_device(problem.cluster));
    names.insert(problem.name);
    texts.insert(text_of(problem));
  }
  EXPECT_EQ(names.size(), 40u);
  EXPECT_EQ(texts.size(), 40u);
}

TEST(UnseenProblems, AreOfNoFamilyShapeOrDeviceThatTrainingDraws) {
  std::set<std::string> families, shapes;
  for (int index = 0; index < kProblems; ++index) {
    const GeneratedProblem problem = generate_problem(5, index);
    EXPECT_FALSE(has_held_out_device(problem.cluster)) << problem.name;
    for (const ModelFamily& family : model_families()) {
      if (problem.name.find("-" + std::string(family.name) + "-") == std::string::npos) continue;
      families.insert(std::string(family.name));
    }
    shapes.insert(problem.name.substr(problem.name.rfind('-') + 1));
  }
  for (const ModelFamily& family : model_families()) {
    EXPECT_EQ(families.contains(std::string(family.name)), !family.held_out) << family.name;
  }
  for (const ClusterShape& shape : cluster_shapes()) {
    EXPECT_EQ(shapes.contains(std::string(shape.name)), !shape.held_out) << shape.name;
  }
}

TEST(UnseenProblems, AreOnNoClusterThatAGivenModelIsTrainedOn) {
  const GeneratedProblem model = generate_problem(1, 0);
  for (int index = 0; index < kProblems; ++index) {
    const GeneratedProblem problem = generate_problem(model.graph, model.training.loss, 5, index);
    EXPECT_FALSE(has_held_out_device(problem.cluster)) << problem.name;
    EXPECT_NE(problem.cluster.topology, "links") << problem.name;
  }
}

}  // namespace
}  // namespace agpcs
