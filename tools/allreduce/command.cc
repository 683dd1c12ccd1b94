// SPDX-License-Identifier: Apache-2.0
#include "tools/allreduce/command.h"

#include "codegen/export_msccl.h"
#include "cost_model/flows/exchange.h"
#include "cost_model/flows/text.h"
#include "planner/flows/method.h"
#include "tools/allreduce/input.h"
#include "tools/allreduce/picture.h"
#include "tools/allreduce/report.h"
#include "tools/allreduce/result.h"
#include "tools/common/interrupt.h"
#include "tools/common/option_checks.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr char kName[] = "agpcs-allreduce";
constexpr char kExamples[] =
    "  agpcs-allreduce bcube:4,1\n"
    "  agpcs-allreduce jellyfish:20,4,seed=3 --compare\n"
    "  agpcs-allreduce cluster.yaml --bytes 64MB --json > all_reduce.json\n"
    "  agpcs-allreduce dcell:4,1 --schedule dcell.txt --picture dcell.svg\n"
    "  agpcs-allreduce --check dcell.txt\n"
    "\n"
    "Exit codes: 0 ok, 1 input wrong, 2 usage, 3 the method does not apply, 130 interrupted: the "
    "best\n"
    "schedule so far is shown, 70 our bug\n";

struct Arguments {
  std::string topology, method, check, schedule, picture, msccl;
  std::string bandwidth, latency, bytes = "100MB";
  FlowOptions flow;
  bool compare = false, json = false, overlap = false, quiet = false;
};

std::string topology_help() {
  std::string help = "a cluster file (.yaml), or family:parameters with seed=S, fail=F:";
  for (const TopologyFamily& family : topology_families()) {
    help += fmt::format("\n{}", family.help);
  }
  return help;
}

std::string method_help() {
  std::string help =
      fmt::format("how flows are scheduled (default: {}):", flow_methods().back().name);
  for (const FlowMethod& method : flow_methods()) {
    help += fmt::format("\n{}: {}", method.name, method.help);
  }
  return help;
}

void add_options(CLI::App& app, Arguments& a) {
  app.add_option("topology", a.topology, topology_help());
  app.add_option("--method", a.method, method_help());
  app.add_flag("--compare", a.compare, "all methods side by side");
  app.add_option(
      "--check", a.check,
      "verify the schedule in FILE (- is standard input) on the topology, by default the "
      "one that it names");
  app.add_option("--sub-chunks", a.flow.max_sub_chunks,
                 "parts that a chunk may be cut into, at most (default: 2)")
      ->check(CLI::Range(1, 64));
  app.add_flag("--overlap", a.overlap,
               "the all-gather of a chunk may begin before all are reduced");
  app.add_option("--effort", a.flow.effort,
                 "searches take about that many times as long (default: 1)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--seed", a.flow.seed, "of everything random (default: 0)")->check(at_least(0));
  app.add_option("--bytes", a.bytes, "message of the figures that are for one (default: 100MB)");
  app.add_option("--bandwidth", a.bandwidth,
                 "of a topology's links, for each unit of capacity (default: 10Gbit/s)");
  app.add_option("--latency", a.latency, "of a topology's links (default: 5us)");
  app.add_option("--schedule", a.schedule, "write the schedule as text; - is standard output");
  app.add_option("--picture", a.picture,
                 "draw the load of links over rounds: a file .svg or .html");
  app.add_option("--msccl", a.msccl,
                 "write the schedule as XML for MSCCL, where no message crosses a switch");
  app.add_flag("--json", a.json, "print the figures as JSON (docs/reference/agpcs_allreduce.md)");
  app.add_flag("-q,--quiet", a.quiet, "no progress");
}

Status usage(std::string message) { return {StatusCode::kUsage, std::move(message)}; }

