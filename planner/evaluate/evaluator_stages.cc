// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluator_stages.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/weight_pass.h"
#include "planner/evaluate/step/teams.h"
#include "planner/problem/hash.h"
#include "planner/problem/shares.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

/// About the most bytes that are remembered; beyond, all are forgotten.
constexpr std::size_t kMostStageBytes = std::size_t{1} << 28;

bool equal(const std::vector<StageParts::Crossing>& a, const std::vector<StageParts::Crossing>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.tensor == y.tensor && x.gradient == y.gradient && x.local == y.local;
  });
}

/// Returns the bytes of a tensor of a cut: those of a row, or of the whole tensor.
CutBytes bytes_of(const Tensor& tensor, Precision precision) {
  const CutTensor cut = cut_tensor(tensor, precision);
  const std::int64_t size = cut.elements_per_row() * static_cast<std::int64_t>(size_of(cut.type));
  return cut.batched ? CutBytes{true, size, false, 0} : CutBytes{false, 0, true, size};
}

void add(const CutBytes& own, CutBytes& bytes) {
  bytes.rows |= own.rows;
  bytes.row_bytes += own.row_bytes;
  bytes.whole |= own.whole;
  bytes.whole_bytes += own.whole_bytes;
}

}  // namespace

std::size_t ReplicaKey::hash() const {
  const std::uint64_t how = static_cast<std::uint64_t>(recompute.segments) << 32 |
                            static_cast<std::uint64_t>(recompute.kept) << 2 |
                            static_cast<std::uint64_t>(recompute.again) << 1 |
                            static_cast<std::uint64_t>(recompute.in_host);
  const std::uint64_t of = static_cast<std::uint64_t>(samples) << 1 | (parted ? 1 : 0);
  return mix(mix(of, static_cast<std::uint64_t>(kind)), how);
}

int StageInfo::index_of(OpId first) const {
  const auto found = std::lower_bound(firsts.begin(), firsts.end(), first, std::greater<>());
  return static_cast<int>(found - firsts.begin());
}

StageInfo::StageInfo() = default;
StageInfo::~StageInfo() = default;

std::vector<std::size_t> packed_counts(const std::vector<StageInfo::Parameter>& parameters,
                                       const std::vector<std::int64_t>& bytes,
                                       std::int64_t bucket_bytes) {
  std::vector<std::size_t> counts;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool full = i == 0 || sum == 0 || sum + bytes[i] > bucket_bytes ||
                      parameters[i].gradient.held != parameters[i - 1].gradient.held;
    if (full) {
      counts.push_back(0);
      sum = 0;
    }
    ++counts.back();
    sum += bytes[i];
  }
  return counts;
}

StageTable::StageTable(const Problem& problem)
    : problem_(problem),
      memory_model_(problem.graph, problem.training),
      segments_(problem.graph),
      parameter_of_(problem.graph.tensors.size(), -1),
      first_read_(problem.graph.ops.size() + 1),
      times_(problem) {
  std::vector<OpId> ops(problem.graph.ops.size());
  std::iota(ops.begin(), ops.end(), 0);
  for (const TensorId id : problem.graph.parameters()) {
    const Tensor& tensor = problem.graph.tensor(id);
    if (!tensor.needs_gradient) continue;
    StageInfo::Parameter parameter;
    parameter.id = id;
    parameter.last = tensor.consumers.back();
    parameter.first = tensor.consumers.front();
    parameter.read = readers_of(problem.graph, id, ops).back();
    parameter.gradient = gradient_of(problem, id);
    parameter_of_[at(id)] = static_cast<int>(parameters_.size());
    if (tensor.consumers.size() > 1) tied_.push_back(parameter_of_[at(id)]);
    parameters_.push_back(parameter);
    ++first_read_[at(parameter.first) + 1];
  }
  AGPCS_CHECK(std::is_sorted(parameters_.begin(), parameters_.end(),
                             [](const auto& a, const auto& b) { return a.first < b.first; }),
              "parameters of graph '{}' are not by first use", problem.graph.name);
  std::partial_sum(first_read_.begin(), first_read_.end(), first_read_.begin());
  list_made();
  for (OpId op = 0; op < static_cast<OpId>(problem.graph.ops.size()); ++op) {
    weight_parts_.push_back(weight_part(problem.graph, op));
  }
}

void StageTable::list_made() {
  const Graph& graph = problem_.graph;
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    for (const TensorId id : graph.op(op).outputs) {
      if (id == kNone || graph.tensor(id).consumers.empty()) continue;
      const Tensor& tensor = graph.tensor(id);
      const std::size_t first = readers_.size();
      readers_.insert(readers_.end(), tensor.consumers.begin(), tensor.consumers.end());
      made_.push_back({id, op, first, readers_.size(), tensor.needs_gradient,
                       bytes_of(tensor, problem_.training.precision)});
    }
  }
}

