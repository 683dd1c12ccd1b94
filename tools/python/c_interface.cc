// SPDX-License-Identifier: Apache-2.0
#include "tools/python/c_interface.h"

#include "frontend/cluster/profile_file.h"
#include "ir/base/read_file.h"
#include "runtime/job/drift/expectation.h"
#include "runtime/support/processor_time.h"
#include "tools/common/json.h"
#include "tools/compile/bound_report.h"
#include "tools/compile/console_stages.h"
#include "tools/compile/options.h"
#include "tools/compile/pipeline.h"
#include "tools/compile/report.h"
#include "tools/plan/command.h"
#include "tools/plan/views.h"
#include "tools/python/c_options.h"
#include "tools/python/to_measure.h"

#include <agpcs/drift.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/version.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#define AGPCS_C __attribute__((visibility("default")))

struct AgpcsReply {
  int code = 0;
  std::vector<std::string> texts;
};

struct AgpcsInterrupt {
  std::atomic<bool> raised = false;
};

struct AgpcsDrift {
  explicit AgpcsDrift(agpcs::Plan of) : plan(std::move(of)), detector(plan) {}
  agpcs::Plan plan;
  agpcs::DriftDetector detector;
  agpcs::HeldTime held;
  std::optional<agpcs::StepStatistics> probes;  // of the idle rank
};

namespace agpcs {
namespace {

std::string_view view(AgpcsText text) {
  return text.bytes == 0 ? std::string_view() : std::string_view(text.data, text.bytes);
}

std::string copy(AgpcsText text) { return std::string(view(text)); }

/// Returns the code of a reply. Callers tell these errors apart, and no others.
int reply_code(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
    case StatusCode::kInvalidInput:
    case StatusCode::kUsage:
    case StatusCode::kInfeasible:
      return exit_code(code);
    default:
      return exit_code(StatusCode::kInternal);
  }
}

/// Returns the reply that `call` gives, or one with what it throws: no exception leaves C.
template <typename Call>
AgpcsReply* reply_of(Call call) {
  auto reply = std::make_unique<AgpcsReply>();
  try {
    Result<AgpcsReply> result = call();
    if (result.ok()) {
      *reply = std::move(result).value();
    } else {
      *reply = {reply_code(result.status().code()), {result.status().message()}};
    }
  } catch (const std::exception& error) {
    *reply = {reply_code(StatusCode::kInternal), {std::string("internal error: ") + error.what()}};
  }
  return reply.release();
}

Result<AgpcsReply> compiled(AgpcsText options, AgpcsText model, const std::atomic<bool>& stop) {
  AGPCS_TRY(CompileOptions o, options_of_json(view(options)));
  if (model.data != nullptr) o.model_bytes = copy(model);
  o.plan.interrupted = &stop;
  AGPCS_RETURN_IF_ERROR(check_compile_options(o));
  std::ostringstream nothing, warnings;
  std::ostream nowhere(nullptr);
  Progress progress(nowhere, false);
  ConsoleStages stages({}, Console{nothing, warnings}, progress);
  AGPCS_TRY(const Compiled result, compile(o, stages));
  Json bound = bound_json(result);
  bound["text"] = describe_bound(result);
  return AgpcsReply{0, {print_plan(result.planned.best.plan), warnings.str(), bound.dump()}};
}

Result<AgpcsReply> plan_command_said(AgpcsText words) {
  AGPCS_TRY(const Json json, parse_json(view(words), {.name = "words"}));
  std::ostringstream out, err;
  const int code = plan_command(json.get<std::vector<std::string>>(), Console{out, err});
  return AgpcsReply{code, {out.str(), err.str()}};
}

/// Returns what takes the probes of a rank; null: it is not idle.
StepStatistics* probes_of(AgpcsDrift& drift, int rank) {
  const int stage = drift.plan.stage_of_rank(rank);
  if (!drift.plan.stages[static_cast<std::size_t>(stage)].idle()) return nullptr;
  if (!drift.probes) drift.probes.emplace(drift.plan, rank);
  return &*drift.probes;
}

Json change_json(const Plan& plan, const DriftChange& change) {
  return {describe(plan, change), name_of(change.quantity), change.rank, change.factor,
          change.since};
}

}  // namespace
}  // namespace agpcs

using namespace agpcs;  // NOLINT(google-build-using-namespace): the functions below are of C

AGPCS_C int agpcs_reply_code(const AgpcsReply* reply) { return reply->code; }

AGPCS_C AgpcsText agpcs_reply_text(const AgpcsReply* reply, size_t index) {
  if (index >= reply->texts.size()) return {nullptr, 0};
  return {reply->texts[index].data(), reply->texts[index].size()};
}

AGPCS_C void agpcs_reply_free(AgpcsReply* reply) { delete reply; }

AGPCS_C AgpcsText agpcs_version() { return {version().data(), version().size()}; }

AGPCS_C AgpcsInterrupt* agpcs_interrupt_new() { return new AgpcsInterrupt; }

