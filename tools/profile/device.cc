// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/device.h"

#include "codegen/lower.h"
#include "cost_model/kernel/terms.h"
#include "frontend/cluster/catalog/catalog.h"
#include "frontend/cluster/file.h"
#include "ir/base/check.h"
#include "ir/base/units.h"
#include "ir/strategy/memory.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/problem/problem.h"
#include "tools/common/common.h"
#include "tools/profile/pool.h"
#include "tools/profile/quick/quick.h"
#include "tools/profile/step.h"
#include "tools/run/processes/machine.h"

#include <agpcs/version.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A model, and what makes plans of it for one rank.
struct Model {
  std::string name;
  std::unique_ptr<const Problem> problem;
  Strategy strategy;  // one stage on one device; the share is set later
  std::string warnings;

  const Graph& graph() const { return problem->graph; }
  Result<Plan> plan_for(std::int64_t samples) const {
    Training training = problem->training;
    training.batch = samples;
    Strategy alone = strategy;
    alone.stages.front().shares = {samples};
    return lower(problem->graph, problem->cluster, training, alone,
                 {std::string(version()), 0, "agpcs-profile", "none"});
  }
};

Result<TrainingModel> read_quick_model(const std::string& file, Loss& loss) {
  const auto* const model = std::find_if(std::begin(kQuickModels), std::end(kQuickModels),
                                         [&](const QuickModel& m) { return m.file == file; });
  AGPCS_CHECK(model != std::end(kQuickModels), "'{}' is no model of --quick", file);
  return parse_training_model(model->text(), file, loss);
}

Result<Model> read_model(const DeviceOptions& options, const std::string& path) {
  Loss loss = options.loss;
  AGPCS_TRY(TrainingModel read, options.quick
                                    ? read_quick_model(path, loss)
                                    : read_training_model(path, options.choices, loss, true));
  AGPCS_TRY(Cluster cluster, one_device(options.kind));
  Model model;
  model.name = read.graph.called();
  model.warnings = std::move(read.warnings);
  Training training;
  training.batch = 1;
  training.loss = loss;
  training.optimizer = options.optimizer;
  AGPCS_TRY(model.problem, Problem::make(std::move(read.graph), std::move(cluster), training));
  Strategy strategy;
  strategy.stage_of.assign(model.graph().ops.size(), 0);
  strategy.stages.push_back({{0}, {1}, false});
  model.strategy =
      group_gradients(*model.problem, std::move(strategy), model.problem->options.bucket_bytes);
  return model;
}

std::string too_large(const DeviceOptions& options, const std::string& path, std::int64_t samples,
                      std::int64_t bytes) {
  return fmt::format(
      "{}: error: {} sample{} need{} {}, device '{}' has {} free\n"
      "  hint: profile a smaller relative of the model (fewer layers of the same kind): what is "
      "not measured is fitted to what is",
      path, samples, samples == 1 ? "" : "s", samples == 1 ? "s" : "",
      figure(static_cast<double>(bytes), "B"), options.kind,
      figure(static_cast<double>(options.memory_bytes), "B"));
}

class DeviceProfiler {
 public:
  DeviceProfiler(const DeviceOptions& options, const Meet& meet,
                 const std::function<void(const std::string&)>& progress)
      : options_(options), meet_(meet), progress_(progress) {
    if (options_.samples.empty()) {
      counts_.assign(std::begin(kDefaultSamples), std::end(kDefaultSamples));
    } else {
      counts_ = options_.samples;
    }
  }

  Status add(const std::string& path);
  Status stay_busy();
  MeasuredDevice finish();

 private:
  Status measure(const Plan& plan);
  Status repeat();
  bool time_for_more(Clock::time_point start, std::size_t next) const;
  void keep_loading(const Graph& graph, std::int64_t samples, const Measured& time);
  void keep(const Model& model, std::int64_t samples, const TimedSteps& times);

