// SPDX-License-Identifier: Apache-2.0
#include "tools/run/rank.h"

#include "ir/graph/loss_summary.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/memory.h"
#include "runtime/job/recording_trainer.h"
#include "runtime/job/replica_check.h"
#include "runtime/torch/data/data.h"
#include "runtime/torch/executor.h"
#include "tools/common/interrupt.h"
#include "tools/run/checkpoint.h"
#include "tools/run/data_options.h"
#include "tools/run/processes/slow_products.h"
#include "tools/run/replan.h"
#include "tools/run/report.h"
#include "tools/run/safetensors.h"
#include "tools/run/save.h"
#include "tools/run/start.h"
#include "tools/run/trace.h"
#include "tools/run/validation.h"

#include <agpcs/bootstrap.h>
#include <agpcs/digest.h>
#include <agpcs/loopback.h>
#include <agpcs/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

// What a rank needs to know to compute, for any transport.
struct Seat {
  int rank = 0;
  int local_size = 1;  ///< ranks that share this machine's cores
  std::string device = "cpu";
};

Result<std::unique_ptr<TorchExecutor>> make_executor(const Graph& graph, const Plan& plan,
                                                     const RunOptions& options, std::uint64_t seed,
                                                     const Seat& seat) {
  AGPCS_TRY(DataFiles files, training_files(graph, plan, options, seed));
  TorchOptions torch;
  torch.seed = seed;
  torch.device = seat.device;
  torch.fixed_batch = options.fixed_batch;
  torch.batches = options.accumulate;
  torch.schedule = options.schedule;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  torch.threads = options.threads > 0 ? options.threads : std::max(1, cores / seat.local_size);
  AGPCS_TRY(torch.data, open_data_files(graph, std::move(files)));
  if (!options.validate.empty()) {
    AGPCS_TRY(torch.evaluation, open_validation(graph, options, *torch.data, seed));
  }
  return make_torch_executor(graph, std::move(torch));
}

// Reports an event on rank 0; also writes a proposed plan to a file.
void tell(const TrainerEvent& event, const RunOptions& options, const CompilerReplanner* replanner,
          RunReport& report, Console console) {
  report.event(event);
  if (event.kind != TrainerEvent::Kind::kProposed || replanner == nullptr) return;
  const auto written =
      write_proposal(options.plan, event.step, *event.plan, replanner->hardware_text());
  console.err << (written.ok() ? fmt::format("the new plan is in {}\n", *written)
                               : fmt::format("warning: {}\n", written.status().message()));
}

// Steps before recording one, to warm up LibTorch, CUDA and NCCL: kernels are loaded, pairs are
// connected, memory is allocated.
constexpr int kStepsBeforeRecording = 3;

bool replays_graphs(const RunOptions& options) {
  return options.transport == TransportKind::kNccl && options.cuda_graph == "auto";
}

constexpr std::initializer_list<int> kRequests{SIGINT, SIGTERM, SIGHUP};

// A request to stop by a signal, and its effect.
struct StopRequest {
  InterruptFlag* interrupt = nullptr;
  std::int64_t after = -1;  ///< steps done if all ranks stopped early; -1: they did not
};

// Saves and restores the checkpoints of one rank's training. Does nothing if none are requested.
class Checkpoints {
 public:
  Checkpoints(const RunOptions& options, const TrainingStart& start, int rank, RunReport& report,
              Console console)
      : options_(options), start_(start), rank_(rank), report_(report), console_(console) {}