AGPCS_C void agpcs_interrupt_raise(AgpcsInterrupt* interrupt) { interrupt->raised = true; }

AGPCS_C void agpcs_interrupt_free(AgpcsInterrupt* interrupt) { delete interrupt; }

AGPCS_C AgpcsReply* agpcs_compile(AgpcsText options, AgpcsText model,
                                  const AgpcsInterrupt* interrupt) {
  return reply_of([&] { return compiled(options, model, interrupt->raised); });
}

AGPCS_C AgpcsReply* agpcs_plan_json(AgpcsText plan, AgpcsText file) {
  return reply_of([&]() -> Result<AgpcsReply> {
    AGPCS_TRY(const Plan parsed, parse_plan(copy(plan), copy(file)));
    return AgpcsReply{0, {plan_json(parsed)}};
  });
}

AGPCS_C AgpcsReply* agpcs_plan_command(AgpcsText words) {
  return reply_of([&] { return plan_command_said(words); });
}

AGPCS_C AgpcsReply* agpcs_read_plan(AgpcsText path) {
  return reply_of([&]() -> Result<AgpcsReply> {
    AGPCS_TRY(std::string text, read_file(copy(path), {"plan"}));
    return AgpcsReply{0, {std::move(text)}};
  });
}

AGPCS_C AgpcsReply* agpcs_sealed_profile(AgpcsText measurements, AgpcsText file) {
  return reply_of([&]() -> Result<AgpcsReply> {
    AGPCS_TRY(const Profile profile, seal_profile_text(copy(measurements), copy(file)));
    return AgpcsReply{0, {print_profile(profile)}};
  });
}

AGPCS_C AgpcsReply* agpcs_to_measure(AgpcsText options, AgpcsText model, AgpcsText devices) {
  return reply_of([&]() -> Result<AgpcsReply> {
    AGPCS_TRY(CompileOptions o, options_of_json(view(options)));
    o.model_bytes = copy(model);
    AGPCS_RETURN_IF_ERROR(check_compile_options(o));
    AGPCS_TRY(const TrainedModel trained, read_trained_model(o));
    AGPCS_TRY(const Json names, parse_json(view(devices), {.name = "devices"}));
    AGPCS_TRY(const Json json, to_measure(trained, names.get<std::vector<std::string>>()));
    return AgpcsReply{0, {json_line(json)}};
  });
}

AGPCS_C int agpcs_drift_quantities() { return kQuantityCount; }

AGPCS_C AgpcsReply* agpcs_drift_new(AgpcsText plan, AgpcsDrift** drift) {
  *drift = nullptr;
  return reply_of([&]() -> Result<AgpcsReply> {
    AGPCS_TRY(Plan parsed, parse_plan(copy(plan), "plan"));
    *drift = new AgpcsDrift(std::move(parsed));
    return AgpcsReply{};
  });
}

AGPCS_C void agpcs_drift_statistics(AgpcsDrift* drift, int rank, double processor, int steps,
                                    double* figures) {
  const double held = static_cast<double>(drift->held.take()) * 1e-9 / std::max(steps, 1);
  const auto share = [&](const RankStatistics& statistics) {
    const StatisticsWords words = words_of(statistics);
    std::copy(words.begin(), words.end(), figures);
  };
  if (StepStatistics* const probes = probes_of(*drift, rank)) return share(probes->take());
  const RankExpectation expectation = expectation_of(drift->plan, rank);
  RankStatistics statistics;
  for (std::size_t q = 0; q < statistics.ratios.size(); ++q) {
    statistics.ratios[q] = log_ratio(expectation, static_cast<Quantity>(q), figures[q]);
  }
  const double computing = figures[static_cast<std::size_t>(Quantity::kCompute)];
  if (processor > 0 && computing > 0) {
    statistics.processor = std::min(1.0, processor / computing);
    statistics.held = std::min(1 - statistics.processor, held / computing);
  }
  share(statistics);
}

AGPCS_C void agpcs_drift_add_probe(AgpcsDrift* drift, int rank, double seconds) {
  if (StepStatistics* const probes = probes_of(*drift, rank)) probes->add_probe(seconds);
}

AGPCS_C AgpcsReply* agpcs_drift_add(AgpcsDrift* drift, int64_t step, const double* figures,
                                    int ranks) {
  return reply_of([&]() -> Result<AgpcsReply> {
    std::vector<RankStatistics> by_rank(static_cast<std::size_t>(ranks));
    for (RankStatistics& of_rank : by_rank) {
      StatisticsWords words{};
      std::copy_n(figures, words.size(), words.begin());
      of_rank = statistics_of(words);
      figures += words.size();
    }
    const auto changes = drift->detector.add(step, by_rank);
    return AgpcsReply{0, {json_line(json_array(changes, [&](const DriftChange& change) {
                        return change_json(drift->plan, change);
                      }))}};
  });
}

AGPCS_C void agpcs_drift_free(AgpcsDrift* drift) { delete drift; }
