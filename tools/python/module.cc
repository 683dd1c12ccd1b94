// SPDX-License-Identifier: Apache-2.0
// The extension module of the Python package, agpcs._agpcs: text in, text out. The interface for
// users is in agpcs/*.py.
#include "frontend/cluster/profile_file.h"
#include "ir/base/read_file.h"
#include "runtime/job/drift_expectation.h"
#include "tools/compile/console_stages.h"
#include "tools/compile/options.h"
#include "tools/compile/pipeline.h"
#include "tools/plan/command.h"
#include "tools/plan/views.h"

#include <agpcs/drift.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/version.h>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace agpcs {
namespace {

/// Returns the class of agpcs._errors for `code`.
const char* error_class(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidInput:
      return "InvalidInput";
    case StatusCode::kUsage:
      return "UsageError";
    case StatusCode::kInfeasible:
      return "Infeasible";
    default:
      return "Error";
  }
}

[[noreturn]] void raise(const Status& status) {
  const py::object type = py::module_::import("agpcs._errors").attr(error_class(status.code()));
  PyErr_SetObject(type.ptr(), py::str(status.message()).ptr());
  throw py::error_already_set();
}

struct PlanText {
  std::string plan, warnings;
};

Result<PlanText> compile_to_text(const CompileOptions& options) {
  AGPCS_RETURN_IF_ERROR(check_compile_options(options));
  std::ostringstream nothing, warnings;
  std::ostream nowhere(nullptr);
  Progress progress(nowhere, false);
  ConsoleStages stages({}, Console{nothing, warnings}, progress);
  AGPCS_TRY(const Compiled compiled, compile(options, stages));
  return PlanText{print_plan(compiled.planned.best.plan), warnings.str()};
}

/// Runs `compile_to_text` on another thread, while Python goes on. Ctrl-C ends the search and
/// raises KeyboardInterrupt.
PlanText compile_for_python(CompileOptions options) {
  std::atomic<bool> interrupted = false;
  options.plan.interrupted = &interrupted;
  std::future<Result<PlanText>> done =
      std::async(std::launch::async, [&options] { return compile_to_text(options); });
  const auto ended = [&done](std::chrono::milliseconds limit) {
    const py::gil_scoped_release release;
    return done.wait_for(limit) == std::future_status::ready;
  };
  while (!ended(std::chrono::milliseconds(50))) {
    if (PyErr_CheckSignals() == 0) continue;
    const py::error_already_set error;
    interrupted = true;
    while (!ended(std::chrono::seconds(1))) {
    }
    throw error;
  }
  Result<PlanText> result = done.get();
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}

/// Returns the contents of `path`, read as the commands read a plan.
std::string plan_text_of_file(const std::string& path) {
  Result<std::string> text = [&path] {
    const py::gil_scoped_release release;
    return read_file(path, {"plan"});
  }();
  if (!text.ok()) raise(text.status());
  return std::move(text).value();
}

std::string plan_json_of_text(const std::string& text, const std::string& file) {
  const Result<Plan> plan = parse_plan(text, file);
  if (!plan.ok()) raise(plan.status());
  return plan_json(*plan);
}

/// Returns the text of the profile file that holds these measurements, digest included.
std::string sealed_profile(const std::string& measurements, const std::string& file) {
  const Result<Profile> profile = seal_profile_text(measurements, file);
  if (!profile.ok()) raise(profile.status());
  return print_profile(*profile);
}

/// Runs agpcs-plan. Returns its exit code, and what it printed to either stream.
std::tuple<int, std::string, std::string> run_plan_command(const std::vector<std::string>& words) {
  const py::gil_scoped_release release;
  std::ostringstream out, err;
  const int code = plan_command(words, Console{out, err});
  return {code, out.str(), err.str()};
}

/// The drift detector of a job, whose ranks measure their steps in Python.
class Drift {
 public:
  explicit Drift(const std::string& plan) : plan_(parsed(plan)), detector_(plan_) {}

  /// Returns what rank `rank` shares of its mean seconds in a step, by quantity.
  RankStatistics statistics(int rank, const RankStatistics& seconds) const {
    const RankExpectation expectation = expectation_of(plan_, rank);
    RankStatistics shared{};
    for (std::size_t q = 0; q < shared.size(); ++q) {
      shared[q] = log_ratio(expectation, static_cast<Quantity>(q), seconds[q]);
    }
    return shared;
  }