  // Called before the first step.
  Status begin(const Graph& graph, Trainer& trainer, Transport& transport) {
    const auto limit = milliseconds_of(options_.timeout);
    const FoundCheckpoint* found = rank_ == 0 && start_.found ? &*start_.found : nullptr;
    if (start_.step > 0) {
      AGPCS_RETURN_IF_ERROR(restore_checkpoint(found, trainer.executor(), transport, limit));
      if (found != nullptr) report_.resumed(found->folder, start_.step);
    }
    if (!start_.saves) return {};
    const CheckpointOptions to{options_.save,  options_.keep_checkpoints,
                               options_.model, start_.seed,
                               limit,          options_.accumulate};
    AGPCS_TRY(saver_, CheckpointSaver::open(to, graph, rank_, start_.step, found));
    warn();
    return {};
  }
  // Called between two steps, and with `last` after the last one. `best`: what is known so far.
  Status save(Trainer& trainer, Transport& transport, bool last,
              const std::optional<BestResult>& best) {
    const std::int64_t step = trainer.next_step();
    const std::optional<BestResult> kept = options_.keep_best ? best : std::nullopt;
    const bool is_best = kept && kept->step == step;
    const bool due = last || is_best || (start_.save_every > 0 && step % start_.save_every == 0);
    if (!saver_ || !due || !saver_->is_due(step)) return {};
    const auto begin = std::chrono::steady_clock::now();
    AGPCS_RETURN_IF_ERROR(saver_->save(trainer.executor(), transport, trainer.plan(), step, kept));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (rank_ == 0) {
      report_.saved(options_.save + "/" + checkpoint_name(step), step, seconds.count(), is_best);
    }
    warn();
    return {};
  }

 private:
  void warn() {
    if (rank_ == 0) console_.err << saver_->take_warnings();
  }

  const RunOptions& options_;
  const TrainingStart& start_;
  const int rank_;
  RunReport& report_;
  Console console_;
  std::unique_ptr<CheckpointSaver> saver_;
};

// Writes what --save-parameters asks for.
Status save_learned(const RunOptions& options, const Graph& graph, const Plan& plan,
                    std::int64_t step, const TorchExecutor& executor, Transport& transport) {
  const std::string& to = options.save_parameters;
  if (to.empty()) return {};
  const auto limit = milliseconds_of(options.timeout);
  if (!is_safetensors(to)) return save_parameters(graph, plan, executor, to, transport, limit);
  return save_safetensors(to, graph, plan, step, executor, transport, limit);
}

// Frees the values of weights, of which the executor has its own.
void free_weights(Graph& graph) {
  for (Tensor& tensor : graph.tensors) {
    const bool learned = tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kState;
    if (learned) std::vector<std::byte>().swap(tensor.constant.bytes);
  }
}