Status check_usage(const Arguments& a) {
  if (a.topology.empty() && a.check.empty()) {
    return usage(
        "no topology\n  hint: agpcs-allreduce bcube:4,1, or a cluster file; see agpcs-allreduce "
        "--help");
  }
  const std::pair<const std::string*, const char*> of_one[] = {{&a.method, "--method"},
                                                               {&a.check, "--check"},
                                                               {&a.schedule, "--schedule"},
                                                               {&a.picture, "--picture"},
                                                               {&a.msccl, "--msccl"}};
  for (const auto& [value, option] : of_one) {
    if (!a.compare || value->empty()) continue;
    return usage(fmt::format(
        "--compare is of all methods; {} is of one\n  hint: leave one of them out", option));
  }
  if (!a.check.empty() && !a.method.empty()) {
    return usage("--check makes no schedule, so --method means nothing");
  }
  if (!a.picture.empty() && !has_ending(a.picture, ".svg") && !has_ending(a.picture, ".html")) {
    return usage(
        fmt::format("--picture '{}' is neither .svg nor .html\n  hint: the name says which of them "
                    "is drawn",
                    a.picture));
  }
  if ((a.schedule == "-") + (a.msccl == "-") + a.json > 1) {
    return usage(fmt::format("{} and {} both go to standard output\n  hint: name a file for one",
                             a.schedule == "-" ? "--schedule -" : "--msccl -",
                             a.json ? "--json" : "--msccl -"));
  }
  return {};
}

/// What one run of the command works with.
struct Session {
  const Arguments& a;
  Console console;
  Progress& progress;
  const InterruptFlag& interrupt;
  std::int64_t bytes = 0;

  FlowOptions options() const {
    FlowOptions flow = a.flow;
    flow.barrier = !a.overlap;
    flow.interrupted = &interrupt.flag();
    return flow;
  }
};

Status interrupted_status(std::string_view what) {
  return {StatusCode::kCancelled, fmt::format("interrupted: {}", what)};
}

/// Returns the schedule as MSCCL XML. MSCCL has senders and receivers but no paths, so only paths
/// of one link stay as planned.
Result<std::string> msccl_text(const Topology& topology, const FlowSchedule& schedule) {
  for (const FlowRoute& route : schedule.routes) {
    if (route.links.size() == 1) continue;
    const auto first = static_cast<std::size_t>(route.links.front());
    return invalid_input(fmt::format(
        "topology '{}': error: messages from {} to {} cross switch {}, and MSCCL has no switches\n"
        "  hint: --msccl is for networks whose servers are joined to each other, such as torus:4,4",
        topology.name, topology.name_of(route.from), topology.name_of(route.to),
        topology.name_of(topology.links[first].to)));
  }
  return msccl_xml(plan_flow_of(schedule), topology.servers);
}

Status write_files(const Session& session, const AllreduceInput& input, const RoundsBound& bound,
                   const AllreduceResult& result) {
  const Arguments& a = session.a;
  const FlowSchedule& schedule = result.schedule;
  if (!a.schedule.empty()) {
    AGPCS_RETURN_IF_ERROR(
        write_file(a.schedule, print_flow_schedule(input.topology, schedule), session.console));
  }
  if (!a.msccl.empty()) {
    AGPCS_TRY(const std::string xml, msccl_text(input.topology, schedule));
    AGPCS_RETURN_IF_ERROR(write_file(a.msccl, xml, session.console));
  }
  if (a.picture.empty()) return {};
  const std::string heading = fmt::format(
      "{} rounds (no schedule has fewer than {}), {} sub-chunk{} a chunk, by {}", schedule.rounds(),
      bound.rounds, schedule.sub_chunks, schedule.sub_chunks == 1 ? "" : "s", result.method);
  return write_file(
      a.picture,
      allreduce_picture(input.topology, schedule, heading, has_ending(a.picture, ".svg")),
      session.console);
}

Status report_one(const Session& session, const AllreduceInput& input, const RoundsBound& bound,
                  const AllreduceResult& result) {
  const Arguments& a = session.a;
  const bool interrupted = session.interrupt.flag();
  const AllreduceReport report = {input, bound, has_barrier(result.schedule), session.bytes,
                                  interrupted};
  session.progress.done();
  AGPCS_RETURN_IF_ERROR(write_files(session, input, bound, result));
  const bool to_output = a.schedule == "-" || a.msccl == "-";
  std::ostream& out = to_output ? session.console.err : session.console.out;
  out << (a.json ? allreduce_json(report, result) : allreduce_text(report, result));
  if (!interrupted) return {};
  return interrupted_status("the schedule is the best so far");
}

RoundsBound find_bound(const Session& session, const AllreduceInput& input) {
  session.progress.step("the lower bound");
  return lower_bound_of(input.topology, session.a.flow.max_sub_chunks, !session.a.overlap);
}