/// Calls `f(from, to, made)` for each tensor that stage `to` reads and stage `from` makes, in
/// operator order and ascending `to`.
template <typename F>
void StageTable::for_each_crossing(const std::vector<int>& stage_of, F f) const {
  for (const Made& made : made_) {
    const int from = stage_of[at(made.producer)];
    for (int last = kNone;;) {
      int next = kNone;
      for (std::size_t i = made.reader; i < made.reader_end; ++i) {
        const int reader = stage_of[at(readers_[i])];
        if (reader != from && reader > last && (next == kNone || reader < next)) next = reader;
      }
      if (next == kNone) break;
      f(from, next, made);
      last = next;
    }
  }
}

const PartitionInfo& StageTable::partition(const std::vector<int>& stage_of, std::size_t stages,
                                           int round) {
  forget_if_many();
  const auto is_it = [&](const PartitionInfo& known) {
    return known.round == round && known.stage_of == stage_of;
  };
  if (last_ != nullptr && is_it(*last_)) return *last_;
  const std::uint64_t hash = hash_of(stage_of);
  const auto [begin, end] = partitions_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (is_it(*it->second)) return *(last_ = it->second.get());
  }
  const auto added = partitions_.emplace(hash, make_partition(stage_of, stages, round));
  remembered_ += stage_of.size() * sizeof(int);
  return *(last_ = added->second.get());
}

/// Runs between evaluations, so that nothing refers to what it forgets.
void StageTable::forget_if_many() {
  if (remembered_ < kMostStageBytes) return;
  last_ = nullptr;
  partitions_.clear();
  stages_.clear();
  remembered_ = 0;
}

std::unique_ptr<PartitionInfo> StageTable::make_partition(const std::vector<int>& stage_of,
                                                          std::size_t stages, int round) {
  auto partition = std::make_unique<PartitionInfo>();
  partition->stage_of = stage_of;
  partition->round = round;
  std::vector<StageParts> parts(stages);
  std::vector<std::vector<OpId>> ops = ops_of_stages(stage_of, static_cast<int>(stages));
  for (std::size_t i = 0; i < stages; ++i) parts[i].ops = std::move(ops[i]);
  std::map<std::pair<int, int>, CutInfo> cuts;
  for_each_crossing(stage_of, [&](int from, int to, const Made& made) {
    const bool local = (to - from) % round == 0;
    parts[at(from)].sent.push_back({made.id, made.needs_gradient, local});
    parts[at(to)].received.push_back({made.id, made.needs_gradient, local});
    CutInfo& cut = cuts[{from, to}];
    cut = {from, to, cut.forward, cut.back, local};
    add(made.bytes, cut.forward);
    if (made.needs_gradient) add(made.bytes, cut.back);
  });
  for (const auto& [ends, cut] : cuts) partition->cuts.push_back(cut);
  for (StageParts& part : parts) partition->stages.push_back(intern(std::move(part)));
  return partition;
}

StageInfo* StageTable::intern(StageParts parts) {
  const std::uint64_t hash = mix(hash_of(parts.ops), parts.received.size() + parts.sent.size());
  const auto [begin, end] = stages_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const StageParts& known = it->second->parts;
    if (known.ops == parts.ops && equal(known.received, parts.received) &&
        equal(known.sent, parts.sent)) {
      return it->second.get();
    }
  }
  auto stage = std::make_unique<StageInfo>();
  stage->parts = std::move(parts);
  add_parameters(*stage);
  remembered_ += stage->parts.ops.size() * sizeof(OpId) +
                 stage->parameters.size() * sizeof(StageInfo::Parameter);
  return stages_.emplace(hash, std::move(stage))->second.get();
}

OpId StageTable::read_in(const StageInfo& stage, const StageInfo::Parameter& parameter) const {
  const std::vector<OpId>& ops = stage.parts.ops;
  if (std::binary_search(ops.begin(), ops.end(), parameter.read)) return parameter.read;
  return readers_of(problem_.graph, parameter.id, ops).back();
}

/// Adds the parameters, the first completed gradient first, as `group_gradients` orders them.
void StageTable::add_parameters(StageInfo& stage) const {
  const std::vector<OpId>& ops = stage.parts.ops;
  add_shared(stage);
  const auto is_shared = [&](const StageInfo::Parameter& parameter) {
    return std::any_of(stage.shared.begin(), stage.shared.end(),
                       [&](const auto& shared) { return shared.id == parameter.id; });
  };
  for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
    const std::size_t first = first_read_[at(*op)], end = first_read_[at(*op) + 1];
    if (first == end) continue;
    stage.firsts.push_back(*op);
    for (std::size_t i = first; i < end; ++i) {
      if (is_shared(parameters_[i])) continue;
      stage.parameters.push_back(parameters_[i]);
      stage.held_bytes += parameters_[i].gradient.held_bytes;
      stage.rounded_bytes += parameters_[i].gradient.rounded_bytes;
      stage.travelling_bytes += parameters_[i].gradient.travelling_bytes;
    }
  }
  for (const StageInfo::Parameter& shared : stage.shared) stage.firsts.push_back(shared.first);
  std::sort(stage.firsts.begin(), stage.firsts.end(), std::greater<>());
  stage.firsts.erase(std::unique(stage.firsts.begin(), stage.firsts.end()), stage.firsts.end());
}