// Trains over a connected transport. `prepared` is called when the executor has its weights.
Status train(const Graph& graph, const Plan& plan, const RunOptions& options,
             const TrainingStart& start, const Seat& seat, Transport& transport, StopRequest& stop,
             Console console, const std::function<void()>& prepared) {
  const auto of_rank = [&](const Status& status) {
    return Status(status.code(),
                  fmt::format("{}: {}", rank_names(plan)[static_cast<std::size_t>(seat.rank)],
                              status.message()));
  };
  RunReport report(plan, options.json, console, tokens_per_sample(graph), options.accumulate);
  const bool reports = seat.rank == 0;
  TrainerOptions trainer_options;
  trainer_options.replay.limit = milliseconds_of(options.timeout);
  trainer_options.replay.check_finite = !options.allow_nan;
  trainer_options.replay.first_step = start.step;
  trainer_options.replay.batches = options.accumulate;
  TrainerRecording recording;
  if (replays_graphs(options)) recording.after = kStepsBeforeRecording;
  std::unique_ptr<CompilerReplanner> replanner;
  std::optional<Cluster> trace_cluster;
  if (reports) {
    AGPCS_TRY(trace_cluster, prepare_trace(plan, options));
    if (is_safetensors(options.save_parameters)) {
      AGPCS_RETURN_IF_ERROR(check_safetensors(options.save_parameters));
    }
    AGPCS_TRY(replanner, replanner_for(plan, options, console));
    trainer_options.replanner = replanner.get();
    trainer_options.switching.horizon_seconds = options.replan_horizon;
    trainer_options.switching.most_switches = options.max_switches;
    trainer_options.on_event = [&](const TrainerEvent& event) {
      tell(event, options, replanner.get(), report, console);
    };
    recording.on_decided = [&](std::int64_t step, const StepRecording& decided) {
      report.recorded(step, decided);
    };
  }
  const auto executors = [&]() -> Result<std::unique_ptr<Executor>> {
    auto executor = make_executor(graph, plan, options, start.seed, seat);
    if (!executor.ok()) return of_rank(executor.status());
    return std::unique_ptr<Executor>(std::move(*executor));
  };
  AGPCS_TRY(const auto trainer, make_recording_trainer(plan, seat.rank, transport, executors,
                                                       trainer_options, recording));
  prepared();
  const auto executor = [&]() -> TorchExecutor& {
    return static_cast<TorchExecutor&>(trainer->executor());
  };
  if (reports) {
    const std::string notes = executor().notes();
    if (!notes.empty()) console.err << notes << (notes.back() == '\n' ? "" : "\n");
    report.start(name_of(options.transport));
  }
  Checkpoints checkpoints(options, start, seat.rank, report, console);
  const Status begun = checkpoints.begin(graph, *trainer, transport);
  if (!begun.ok()) return of_rank(begun);
  Validation validation(options, graph, start.best, reports ? &report : nullptr);
  const auto replicas_agree = [&] {
    return check_replicas(trainer->plan(), seat.rank, trainer->executor(), transport,
                          trainer->next_step(), trainer_options.replay.limit);
  };
  AGPCS_RETURN_IF_ERROR(replicas_agree());
  if (reports && start.step >= options.steps) report.nothing_left(start.step, options.steps);
  stop.interrupt->arm();  // from here on training can stop between two steps
  while (trainer->next_step() < options.steps && !trainer->stops()) {
    if (stop.interrupt->flag()) trainer->ask_to_stop();
    AGPCS_TRY(const StepReport done, trainer->run_step());
    if (reports) report.step(done);
    const bool looks =
        options.check_replicas > 0 && trainer->next_step() % options.check_replicas == 0;
    if (looks) AGPCS_RETURN_IF_ERROR(replicas_agree());
    AGPCS_RETURN_IF_ERROR(validation.run(*trainer, transport, false));
    const Status saved = checkpoints.save(*trainer, transport, false, validation.best());
    if (!saved.ok()) return of_rank(saved);
  }
  if (trainer->next_step() < options.steps) stop.after = trainer->next_step();
  if (stop.after < 0) AGPCS_RETURN_IF_ERROR(validation.run(*trainer, transport, true));
  const Status kept = checkpoints.save(*trainer, transport, true, validation.best());
  if (!kept.ok()) return of_rank(kept);
  if (reports) report.summary(peak_memory_of(seat.device));
  const Status saved =
      save_learned(options, graph, trainer->plan(), trainer->next_step(), executor(), transport);
  if (!saved.ok()) return of_rank(saved);
  if (options.trace.empty()) return {};
  return write_trace(*trainer, graph, trace_cluster ? &*trace_cluster : nullptr, options, transport,
                     console);
}

Result<TrainingModel> read_model_of(const Plan& plan, const RunOptions& options) {
  AGPCS_TRY(TrainingModel model, read_planned_model(options.model, plan, true));
  AGPCS_RETURN_IF_ERROR(in_plan_file(resolve_stages(plan, model.graph).status(), options.plan));
  return model;
}

// Prints the warnings of a job, once.
void warn(const TrainingModel& model, const RunOptions& options, Console console) {
  if (!model.warnings.empty()) console.err << model.warnings << '\n';
  if (!model.graph.fused.empty()) {
    console.err << fmt::format(
        "warning: {}: the plan counts {} fused attentions, which are computed in steps here: they "
        "take longer and more memory than it says\n",
        options.plan, model.graph.fused.size());
  }
  if (options.transport != TransportKind::kNccl) console.err << warn_of_slow_products();
}

// Returns the status of a rank that was asked to stop and did.
Status stopped(const StopRequest& stop, const RunOptions& options) {
  if (stop.after < 0) return {};
  return {StatusCode::kCancelled,
          fmt::format("stopped after {} of {} steps: a signal asked for it{}", stop.after,
                      options.steps, options.save.empty() ? "" : "; saved in " + options.save)};
}

