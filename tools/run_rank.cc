// SPDX-License-Identifier: Apache-2.0
#include "tools/run_rank.h"

#include "ir/memory.h"
#include "runtime/torch_data.h"
#include "runtime/torch_executor.h"
#include "tools/run_last_resort.h"
#include "tools/run_report.h"
#include "tools/run_save.h"

#include <agpcs/bootstrap.h>
#include <agpcs/loopback.h>
#include <agpcs/replayer.h>
#ifdef AGPCS_RUN_GLOO
#include <agpcs/gloo.h>
#endif
#ifdef AGPCS_RUN_NCCL
#include <agpcs/nccl.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <ostream>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::milliseconds;

milliseconds milliseconds_of(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

// How a rank computes, wherever its messages go.
struct Seat {
  int rank = 0;
  int local_size = 1;  ///< ranks that share this machine's cores
  std::string device = "cpu";
};

// The files for the model's inputs, by input name.
Result<std::vector<std::pair<std::string, std::string>>> input_files(const Graph& graph,
                                                                     const Plan& plan,
                                                                     const RunOptions& options) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string& text : options.data) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) {
      files.emplace_back(graph.tensor(graph.inputs.front()).name, text);
    } else {
      files.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  if (options.labels.empty()) return files;
  if (plan.training.loss.kind == "output") {
    return Status(StatusCode::kUsage,
                  "--labels: this plan's loss is an output of the model, which takes no labels");
  }
  files.emplace_back(graph.tensor(graph.inputs.back()).name, options.labels);
  return files;
}

Result<std::unique_ptr<TorchExecutor>> make_executor(const Graph& graph, const Plan& plan,
                                                     const RunOptions& options, const Seat& seat) {
  AGPCS_TRY(const auto files, input_files(graph, plan, options));
  TorchOptions torch;
  torch.seed = options.seed;
  torch.device = seat.device;
  torch.fixed_batch = options.fixed_batch;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  torch.threads = options.threads > 0 ? options.threads : std::max(1, cores / seat.local_size);
  AGPCS_TRY(torch.data, open_npy_data(graph, files, options.seed));
  return make_torch_executor(graph, std::move(torch));
}

// Trains over a connected transport.
Status train(const Graph& graph, const Plan& plan, const RunOptions& options, const Seat& seat,
             Transport& transport, Console console) {
  const auto of_rank = [&](const Status& status) {
    return Status(status.code(),
                  fmt::format("{}: {}", rank_name(plan, seat.rank), status.message()));
  };
  auto executor = make_executor(graph, plan, options, seat);
  if (!executor.ok()) return of_rank(executor.status());
  const ReplayOptions replay{milliseconds_of(options.timeout)};
  AGPCS_TRY(const auto replayer, Replayer::create(plan, seat.rank, transport, **executor, replay));
  RunReport report(plan, options.json, console);
  const bool reports = seat.rank == 0;
  if (reports) {
    const std::string notes = (*executor)->notes();
    if (!notes.empty()) console.err << notes << (notes.back() == '\n' ? "" : "\n");
    report.start(options.transport);
  }
  for (std::int64_t step = 0; step < options.steps; ++step) {
    AGPCS_TRY(const StepReport done, replayer->run_step());
    if (reports) report.step(done);
  }
  if (reports) report.summary();
  if (options.save_parameters.empty()) return {};
  const Status saved = save_parameters(graph, plan, seat.rank, **executor, options.save_parameters);
  return saved.ok() ? saved : of_rank(saved);
}

Result<TrainingModel> read_model_of(const Plan& plan, const RunOptions& options) {
  Loss loss = plan.training.loss;
  AGPCS_TRY(TrainingModel model, read_training_model(options.model, plan.dims, loss, true));
  const Status status = resolve_stages(plan, model.graph).status();
  if (!status.ok()) {
    const bool placed = status.message().rfind("plan: ", 0) == 0;  // the plan has a name here
    return Status(status.code(),
                  placed ? options.plan + status.message().substr(4) : status.message());
  }
  return model;
}

Result<std::unique_ptr<Transport>> connect([[maybe_unused]] Bootstrap& bootstrap,
                                           const RunOptions& options,
                                           [[maybe_unused]] const RankPlace& place) {
#ifdef AGPCS_RUN_GLOO
  if (options.transport == "gloo") {
    GlooOptions gloo;
    gloo.address = options.address;
    return connect_gloo(bootstrap, gloo);
  }
#endif
#ifdef AGPCS_RUN_NCCL
  if (options.transport == "nccl") {
    NcclOptions nccl;
    nccl.device = place.local_rank;
    return connect_nccl(bootstrap, nccl);
  }
#endif
  return Status(
      StatusCode::kUnavailable,
      fmt::format("this agpcs-run was built without the {} transport", options.transport));
}