/// Adds the parameters that operators of this stage and of other stages read.
void StageTable::add_shared(StageInfo& stage) const {
  const std::vector<OpId>& ops = stage.parts.ops;
  for (const int index : tied_) {
    StageInfo::Parameter parameter = parameters_[at(index)];
    const std::vector<OpId>& readers = problem_.graph.tensor(parameter.id).consumers;
    const auto is_inside = [&](OpId op) { return std::binary_search(ops.begin(), ops.end(), op); };
    const auto inside = std::find_if(readers.begin(), readers.end(), is_inside);
    if (inside == readers.end() || std::all_of(readers.begin(), readers.end(), is_inside)) continue;
    parameter.first = *inside;
    stage.shared.push_back(parameter);
    stage.held_bytes += parameter.gradient.held_bytes;
    stage.shared_rounded_bytes += parameter.gradient.rounded_bytes;
  }
  std::stable_sort(stage.shared.begin(), stage.shared.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
}

const SharedInfo::Buckets& StageTable::shared(const PartitionInfo& partition,
                                              std::int64_t bucket_bytes) {
  const auto [entry, added] = partition.shared->packed.try_emplace(bucket_bytes);
  SharedInfo::Buckets& buckets = entry->second;
  if (!added || tied_.empty()) return buckets;
  // By stages and type, in the order in which the first of the stages completes their gradients.
  std::map<std::pair<std::vector<int>, DType>, std::vector<TensorId>> sets;
  for (std::size_t s = 0; s < partition.stages.size(); ++s) {
    for (const StageInfo::Parameter& parameter : partition.stages[s]->shared) {
      std::vector<int> stages = stages_reading(problem_.graph, partition.stage_of, parameter.id);
      if (stages.front() != static_cast<int>(s)) continue;
      sets[{std::move(stages), parameter.gradient.held}].push_back(parameter.id);
    }
  }
  for (const auto& [key, parameters] : sets) {
    const std::vector<int> others(key.first.begin() + 1, key.first.end());
    std::vector<TensorId> next;
    std::int64_t bytes = 0;
    for (const TensorId id : parameters) {
      const std::int64_t own = parameter(id).gradient.travelling_bytes;
      if (bucket_bytes > 0 && !next.empty() && bytes + own > bucket_bytes) {
        buckets.push_back(&shared_by(partition, key.first.front(), others, next));
        next.clear();
        bytes = 0;
      }
      next.push_back(id);
      bytes += own;
    }
    buckets.push_back(&shared_by(partition, key.first.front(), others, next));
  }
  return buckets;
}

const SharedParameters& StageTable::shared_by(const PartitionInfo& partition, int stage,
                                              const std::vector<int>& others,
                                              const std::vector<TensorId>& parameters) {
  for (const SharedParameters& known : partition.shared->known) {
    if (known.parameters == parameters && known.stages.front() == stage &&
        std::equal(known.stages.begin() + 1, known.stages.end(), others.begin(), others.end())) {
      return known;
    }
  }
  SharedParameters& result = partition.shared->known.emplace_back();
  result.stages = {stage};
  result.stages.insert(result.stages.end(), others.begin(), others.end());
  result.parameters = parameters;
  for (const TensorId id : parameters) {
    result.bytes += parameter(id).gradient.travelling_bytes;
    result.elements += parameter(id).gradient.elements;
  }
  for (const int s : result.stages) {
    const StageInfo& info = *partition.stages[at(s)];
    OpId first = std::numeric_limits<OpId>::max();
    for (const StageInfo::Parameter& of_stage : info.shared) {
      if (std::find(parameters.begin(), parameters.end(), of_stage.id) == parameters.end())
        continue;
      first = std::min(first, of_stage.first);
    }
    result.firsts.push_back(info.index_of(first));
  }
  remembered_ += sizeof(SharedParameters) + parameters.size() * sizeof(TensorId);
  return result;
}

StageInfo::Group StageTable::group(const StageInfo& stage, std::size_t first,
                                   std::size_t count) const {
  StageInfo::Group group;
  for (std::size_t i = first; i < first + count; ++i) {
    group.bytes += stage.parameters[i].gradient.travelling_bytes;
    group.elements += stage.parameters[i].gradient.elements;
  }
  group.tensors = static_cast<std::int64_t>(count);
  group.held = stage.parameters[first].gradient.held;
  group.first = stage.index_of(stage.parameters[first + count - 1].first);
  return group;
}

const StageInfo::Groups& StageTable::packed(StageInfo& stage, std::int64_t bucket_bytes) {
  const auto [entry, added] = stage.packed.try_emplace(bucket_bytes);
  StageInfo::Groups& groups = entry->second;
  if (!added) return groups;
  std::vector<std::int64_t> bytes;
  bytes.reserve(stage.parameters.size());
  for (const StageInfo::Parameter& one : stage.parameters) {
    bytes.push_back(one.gradient.travelling_bytes);
  }
  std::size_t first = 0;
  for (const std::size_t count : packed_counts(stage.parameters, bytes, bucket_bytes)) {
    groups.push_back(group(stage, first, count));
    first += count;
  }
  remembered_ += groups.size() * sizeof(StageInfo::Group);
  return groups;
}

const StageInfo::Groups& StageTable::filled(StageInfo& stage, std::int64_t bucket_bytes) {
  constexpr std::int64_t kPieces = 16;
  const std::int64_t small = std::max<std::int64_t>(1, stage.travelling_bytes / kPieces);
  return packed(stage, bucket_bytes > 0 ? bucket_bytes : small);
}

const StageInfo::Groups& StageTable::scheduled(StageInfo& stage, const StageSpec& spec, bool parted,
                                               const std::vector<CostLine>& lines,
                                               std::uint64_t number) {
  const StageSeconds* slowest = nullptr;
  ReplicaKey key, last;
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    const int kind = problem_.cluster.devices[at(spec.devices[i])].kind;
    const ReplicaKey now = {kind, spec.shares[i], spec.recompute, parted};
    if (now == last) continue;
    last = now;
    const StageSeconds& replica = seconds(stage, now);
    if (slowest != nullptr && replica.sum() <= slowest->sum()) continue;
    slowest = &replica;
    key = now;
  }
  const auto [entry, added] = stage.scheduled.try_emplace({key, number});
  StageInfo::Groups& groups = entry->second;
  if (!added) return groups;
  std::vector<ReadyGradient> gradients;
  gradients.reserve(stage.parameters.size());
  for (const StageInfo::Parameter& parameter : stage.parameters) {
    gradients.push_back({slowest->gradients[at(stage.index_of(parameter.first))],
                         parameter.gradient.travelling_bytes,
                         static_cast<int>(parameter.gradient.held)});
  }
  std::size_t first = 0;
  for (const int count : schedule_buckets(gradients, lines)) {
    groups.push_back(group(stage, first, at(count)));
    first += at(count);
  }
  remembered_ += groups.size() * sizeof(StageInfo::Group);
  return groups;
}

