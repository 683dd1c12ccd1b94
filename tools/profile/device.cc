// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/device.h"

#include "cost_model/kernel/terms.h"
#include "ir/base/check.h"
#include "ir/base/units.h"
#include "ir/graph/op_signature.h"
#include "ir/strategy/memory.h"
#include "tools/common/common.h"
#include "tools/profile/pool.h"
#include "tools/profile/quick/quick.h"
#include "tools/profile/step.h"
#include "tools/run/processes/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <map>
#include <optional>
#include <thread>
#include <utility>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Result<TrainingModel> read_quick_model(const std::string& file, Loss& loss) {
  const auto* const model = std::find_if(std::begin(kQuickModels), std::end(kQuickModels),
                                         [&](const QuickModel& m) { return m.file == file; });
  AGPCS_CHECK(model != std::end(kQuickModels), "'{}' is no model of --quick", file);
  return parse_training_model(model->text(), file, loss);
}

Result<MeasuredModel> read_model(const DeviceOptions& options, const std::string& path) {
  Training training;
  training.batch = 1;
  training.loss = options.loss;
  training.optimizer = options.optimizer;
  AGPCS_TRY(TrainingModel read,
            options.quick ? read_quick_model(path, training.loss)
                          : read_training_model(path, options.choices, training.loss, true));
  AGPCS_TRY(Cluster cluster, one_host(options.kind, 1));
  AGPCS_TRY(MeasuredModel model, model_alone(std::move(read.graph), std::move(cluster), training));
  model.warnings = std::move(read.warnings);
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
  using Keep = std::function<void(std::int64_t samples, const TimedSteps& times)>;
  Result<std::int64_t> measure_all(const MeasuredModel& model, const Keep& keep);
  Status add_team(std::int64_t members, std::int64_t samples);
  Result<TimedSteps> measure(const MeasuredModel& model, const Plan& plan);
  Status repeat();
  /// Returns the seconds for a model, or for a model as the member of a team.
  double seconds_of_each() const {
    return options_.seconds /
           static_cast<double>(options_.models.size() * (1 + options_.teams.size()));
  }
  bool time_for_more(Clock::time_point start, std::size_t next) const;
  void keep_loading(const Graph& graph, std::int64_t samples, const Measured& time);
  void keep(const MeasuredModel& model, std::int64_t samples, const TimedSteps& times);
  void keep_parts(const MemberModel& model, std::int64_t samples, const TimedSteps& times);
  void list_step(const MeasuredModel& model, std::int64_t samples, const TimedSteps& times);
  void set_times(DeviceProfile& profile) const;

  const DeviceOptions& options_;
  const Meet& meet_;
  const std::function<void(const std::string&)>& progress_;
  std::vector<std::int64_t> counts_;
  std::unique_ptr<const MeasuredModel> model_;
  std::unique_ptr<const MemberModel> member_;
  std::unique_ptr<StepBench> bench_;  // of one of the two, for the last number of samples
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
  AGPCS_TRY(MeasuredModel read, read_model(options_, path));
  bench_ = nullptr;
  model_ = std::make_unique<const MeasuredModel>(std::move(read));
  const MeasuredModel& model = *model_;
  if (!model.warnings.empty()) measured_.warnings += model.warnings + "\n";
  std::vector<std::string>& names = measured_.profile.models;  // exports often share a name
  const bool named = std::find(names.begin(), names.end(), model.name) != names.end();
  if (!named && !options_.quick) names.push_back(model.name);
  AGPCS_TRY(const std::int64_t most,
            measure_all(model, [&](std::int64_t samples, const TimedSteps& times) {
              keep(model, samples, times);
            }));
  if (most == 0) {
    AGPCS_TRY(const Plan plan, model.plan_for(counts_.front()));
    AGPCS_TRY(const auto peak, peak_memory(plan, model.graph()));
    return {StatusCode::kInfeasible,
            too_large(options_, path, counts_.front(), peak.front().total())};
  }
  for (const std::int64_t members : options_.teams) {
    AGPCS_RETURN_IF_ERROR(add_team(members, most));
  }
  return {};
}

// Measures a model at the numbers of samples for which there are time and memory. Returns the
// largest of them; 0: there is no memory for any.
Result<std::int64_t> DeviceProfiler::measure_all(const MeasuredModel& model, const Keep& keep) {
  const auto start = Clock::now();
  std::int64_t most = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (i > 0 && options_.samples.empty() && !time_for_more(start, i)) break;
    AGPCS_TRY(const Plan plan, model.plan_for(counts_[i]));
    AGPCS_TRY(const auto peak, peak_memory(plan, model.graph()));
    if (peak.front().total() > options_.memory_bytes) break;
    AGPCS_TRY(const TimedSteps times, measure(model, plan));
    keep(counts_[i], times);
    most = counts_[i];
  }
  return most;
}