Status train_joined(const Plan& plan, const RunOptions& options, const RankPlace& place,
                    Bootstrap& bootstrap, StopRequest& stop, Console console) {
  AGPCS_TRY(TrainingModel model, read_model_of(plan, options));
  if (place.rank == 0) warn(model, options, console);
  AGPCS_TRY(const TrainingStart start, agree_on_start(options, plan, bootstrap, console));
  const Seat seat{place.rank, place.local_size, torch_device(options.transport, place)};
  void* compute_stream = nullptr;
  if (replays_graphs(options)) {
    AGPCS_TRY(compute_stream, own_compute_stream(seat.device));
  }
  AGPCS_TRY(const auto transport, connect(bootstrap, options, place, compute_stream));
  const auto prepared = [&] {
    // An executor for another plan begins with the weights of the file.
    if (options.replan.empty()) free_weights(model.graph);
  };
  AGPCS_RETURN_IF_ERROR(
      train(model.graph, plan, options, start, seat, *transport, stop, console, prepared));
  // Wait for all, so that no rank closes a connection that another one still reads from.
  return bootstrap.barrier("trained", milliseconds_of(options.timeout));
}

}  // namespace

std::vector<std::string> rank_names(const Plan& plan) {
  std::vector<std::string> names = devices_of_ranks(plan);
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    names[rank] = rank_name(static_cast<int>(rank), names[rank]);
  }
  return names;
}

Status check_size(const Plan& plan, const RankPlace& place) {
  if (place.size == plan.rank_count()) return {};
  return invalid_input(
      fmt::format("the plan is for {} ranks, but {} started {}\n"
                  "  hint: start as many ranks as the plan has, or compile one for {} devices",
                  plan.rank_count(), place.launcher, place.size, place.size));
}

Status run_rank(const Plan& plan, const RunOptions& options, const RankPlace& place,
                Console console, const LastWord& last_word) {
  AGPCS_RETURN_IF_ERROR(check_size(plan, place));
  const std::string device = devices_of_ranks(plan)[static_cast<std::size_t>(place.rank)];
  // A rank with a starter leaves Ctrl-C and a hangup to it.
  InterruptFlag interrupt(place.has_starter() ? std::initializer_list<int>{SIGTERM} : kRequests,
                          InterruptFlag::Arm::kLater);
  StopRequest stop{&interrupt};
  AGPCS_RETURN_IF_ERROR(join_job(
      options, place, device, digest_of(print_plan(plan)), last_word, [&](Bootstrap& bootstrap) {
        return train_joined(plan, options, place, bootstrap, stop, console);
      }));
  return stopped(stop, options);
}

Status run_loopback(const Plan& plan, const RunOptions& options, Console console) {
  AGPCS_TRY(const TrainingModel model, read_model_of(plan, options));
  warn(model, options, console);
  AGPCS_TRY(const TrainingStart start, find_start(options, plan, console));
  const int ranks = plan.rank_count();
  LoopbackHub hub(ranks);
  std::vector<Status> said(static_cast<std::size_t>(ranks));
  InterruptFlag interrupt(kRequests);
  std::vector<StopRequest> stops(static_cast<std::size_t>(ranks), StopRequest{&interrupt});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto transport = hub.join(rank);
      const Seat seat{rank, ranks, "cpu"};
      Status& status = said[static_cast<std::size_t>(rank)];
      StopRequest& stop = stops[static_cast<std::size_t>(rank)];
      status = train(model.graph, plan, options, start, seat, *transport, stop, console, [] {});
      if (!status.ok()) transport->abort(status);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The rank that failed by itself knows more than those that only heard of it.
  Status worst;
  for (const Status& status : said) {
    if (status.ok()) continue;
    if (worst.ok() || worst.code() == StatusCode::kPeerFailed) worst = status;
  }
  return worst.ok() ? stopped(stops.front(), options) : worst;
}

}  // namespace agpcs