const std::vector<std::size_t>& StageTable::segment_ends(StageInfo& stage,
                                                         const Recomputation& recompute) {
  const auto [known, added] = stage.segment_ends.try_emplace(recompute);
  if (added) known->second = segments_.ends(stage.parts.ops, recompute);
  return known->second;
}

StageMemory StageTable::make_memory(StageInfo& stage, const ReplicaKey& replica) {
  stage.parts.segment_ends = segment_ends(stage, replica.recompute);
  stage.parts.again = replica.recompute.again;
  stage.parts.in_host = replica.recompute.in_host;
  stage.parts.parts_backward = replica.parted;
  return memory_model_.of(stage.parts, replica.samples);
}

const StageMemory& StageTable::known_memory(StageInfo& stage, const ReplicaKey& replica) {
  const auto [known, added] = stage.memory.try_emplace(replica);
  if (!added) return known->second;
  known->second = make_memory(stage, replica);
  remembered_ += sizeof(StageMemory) + known->second.to_host.size() * sizeof(std::int64_t);
  return known->second;
}

StageMemory StageTable::memory(StageInfo& stage, const StageSpec& spec, const ReplicaKey& replica,
                               std::int64_t micro_batches, Unsummed* unsummed) {
  StageMemory memory;
  if (unsummed == nullptr) {
    memory = known_memory(stage, replica);
  } else {
    const auto [known, added] = unsummed->memory.try_emplace(replica);
    if (added) {
      stage.parts.held = unsummed->held;
      known->second = make_memory(stage, replica);
      stage.parts.held = {};
      remembered_ += sizeof(StageMemory) + known->second.to_host.size() * sizeof(std::int64_t);
    }
    memory = known->second;
  }
  memory.inputs *= micro_batches;
  memory.gradients = stage.held_bytes + stage.shared_rounded_bytes +
                     (spec.devices.size() > 1 ? stage.rounded_bytes : 0);
  return memory;
}

}  // namespace agpcs