// Measures what a member has of the model's operators. `samples`: the most that were measured.
Status DeviceProfiler::add_team(std::int64_t members, std::int64_t samples) {
  DeviceProfile whole = measured_.profile;
  whole.name = options_.kind;
  set_times(whole);
  AGPCS_TRY(std::optional<MemberModel> member,
            model_of_member(*model_, whole, members, options_.link, samples));
  if (!member) {
    measured_.warnings += fmt::format(
        "warning: {}: a team of {} would divide nothing: what its members exchange takes longer "
        "than it saves\n",
        model_->name, members);
    return {};
  }
  bench_ = nullptr;
  member_ = std::make_unique<const MemberModel>(*std::move(member));
  AGPCS_TRY(const std::int64_t most,
            measure_all(*member_, [&](std::int64_t count, const TimedSteps& times) {
              keep_parts(*member_, count, times);
            }));
  std::vector<std::int64_t>& teams = measured_.profile.teams;
  if (most > 0 && std::find(teams.begin(), teams.end(), members) == teams.end()) {
    teams.push_back(members);
  }
  return {};
}

// Decides whether the rest of the model's time on this device suffices for counts_[next]. The first
// two numbers of samples are always measured, because others can only be derived from two.
bool DeviceProfiler::time_for_more(Clock::time_point start, std::size_t next) const {
  const double left = seconds_of_each() - seconds_since(start);
  const double growth = static_cast<double>(counts_[next]) / static_cast<double>(counts_[next - 1]);
  return next < 2 || (kLeastSteps + 1) * growth * bench_->last_step() <= left;
}

// Measures one number of samples.
Result<TimedSteps> DeviceProfiler::measure(const MeasuredModel& model, const Plan& plan) {
  const std::int64_t samples = plan.training.batch;
  progress_(fmt::format("{}: {} sample{}", model.name, samples, samples == 1 ? "" : "s"));
  bench_ = nullptr;  // its memory is needed
  AGPCS_TRY(bench_, StepBench::make(model.graph(), plan, options_.threads, options_.device));
  // The first step allocates memory, and its update differs from later ones.
  AGPCS_RETURN_IF_ERROR(bench_->step(true));
  AGPCS_RETURN_IF_ERROR(repeat());
  return bench_->times();
}

Status DeviceProfiler::repeat() {
  AGPCS_RETURN_IF_ERROR(bench_->step(true));  // the first warm step
  const double share = seconds_of_each() / static_cast<double>(counts_.size());
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

void DeviceProfiler::list_step(const MeasuredModel& model, std::int64_t samples,
                               const TimedSteps& times) {
  measured_.steps.push_back(
      {model.name, samples, times.steps, times.step, times.stretch, times.observer});
}

void DeviceProfiler::keep(const MeasuredModel& model, std::int64_t samples,
                          const TimedSteps& times) {
  pool_.add(model.graph(), samples, Precision::kFp32, times.forward, times.backward);
  if (options_.quick) keep_loading(model.graph(), samples, times.forward.front());
  list_step(model, samples, times);
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

void DeviceProfiler::keep_parts(const MemberModel& model, std::int64_t samples,
                                const TimedSteps& times) {
  for (const auto& [whole, part] : model.measured) {
    const auto id = static_cast<std::size_t>(whole);
    pool_.add(op_signature(model.parts, part), class_of(model.parts.op(part)), samples,
              op_cost(model.parts, part, samples, Precision::kFp32), times.forward[id],
              times.backward[id]);
  }
  list_step(model, samples, times);
}

void DeviceProfiler::set_times(DeviceProfile& profile) const {
  (options_.quick ? profile.probes : profile.operators) = pool_.operators();
  profile.updates.clear();
  for (const auto& [key, entry] : updates_) {
    profile.updates.push_back(entry.sum);
    profile.updates.back().update = rounded(mean_of(entry.sum.update, entry.count));
    profile.updates.back().begin = rounded(mean_of(entry.sum.begin, entry.count));
  }
}

MeasuredDevice DeviceProfiler::finish() {
  DeviceProfile& profile = measured_.profile;
  profile.name = options_.kind;
  profile.hardware = hardware_of(options_.gpu, options_.threads);
  set_times(profile);
  return std::move(measured_);
}

constexpr double kShort = 0.25;  // seconds of a step that can run beside communication

struct TrainingSteps final : Computation {
  MeasuredModel model;
  std::unique_ptr<StepBench> bench;
  Status run() override { return bench->run(); }
};

}  // namespace

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
