// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/problems/problem_generator.h"

#include "ir/base/check.h"
#include "ir/graph/op_table.h"
#include "ir/plan/choices.h"
#include "planner/learn/problems/generated_clusters.h"
#include "planner/learn/problems/generated_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

constexpr std::int64_t kBatches[] = {8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};

/// The bytes that training a graph takes, roughly.
struct Need {
  std::int64_t resident = 0;    ///< parameters, gradients, optimizer state
  std::int64_t per_sample = 0;  ///< kept between the passes
  std::int64_t largest = 0;     ///< resident bytes of the largest parameter
};

Need need_of(const Graph& graph, const Training& training) {
  Need need;
  const std::int64_t slots = variant_of(training.optimizer).state_tensors;
  for (const TensorId id : graph.parameters()) {
    const std::int64_t bytes = elements_at(graph.tensor(id).shape, 1) * 4 * (2 + slots);
    need.resident += bytes;
    need.largest = std::max(need.largest, bytes);
  }
  std::vector<bool> counted(graph.tensors.size());
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    const Kept kept = kept_for_backward(graph, op, 1, training.precision);
    need.per_sample += kept.extra_bytes;
    for (const TensorId id : kept.tensors) {
      if (counted[static_cast<std::size_t>(id)]) continue;
      counted[static_cast<std::size_t>(id)] = true;
      const Tensor& tensor = graph.tensor(id);
      need.per_sample += elements_at(tensor.shape, 1) *
                         static_cast<std::int64_t>(element_bytes(tensor.type, training.precision));
    }
  }
  return need;
}

struct Room {
  std::int64_t least = 0, most = 0;  ///< bytes of a device
  std::int64_t total = 0;
};

Room room_of(const Cluster& cluster) {
  Room room;
  for (DeviceId device = 0; device < cluster.device_count(); ++device) {
    const std::int64_t bytes = cluster.kind_of(device).memory_bytes;
    room.least = device == 0 ? bytes : std::min(room.least, bytes);
    room.most = std::max(room.most, bytes);
    room.total += bytes;
  }
  return room;
}

/// Returns whether a pipeline over the cluster has room for the model.
bool has_room(const Room& room, const Need& need) {
  return need.resident <= room.total / 2 && need.largest <= room.least / 2;
}

/// Returns the least of a set of batches whose activations, spread over all devices, take more than
/// a random part of the memory. It has at most a random number of samples, and at least one for
/// each device.
std::int64_t some_batch(Rng& rng, const Room& room, const Need& need, int devices) {
  constexpr std::int64_t kPercent[] = {2, 5, 10, 20, 40, 80, 150, 300};
  const std::int64_t bytes = room.least / 100 * kPercent[rng.below(std::size(kPercent))];
  const std::int64_t wanted = bytes / std::max<std::int64_t>(1, need.per_sample) * devices;
  constexpr std::int64_t kMost[] = {128, 256, 512, 1024, 2048, 4096};
  const std::int64_t most = kMost[rng.below(std::size(kMost))];
  for (const std::int64_t batch : kBatches) {
    if ((batch >= wanted || batch == most) && batch >= devices) return batch;
  }
  return 4096;
}

/// Takes away a part of the devices' memory in one of four problems, so that the model does not fit
/// one device, or hardly does.
void tighten(Rng& rng, Cluster& cluster, const Need& need) {
  const bool tight = rng.below(4) == 0;
  constexpr std::int64_t kPercent[] = {60, 80, 110, 150, 200};
  const std::int64_t percent = kPercent[rng.below(std::size(kPercent))];
  const Room room = room_of(cluster);
  const std::int64_t least = std::max({need.resident / percent * 100, need.largest * 2,
                                       need.per_sample * 2, std::int64_t{64} << 20});
  if (!tight || least >= room.least) return;
  const double part = static_cast<double>(least) / static_cast<double>(room.least);
  if (static_cast<double>(room.total) * part < 2.0 * static_cast<double>(need.resident)) return;
  for (DeviceKind& kind : cluster.kinds) {
    kind.memory_bytes = static_cast<std::int64_t>(static_cast<double>(kind.memory_bytes) * part);
  }
}

Training some_training(Rng& rng) {
  Training training;
  training.precision = rng.below(2) == 0 ? Precision::kFp32 : Precision::kFp16;
  training.optimizer.kind = rng.below(2) == 0 ? OptimizerKind::kSgd : OptimizerKind::kAdam;
  if (training.optimizer.kind == OptimizerKind::kSgd) training.optimizer.momentum = 0.9;
  return training;
}

/// Chooses batch and memory for a model on a cluster.
void fit(GeneratedProblem& problem, const Need& need, Rng rng) {
  tighten(rng, problem.cluster, need);
  problem.training.batch =
      some_batch(rng, room_of(problem.cluster), need, problem.cluster.device_count());
}

