// SPDX-License-Identifier: Apache-2.0
// Trace Event Format (Google, "Trace Event Format", 2016): complete events "X", metadata "M", flow
// events "s" and "f" as arrows, and counters "C". Times are microseconds.
#include "tools/common/chrome_trace.h"

#include "cost_model/step/model.h"
#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "tools/common/json.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

constexpr std::string_view kStreamNames[kStreamKindCount] = {"compute", "send", "recv",
                                                             "collective"};

/// Returns a colour name that chrome://tracing reserves. Perfetto colours by title.
std::string_view colour_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::kForward:
      return "thread_state_running";
    case Opcode::kBackward:
    case Opcode::kBackwardInput:
    case Opcode::kBackwardWeight:
      return "thread_state_runnable";
    case Opcode::kUpdate:
      return "thread_state_iowait";
    case Opcode::kAllReduce:
    case Opcode::kReduceScatter:
    case Opcode::kAllGather:
    case Opcode::kGatherForward:
    case Opcode::kGatherBackward:
    case Opcode::kNorm:
    case Opcode::kReport:
      return "rail_response";
    default:
      return "rail_load";
  }
}

/// Returns `value` with so many decimals; more would make the file longer and say nothing.
double rounded(double value, int decimals) {
  const std::string text = fmt::format("{:.{}f}", value, decimals);
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

double microseconds(double seconds) { return rounded(seconds * 1e6, 3); }

bool sends(Opcode opcode) { return opcode == Opcode::kSend || opcode == Opcode::kSendGradient; }

class TraceWriter {
 public:
  /// The process id of a rank is `first_pid` + `pid_step` x rank.
  TraceWriter(const Plan& plan, const Estimate& estimate, std::string label = {}, int first_pid = 0,
              int pid_step = 1)
      : plan_(plan),
        estimate_(estimate),
        label_(std::move(label)),
        first_pid_(first_pid),
        pid_step_(pid_step) {}

  void write_steps() {
    for (const DeviceEstimate& device : estimate_.devices) name_process(device);
    for (const TimelineEvent& event : estimate_.timeline) {
      if (sends(event.instruction.opcode)) sent_[key_of(event)] = &event;
    }
    for (const TimelineEvent& event : estimate_.timeline) add_event(event);
  }

  /// Writes the memory of each rank in its process, and the links in a process of their own after
  /// all ranks.
  void write_counters(const Cluster& cluster, const StepAnalysis& report) {
    const int ranks = static_cast<int>(report.devices.size());
    for (int rank = 0; rank < ranks; ++rank) {
      for (const MemoryPoint& point : report.devices[static_cast<std::size_t>(rank)].memory) {
        add_counter("memory", rank, point.time, {{"bytes", point.bytes}});
      }
    }
    add_name("process_name", ranks, "links");
    for (std::size_t i = 0; i < report.links.size(); ++i) {
      const Link& link = cluster.links[i];
      for (const LoadPoint& point : report.links[i].load) {
        const double percent = rounded(100 * point.rate / link.bandwidth, 1);
        add_counter(link.name, ranks, point.time, {{"percent", percent}});
      }
    }
  }

  const std::string& events() const { return text_; }
  std::string text() const {
    return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [" + text_ + "\n]}\n";
  }

 private:
  using Key = std::tuple<int, Opcode, int, int>;  // rank, opcode, cut, micro-batch
  static Key key_of(const TimelineEvent& event) {
    const InstructionId& id = event.instruction;
    return {event.rank, id.opcode, id.object, id.micro_batch};
  }

  /// Adds an event on a line of its own. Traces are long: no event stays in memory as a value.
  void add(const Json& event) {
    text_ += first_ ? "\n" : ",\n";
    first_ = false;
    text_ += json_line(event);
  }
  void add_name(const char* of, int pid, const std::string& name) {
    add({{"ph", "M"}, {"name", of}, {"pid", pid}, {"args", {{"name", name}}}});
  }
  void add_counter(const std::string& name, int pid, double time, Json args) {
    const double ts = microseconds(time);
    add({{"ph", "C"}, {"name", name}, {"pid", pid}, {"ts", ts}, {"args", std::move(args)}});
  }

  int pid_of(int rank) const { return first_pid_ + pid_step_ * rank; }

  void name_process(const DeviceEstimate& device) {
    const int pid = pid_of(device.rank);
    add_name("process_name", pid, fmt::format("rank {} {}{}", device.rank, device.device, label_));
    add({{"ph", "M"},
         {"name", "process_sort_index"},
         {"pid", pid},
         {"args", {{"sort_index", pid}}}});
    for (int s = 0; s < kStreamKindCount; ++s) {
      add({{"ph", "M"},
           {"name", "thread_name"},
           {"pid", pid},
           {"tid", s},
           {"args", {{"name", kStreamNames[s]}}}});
    }
  }

  std::vector<Transfer> transfers_of(const TimelineEvent& event) const {
    const Opcode opcode = event.instruction.opcode;
    const bool gradient = opcode == Opcode::kSendGradient || opcode == Opcode::kRecvGradient;
    return transfers(plan_, event.instruction.object, event.rank, event.instruction.micro_batch,
                     gradient);
  }

  /// Returns the bytes that a transfer moves or a collective reduces.
  std::int64_t bytes_of(const TimelineEvent& event) const {
    const InstructionId& id = event.instruction;
    if (stream_of(id.opcode) == StreamKind::kCollective) {
      const PlanBucket& bucket = plan_.buckets[static_cast<std::size_t>(id.object)];
      if (!sums_gradients(id.opcode)) return bucket.bytes();
      const int stage = plan_.stage_of_rank(event.rank);
      return rank_elements(plan_, bucket, stage, event.rank) *
             static_cast<std::int64_t>(
                 size_of(travelling_type(bucket.type, plan_.training.wire_type)));
    }
    const bool gradient = id.opcode == Opcode::kSendGradient || id.opcode == Opcode::kRecvGradient;
    const Cut& cut = plan_.cuts[static_cast<std::size_t>(id.object)];
    std::int64_t bytes = 0;
    for (const Transfer& t : transfers_of(event)) {
      const CutTensor& tensor = cut.tensors[static_cast<std::size_t>(t.tensor)];
      if (gradient && !tensor.gradient) continue;
      bytes += t.rows * tensor.elements_per_row() * static_cast<std::int64_t>(size_of(tensor.type));
    }
    return bytes;
  }

  void add_event(const TimelineEvent& event) {
    const Opcode opcode = event.instruction.opcode;
    const StreamKind stream = stream_of(opcode);
    const bool moves = stream != StreamKind::kCompute && !is_of_all_ranks(opcode);
    Json json = {
        {"ph", "X"},
        {"name", title_of(plan_, plan_.stage_of_rank(event.rank), event.instruction)},
        {"cat", name_of(opcode)},
        {"cname", colour_of(opcode)},
        {"pid", pid_of(event.rank)},
        {"tid", static_cast<int>(stream)},
        {"ts", microseconds(event.start)},
        {"dur", microseconds(event.end - event.start)},
    };
    if (moves) json["args"]["bytes"] = bytes_of(event);
    add(json);
    if (stream == StreamKind::kRecv) add_arrows(event);
  }

  void add_arrows(const TimelineEvent& recv) {
    const InstructionId& id = recv.instruction;
    const Opcode opcode = id.opcode == Opcode::kRecv ? Opcode::kSend : Opcode::kSendGradient;
    int last_peer = -1;
    for (const Transfer& t : transfers_of(recv)) {
      const auto sent = sent_.find({t.peer, opcode, id.object, id.micro_batch});
      if (sent == sent_.end() || t.peer == last_peer) continue;
      last_peer = t.peer;
      ++arrows_;
      add_arrow("s", *sent->second, sent->second->start);
      add_arrow("f", recv, recv.end);
    }
  }

  void add_arrow(const char* phase, const TimelineEvent& at, double time) {
    add({{"ph", phase},
         {"name", "transfer"},
         {"cat", "transfer"},
         {"id", arrows_ * pid_step_ + first_pid_},
         {"bp", "e"},
         {"pid", pid_of(at.rank)},
         {"tid", static_cast<int>(stream_of(at.instruction.opcode))},
         {"ts", microseconds(time)}});
  }

  const Plan& plan_;
  const Estimate& estimate_;
  const std::string label_;
  const int first_pid_, pid_step_;
  std::string text_;
  bool first_ = true;
  int arrows_ = 0;
  std::map<Key, const TimelineEvent*> sent_;
};

}  // namespace

std::string chrome_trace(const Plan& plan, const Estimate& estimate) {
  TraceWriter writer(plan, estimate);
  writer.write_steps();
  return writer.text();
}

std::string chrome_trace(const Plan& plan, const Cluster& cluster, const Estimate& estimate,
                         const StepAnalysis& report) {
  TraceWriter writer(plan, estimate);
  writer.write_steps();
  writer.write_counters(cluster, report);
  return writer.text();
}

std::string chrome_trace(const Plan& plan, const std::vector<LabelledStep>& steps,
                         const std::vector<std::pair<std::string, std::string>>& about) {
  std::string text = "{\"displayTimeUnit\": \"ms\",\n\"otherData\": ";
  text += json_line(json_object(about)) + ",\n\"traceEvents\": [";
  for (std::size_t i = 0; i < steps.size(); ++i) {
    TraceWriter writer(plan, *steps[i].step, " " + steps[i].label, static_cast<int>(i),
                       static_cast<int>(steps.size()));
    writer.write_steps();
    text += (i == 0 ? "" : ",") + writer.events();
  }
  return text + "\n]}\n";
}

}  // namespace agpcs