  const DeviceOptions& options_;
  const Meet& meet_;
  const std::function<void(const std::string&)>& progress_;
  std::vector<std::int64_t> counts_;
  std::unique_ptr<const Model> model_;  // of `bench_`
  std::unique_ptr<StepBench> bench_;    // for the last number of samples
  OperatorPool pool_;
  struct UpdateSum {
    MeasuredUpdate sum;
    int count = 0;
  };
  // By elements and tensors; the number of samples does not matter.
  std::map<std::pair<std::int64_t, std::int64_t>, UpdateSum> updates_;
  MeasuredDevice measured_;
};

Status DeviceProfiler::add(const std::string& path) {
  AGPCS_TRY(Model read, read_model(options_, path));
  bench_ = nullptr;
  model_ = std::make_unique<const Model>(std::move(read));
  const Model& model = *model_;
  if (!model.warnings.empty()) measured_.warnings += model.warnings + "\n";
  std::vector<std::string>& names = measured_.profile.models;  // exports often share a name
  const bool named = std::find(names.begin(), names.end(), model.name) != names.end();
  if (!named && !options_.quick) names.push_back(model.name);
  const auto start = Clock::now();
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (i > 0 && options_.samples.empty() && !time_for_more(start, i)) break;
    AGPCS_TRY(const Plan plan, model.plan_for(counts_[i]));
    AGPCS_TRY(const auto peak, peak_memory(plan, model.graph()));
    const std::int64_t bytes = peak.front().total();
    if (bytes > options_.memory_bytes) {
      if (i > 0) break;
      return {StatusCode::kInfeasible, too_large(options_, path, counts_[i], bytes)};
    }
    AGPCS_RETURN_IF_ERROR(measure(plan));
  }
  return {};
}

// Decides whether the rest of the model's time on this device suffices for counts_[next]. The first
// two numbers of samples are always measured, because others can only be derived from two.
bool DeviceProfiler::time_for_more(Clock::time_point start, std::size_t next) const {
  const double left =
      options_.seconds / static_cast<double>(options_.models.size()) - seconds_since(start);
  const double growth = static_cast<double>(counts_[next]) / static_cast<double>(counts_[next - 1]);
  return next < 2 || (kLeastSteps + 1) * growth * bench_->last_step() <= left;
}

// Measures one number of samples.
Status DeviceProfiler::measure(const Plan& plan) {
  const std::int64_t samples = plan.training.batch;
  progress_(fmt::format("{}: {} sample{}", model_->name, samples, samples == 1 ? "" : "s"));
  bench_ = nullptr;  // its memory is needed
  AGPCS_TRY(bench_, StepBench::make(model_->graph(), plan, options_.threads, options_.device));
  // The first step allocates memory, and its update differs from later ones.
  AGPCS_RETURN_IF_ERROR(bench_->step(true));
  AGPCS_RETURN_IF_ERROR(repeat());
  keep(*model_, samples, bench_->times());
  return {};
}

Status DeviceProfiler::repeat() {
  AGPCS_RETURN_IF_ERROR(bench_->step(true));  // the first warm step
  const double share = options_.seconds / static_cast<double>(options_.models.size()) /
                       static_cast<double>(counts_.size());
  // The cost of observing matters for short steps. Long steps are too few to leave any unobserved.
  // On a GPU, reading an observed step's times counts as its own.
  const bool alternate = bench_->last_step() < 0.1 || !options_.gpu.empty();
  bench_->forget();
  const auto start = Clock::now();
  for (int i = 0; i < kLeastSteps || seconds_since(start) < share; ++i) {
    AGPCS_RETURN_IF_ERROR(bench_->step(true));
    if (alternate) AGPCS_RETURN_IF_ERROR(bench_->step(false));
  }
  return {};
}

// Trains on, uncounted, until all devices have measured: the others would have the memory's
// bandwidth, the cores and the clock rate to themselves.
Status DeviceProfiler::stay_busy() {
  std::atomic<bool> all{false};
  Status met;
  std::thread waiting([&] {
    met = meet_();
    all = true;
  });
  Status trained;
  while (!all && trained.ok()) {
    trained = bench_->run();
  }
  waiting.join();
  return trained.ok() ? met : trained;
}

// The first operator of the quick models is a view, which waits for the samples to be loaded.
void DeviceProfiler::keep_loading(const Graph& graph, std::int64_t samples, const Measured& time) {
  const std::string tensor = type_text(graph.tensor(graph.inputs.front()));
  pool_.add(fmt::format("{0}({1}) -> {1}", kInputGroup, tensor), OpClass::kView, samples,
            {0, 0, input_bytes(graph, samples), 0}, time, {});
}