/// Leaves the cluster little more memory than a pipeline over all of it needs, so that most
/// parameters have one place only. Every device keeps room for the largest.
void press(Rng& rng, Cluster& cluster, const Need& need) {
  constexpr std::int64_t kPercent[] = {125, 150, 180, 220, 300};
  const std::int64_t percent = kPercent[rng.below(std::size(kPercent))];
  constexpr std::int64_t kKept[] = {2, 4, 8};  // samples at a time
  const std::int64_t kept = kKept[rng.below(std::size(kKept))];
  const Room room = room_of(cluster);
  const auto wanted = static_cast<double>((need.resident + need.per_sample * kept) / 100 * percent);
  const auto least = static_cast<double>(
      std::max(need.largest + need.largest / 2 + need.per_sample, std::int64_t{64} << 20));
  const double part =
      std::max(wanted / static_cast<double>(room.total), least / static_cast<double>(room.least));
  if (part >= 1) return;
  for (DeviceKind& kind : cluster.kinds) {
    kind.memory_bytes = static_cast<std::int64_t>(static_cast<double>(kind.memory_bytes) * part);
  }
}

/// Chooses memory and batch of a tight problem.
void fit_tightly(GeneratedProblem& problem, const Need& need, Rng rng) {
  press(rng, problem.cluster, need);
  constexpr std::int64_t kTightBatches[] = {32, 48, 64, 96, 128};
  problem.training.batch = kTightBatches[rng.below(std::size(kTightBatches))];
}

bool is_tight(Purpose purpose) {
  return purpose == Purpose::kTightTraining || purpose == Purpose::kRoom;
}

GeneratedProblem generate(std::string name, const ModelFamily& family, const ClusterShape& shape,
                          const Rng& rng) {
  GeneratedProblem problem;
  problem.name = std::move(name);
  problem.cluster = shape.make(problem.name, rng.fork("cluster"));
  Rng draws = rng.fork("training");
  problem.training = some_training(draws);
  const Room room = room_of(problem.cluster);
  Need need;
  for (int smaller = 0; smaller < 6; ++smaller) {
    problem.graph = family.make(problem.name, rng.fork("model"), smaller);
    need = need_of(problem.graph, problem.training);
    if (has_room(room, need)) break;
  }
  if (problem.graph.tensor(problem.graph.outputs.front()).shape.size() != 2) {
    problem.training.loss.kind = LossKind::kMse;
  }
  if (is_tight(shape.purpose)) {
    fit_tightly(problem, need, draws);
  } else {
    fit(problem, need, draws);
  }
  return problem;
}

const ClusterShape& training_shape(Rng rng) {
  std::vector<const ClusterShape*> shapes;
  for (const ClusterShape& shape : cluster_shapes()) {
    if (shape.purpose == Purpose::kTraining) shapes.push_back(&shape);
  }
  // Clusters of unlike devices are what the policy is for, so they are drawn twice as often.
  shapes.push_back(find_cluster_shape("mixed"));
  shapes.push_back(find_cluster_shape("uneven"));
  return *shapes[rng.below(shapes.size())];
}

const ModelFamily& training_family(int index) {
  std::vector<const ModelFamily*> families;
  for (const ModelFamily& family : model_families()) {
    if (family.purpose == Purpose::kTraining) families.push_back(&family);
  }
  return *families[static_cast<std::size_t>(index) % families.size()];
}

Rng training_rng(std::uint64_t seed, int index) {
  return Rng(seed).fork("training problems").fork(std::to_string(index));
}

}  // namespace

GeneratedProblem generate_problem(std::uint64_t seed, int index) {
  const Rng rng = training_rng(seed, index);
  const ModelFamily& family = training_family(index);
  const ClusterShape& shape = training_shape(rng.fork("shape"));
  return generate(fmt::format("training-{}-{}-{}-{}", seed, index, family.name, shape.name), family,
                  shape, rng);
}

GeneratedProblem generate_tight_problem(std::uint64_t seed, int index) {
  const Rng rng = Rng(seed).fork("tight training problems").fork(std::to_string(index));
  const auto families = entries_for(model_families(), Purpose::kTightTraining);
  const auto shapes = entries_for(cluster_shapes(), Purpose::kTightTraining);
  const auto i = static_cast<std::size_t>(index);
  const ModelFamily& family = families[i % families.size()];
  const ClusterShape& shape = shapes[(i + i / families.size()) % shapes.size()];
  return generate(fmt::format("tight-{}-{}-{}-{}", seed, index, family.name, shape.name), family,
                  shape, rng);
}

GeneratedProblem generate_problem(const Graph& graph, const Loss& loss, std::uint64_t seed,
                                  int index) {
  const Rng rng = training_rng(seed, index);
  const ClusterShape& shape = training_shape(rng.fork("shape"));
  GeneratedProblem problem;
  problem.name = fmt::format("training-{}-{}-{}-{}", seed, index, graph.name, shape.name);
  problem.graph = graph;
  problem.cluster = shape.make(problem.name, rng.fork("cluster"));
  Rng draws = rng.fork("training");
  problem.training = some_training(draws);
  problem.training.loss = loss;
  fit(problem, need_of(graph, problem.training), draws);
  return problem;
}

GeneratedProblem generate_problem(const ProblemSpec& spec) {
  const ModelFamily* const family = find_model_family(spec.family);
  const ClusterShape* const shape = find_cluster_shape(spec.cluster);
  AGPCS_CHECK(family != nullptr, "no model family '{}'", spec.family);
  AGPCS_CHECK(shape != nullptr, "no cluster shape '{}'", spec.cluster);
  return generate(std::string(spec.name), *family, *shape,
                  Rng(spec.seed).fork("problem").fork(spec.name));
}

}  // namespace agpcs