  /// Adds what all ranks shared in step `step`. Returns (text, quantity, rank, factor, since) of
  /// each change.
  using Change = std::tuple<std::string, std::string, int, double, std::int64_t>;
  std::vector<Change> add(std::int64_t step, const std::vector<RankStatistics>& by_rank) {
    std::vector<Change> changes;
    for (const DriftChange& change : detector_.add(step, by_rank)) {
      changes.emplace_back(describe(plan_, change), std::string(name_of(change.quantity)),
                           change.rank, change.factor, change.since);
    }
    return changes;
  }

 private:
  static Plan parsed(const std::string& text) {
    Result<Plan> plan = parse_plan(text, "plan");
    if (!plan.ok()) raise(plan.status());
    return std::move(plan).value();
  }

  Plan plan_;
  DriftDetector detector_;
};

void bind_options(py::module_& m) {
  using Options = CompileOptions;
  py::class_<Options>(m, "Options")
      .def(py::init<>())
      .def_readwrite("model", &Options::model)
      .def_property("model_bytes", nullptr,
                    [](Options& o, const py::bytes& bytes) { o.model_bytes = std::string(bytes); })
      .def_readwrite("cluster", &Options::cluster)
      .def_readwrite("dims", &Options::dims)
      .def_readwrite("freeze", &Options::freeze)
      .def_readwrite("train", &Options::train)
      .def_readwrite("inference_graph", &Options::inference_graph)
      .def_readwrite("slower", &Options::slower)
      .def_readwrite("batch", &Options::batch)
      .def_readwrite("precision", &Options::precision)
      .def_readwrite("attention", &Options::attention)
      .def_readwrite("wire_type", &Options::wire_type)
      .def("set_loss",
           [](Options& o, std::optional<std::string> kind,
              std::vector<std::pair<std::string, double>> outputs,
              std::optional<std::int64_t> ignore_index, double label_smoothing, int class_axis,
              std::string next_token) {
             o.loss = std::move(kind).value_or("");
             o.loss_options.outputs = std::move(outputs);
             o.loss_options.ignore_index = ignore_index;
             o.loss_options.label_smoothing = label_smoothing;
             o.loss_options.class_axis = class_axis;
             o.loss_options.next_token = std::move(next_token);
           })
      .def_property("seed", nullptr, [](Options& o, std::uint64_t seed) { o.plan.seed = seed; })
      .def_property(
          "seeders", nullptr,
          [](Options& o, std::vector<std::string> names) { o.plan.seeders = std::move(names); })
      .def_readwrite("layout", &Options::layout)
      .def_readwrite("refiner", &Options::refiner)
      .def_readwrite("policy", &Options::policy)
      .def_property("budget", nullptr,
                    [](Options& o, std::int64_t budget) { o.plan.budget = budget; })
      .def_readwrite("all_reduce", &Options::all_reduce)
      .def_property("threads", nullptr, [](Options& o, int threads) { o.plan.threads = threads; })
      .def_property("micro_batches", nullptr,
                    [](Options& o, std::int64_t count) { o.problem.micro_batches = count; })
      .def_property("bucket_bytes", nullptr,
                    [](Options& o, std::int64_t bytes) { o.problem.bucket_bytes = bytes; });
}

}  // namespace
}  // namespace agpcs

PYBIND11_MODULE(_agpcs, m) {
  using namespace agpcs;  // NOLINT(google-build-using-namespace): the body belongs to it
  m.attr("version") = version();
  bind_options(m);
  m.def("compile", [](const CompileOptions& options) {
    PlanText text = compile_for_python(options);
    return std::make_pair(std::move(text.plan), std::move(text.warnings));
  });
  m.def("plan_json", &plan_json_of_text);
  m.def("plan_command", &run_plan_command);
  py::class_<Drift>(m, "Drift")
      .def(py::init<const std::string&>())
      .def("statistics", &Drift::statistics)
      .def("add", &Drift::add);
  m.def("sealed_profile", &sealed_profile);
  m.def("read_plan", &plan_text_of_file);
}