void DeviceProfiler::keep(const Model& model, std::int64_t samples, const TimedSteps& times) {
  pool_.add(model.graph(), samples, Precision::kFp32, times.forward, times.backward);
  if (options_.quick) keep_loading(model.graph(), samples, times.forward.front());
  measured_.steps.push_back(
      {model.name, samples, times.steps, times.step, times.stretch, times.observer});
  const auto tensors = static_cast<std::int64_t>(model.graph().parameters().size());
  auto [at, fresh] = updates_.try_emplace({model.graph().parameter_elements(), tensors});
  MeasuredUpdate& update = at->second.sum;
  update.optimizer = optimizer_name(options_.optimizer);
  update.elements = at->first.first;
  update.tensors = tensors;
  add_to(update.update, times.update);
  add_to(update.begin, times.begin);
  ++at->second.count;
}

MeasuredDevice DeviceProfiler::finish() {
  DeviceProfile& profile = measured_.profile;
  profile.name = options_.kind;
  profile.hardware = hardware_of(options_.gpu, options_.threads);
  (options_.quick ? profile.probes : profile.operators) = pool_.operators();
  for (const auto& [key, entry] : updates_) {
    profile.updates.push_back(entry.sum);
    profile.updates.back().update = rounded(mean_of(entry.sum.update, entry.count));
    profile.updates.back().begin = rounded(mean_of(entry.sum.begin, entry.count));
  }
  return std::move(measured_);
}

constexpr double kShort = 0.25;  // seconds of a step that can run beside communication

struct TrainingSteps final : Computation {
  Model model;
  std::unique_ptr<StepBench> bench;
  Status run() override { return bench->run(); }
};

}  // namespace

Result<Cluster> one_device(const std::string& kind) {
  const bool known = catalog().find_accelerator(kind) != nullptr;
  const std::string text = fmt::format(
      "name: alone\n"
      "device_kinds:\n"
      "  {0}: {{memory: 1TB{1}}}\n"
      "hosts:\n"
      "  - name: local\n"
      "    devices: {{kind: {0}, count: 1}}\n"
      "    interconnect: {{kind: tcp, bandwidth: 1GB/s, latency: 1us}}\n"
      "    nic: {{bandwidth: 1GB/s, latency: 1us}}\n"
      "network: {{topology: switch}}\n",
      kind, known ? "" : ", memory_bandwidth: 1GB/s, peak: {fp32: 1GFLOPS}");
  AGPCS_TRY(ClusterFile file, parse_cluster(text, "one device"));
  return std::move(file.cluster);
}

Result<MeasuredDevice> profile_device(const DeviceOptions& options, const Meet& meet,
                                      const std::function<void(const std::string&)>& progress) {
  DeviceProfiler profiler(options, meet, progress);
  AGPCS_RETURN_IF_ERROR(meet());
  for (const std::string& path : options.models) AGPCS_RETURN_IF_ERROR(profiler.add(path));
  AGPCS_RETURN_IF_ERROR(profiler.stay_busy());
  return profiler.finish();
}

Result<std::unique_ptr<Computation>> make_computation(const DeviceOptions& options,
                                                      const MeasuredDevice& measured) {
  std::int64_t samples = measured.steps.front().samples, last = 0;
  for (const ProfiledBatch& step : measured.steps) {
    if (step.samples <= last) break;  // the steps of the next model begin here
    last = step.samples;
    if (step.step <= kShort) samples = step.samples;
  }
  auto computation = std::make_unique<TrainingSteps>();
  AGPCS_TRY(computation->model, read_model(options, options.models.front()));
  AGPCS_TRY(const Plan plan, computation->model.plan_for(samples));
  AGPCS_TRY(computation->bench,
            StepBench::make(computation->model.graph(), plan, options.threads, options.device));
  AGPCS_RETURN_IF_ERROR(computation->run());  // allocates memory
  return std::unique_ptr<Computation>(std::move(computation));
}

}  // namespace agpcs