BootstrapOptions bootstrap_options(const Plan& plan, const RunOptions& options,
                                   const RankPlace& place) {
  BootstrapOptions bootstrap;
  bootstrap.rank = place.rank;
  bootstrap.size = place.size;
  bootstrap.address = place.address;
  bootstrap.port = place.port;
  bootstrap.listen_fd = place.rank == 0 ? place.listen_fd : -1;
  bootstrap.local_only = place.local();
  bootstrap.token = place.token.empty() ? "one rank needs no secret" : place.token;
  bootstrap.identity = digest_of(print_plan(plan));
  bootstrap.name = rank_name(plan, place.rank);
  bootstrap.name = bootstrap.name.substr(bootstrap.name.find('(') + 1);
  bootstrap.name.pop_back();
  bootstrap.stall_limit = milliseconds_of(options.stall_limit);
  bootstrap.join_limit = std::min(bootstrap.join_limit, milliseconds_of(options.timeout));
  return bootstrap;
}

Status train_joined(const Plan& plan, const RunOptions& options, const RankPlace& place,
                    Bootstrap& bootstrap, Console console) {
  AGPCS_TRY(const TrainingModel model, read_model_of(plan, options));
  if (place.rank == 0) console.err << model.warnings;
  AGPCS_TRY(const auto transport, connect(bootstrap, options, place));
  Seat seat{place.rank, place.local_size, "cpu"};
  if (options.transport == "nccl") seat.device = fmt::format("cuda:{}", place.local_rank);
  AGPCS_RETURN_IF_ERROR(train(model.graph, plan, options, seat, *transport, console));
  // Nobody closes a connection that another rank still reads from.
  return bootstrap.barrier("trained", milliseconds_of(options.timeout));
}

}  // namespace

std::string rank_name(const Plan& plan, int rank) {
  for (const PlanStage& stage : plan.stages) {
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      if (stage.ranks[i] == rank) return fmt::format("rank {} ({})", rank, stage.devices[i]);
    }
  }
  return fmt::format("rank {}", rank);
}

Status run_rank(const Plan& plan, const RunOptions& options, const RankPlace& place,
                Console console, const std::function<void(const Status&)>& last_word) {
  if (place.size != plan.rank_count()) {
    return invalid_input(
        fmt::format("the plan is for {} ranks, but {} started {}\n"
                    "  hint: start as many ranks as the plan has, or compile one for {} devices",
                    plan.rank_count(), place.launcher, place.size, place.size));
  }
  AGPCS_TRY(const auto bootstrap, Bootstrap::join(bootstrap_options(plan, options, place)));
  const auto end_now = [&](const Status& failure) {
    last_word(failure);
    _exit(exit_code(failure.code()));  // other threads are at work: no destructor may run
  };
  const LastResort last_resort(*bootstrap, end_now);
  const Status status = train_joined(plan, options, place, *bootstrap, console);
  if (status.ok()) return status;
  if (status.code() != StatusCode::kPeerFailed) {
    const bool named = status.message().rfind("rank ", 0) == 0;
    bootstrap->report(named
                          ? status
                          : Status(status.code(), fmt::format("{}: {}", rank_name(plan, place.rank),
                                                              status.message())));
  }
  return status;
}

Status run_loopback(const Plan& plan, const RunOptions& options, Console console) {
  AGPCS_TRY(const TrainingModel model, read_model_of(plan, options));
  console.err << model.warnings;
  const int ranks = plan.rank_count();
  LoopbackHub hub(ranks);
  std::vector<Status> said(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto transport = hub.join(rank);
      const Seat seat{rank, ranks, "cpu"};
      Status& status = said[static_cast<std::size_t>(rank)];
      status = train(model.graph, plan, options, seat, *transport, console);
      if (!status.ok()) transport->abort(status);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The rank that failed by itself says more than those that only heard of it.
  Status worst;
  for (const Status& status : said) {
    if (status.ok()) continue;
    if (worst.ok() || worst.code() == StatusCode::kPeerFailed) worst = status;
  }
  return worst;
}

}  // namespace agpcs