Status schedule(const Session& session, const AllreduceInput& input) {
  const std::string_view name =
      session.a.method.empty() ? flow_methods().back().name : session.a.method;
  AGPCS_TRY(const FlowMethod* method, find_flow_method(name));
  const RoundsBound bound = find_bound(session, input);
  session.progress.step(fmt::format("a schedule by {}", method->name));
  AGPCS_TRY(const AllreduceResult result, schedule_by(*method, input.topology, session.options()));
  return report_one(session, input, bound, result);
}

Status compare(const Session& session, const AllreduceInput& input) {
  const RoundsBound bound = find_bound(session, input);
  std::vector<ComparedMethod> methods;
  for (const FlowMethod& method : flow_methods()) {
    if (session.interrupt.flag()) break;
    session.progress.step(fmt::format("a schedule by {}", method.name));
    Result<AllreduceResult> result = schedule_by(method, input.topology, session.options());
    if (!result.ok() && result.status().code() == StatusCode::kInternal) return result.status();
    ComparedMethod& compared = methods.emplace_back();
    compared.name = method.name;
    if (result.ok()) {
      compared.result = std::move(*result);
    } else {
      compared.error = result.status().message();
    }
  }
  session.progress.done();
  const bool interrupted = session.interrupt.flag();
  const AllreduceReport report = {input, bound, !session.a.overlap, session.bytes, interrupted};
  session.console.out << (session.a.json ? comparison_json(report, methods)
                                         : comparison_text(report, methods));
  if (!interrupted) return {};
  return interrupted_status(fmt::format("{} of {} methods, the last with its best so far",
                                        methods.size(), flow_methods().size()));
}

/// Checks the schedule in a file against the rules of the model and with numbers.
Status check_file(const Session& session, const AllreduceInput& input, const std::string& text) {
  const std::string& file = session.a.check;
  AGPCS_TRY(FlowSchedule schedule, parse_flow_schedule(text, file, input.topology));
  AllreduceResult result;
  result.method = file;
  result.schedule = std::move(schedule);
  if (const Status status = check_result(input.topology, result); !status.ok()) {
    return invalid_input(fmt::format("{}: error: {}", file, status.message()));
  }
  const RoundsBound bound = lower_bound_of(
      input.topology, std::max(result.schedule.sub_chunks, session.a.flow.max_sub_chunks),
      has_barrier(result.schedule));
  return report_one(session, input, bound, result);
}

Status run(Session& session) {
  const Arguments& a = session.a;
  AGPCS_TRY(session.bytes, parse_bytes_option("--bytes", a.bytes));
  AGPCS_TRY(const LinkFigures figures, parse_link_figures(a.bandwidth, a.latency));
  std::string text, topology = a.topology;
  if (!a.check.empty()) {
    AGPCS_TRY(text, read_input(a.check, {"schedule"}));
    if (topology.empty()) {
      AGPCS_TRY(topology, topology_of_flow_schedule(text, a.check));
    }
  }
  if (!a.method.empty()) AGPCS_RETURN_IF_ERROR(find_flow_method(a.method).status());
  session.progress.step(fmt::format("reading {}", topology));
  AGPCS_TRY(const AllreduceInput input, read_allreduce_input(topology, figures));
  if (!input.warnings.empty()) session.console.err << input.warnings << '\n';
  if (!a.check.empty()) return check_file(session, input, text);
  return a.compare ? compare(session, input) : schedule(session, input);
}

}  // namespace

int allreduce_command(const std::vector<std::string>& args, Console console) {
  Arguments a;
  CLI::App app(
      "Schedules the flows of an all-reduce on a network, and says how far that is from the proven "
      "bound.",
      kName);
  add_options(app, a);
  add_help(app, kExamples);
  if (const std::optional<int> code = parse_arguments(app, args, console)) return *code;
  if (const Status status = check_usage(a); !status.ok()) return finish(status, kName, console);
  const InterruptFlag interrupt;
  std::ostream nowhere(nullptr);
  Progress progress(a.quiet ? nowhere : console.err, is_terminal(2));
  Session session = {a, console, progress, interrupt};
  const Status status = run(session);
  progress.done();
  return finish(status, kName, console);
}

}  // namespace agpcs
