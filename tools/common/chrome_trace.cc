// SPDX-License-Identifier: Apache-2.0
// Trace Event Format (Google, "Trace Event Format", 2016): complete events "X", metadata "M", and
// flow events "s" and "f" as arrows, counters "C". Times are microseconds.
#include "cost_model/simulator.h"
#include "cost_model/step_model.h"
#include "cost_model/step_report.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

constexpr std::string_view kStreamNames[kStreamKindCount] = {"compute", "send", "recv",
                                                             "collective"};

/// Names of colours that chrome://tracing reserves; Perfetto colours by title.
std::string_view colour_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::kForward:
      return "thread_state_running";
    case Opcode::kBackward:
      return "thread_state_runnable";
    case Opcode::kUpdate:
      return "thread_state_iowait";
    case Opcode::kAllReduce:
    case Opcode::kReport:
      return "rail_response";
    default:
      return "rail_load";
  }
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(Out(result), "\\u{:04x}", static_cast<int>(c));
    } else {
      result += c;
    }
  }
  return result + '"';
}

bool sends(Opcode opcode) { return opcode == Opcode::kSend || opcode == Opcode::kSendGradient; }

class TraceWriter {
 public:
  /// Process ids of ranks are `first_pid` + `pid_step` x rank.
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

  /// Memory with each rank, links in a process of their own, after all ranks.
  void write_counters(const Cluster& cluster, const StepAnalysis& report) {
    const int ranks = static_cast<int>(report.devices.size());
    for (int rank = 0; rank < ranks; ++rank) {
      for (const MemoryPoint& point : report.devices[static_cast<std::size_t>(rank)].memory) {
        add(R"({{"ph": "C", "name": "memory", "pid": {}, "ts": {:.3f}, "args": {{"bytes": {}}}}})",
            rank, point.time * 1e6, point.bytes);
      }
    }
    add(R"({{"ph": "M", "name": "process_name", "pid": {}, "args": {{"name": "links"}}}})", ranks);
    for (std::size_t i = 0; i < report.links.size(); ++i) {
      for (const LoadPoint& point : report.links[i].load) {
        add(R"({{"ph": "C", "name": {}, "pid": {}, "ts": {:.3f}, "args": {{"percent": {:.1f}}}}})",
            quoted(cluster.links[i].name), ranks, point.time * 1e6,
            100 * point.rate / cluster.links[i].bandwidth);
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

  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    text_ += first_ ? "\n" : ",\n";
    first_ = false;
    fmt::format_to(Out(text_), format, std::forward<Args>(args)...);
  }

  int pid_of(int rank) const { return first_pid_ + pid_step_ * rank; }

  void name_process(const DeviceEstimate& device) {
    const std::string name = fmt::format("rank {} {}{}", device.rank, device.device, label_);
    const int pid = pid_of(device.rank);
    add(R"({{"ph": "M", "name": "process_name", "pid": {}, "args": {{"name": {}}}}})", pid,
        quoted(name));
    add(R"({{"ph": "M", "name": "process_sort_index", "pid": {}, "args": {{"sort_index": {}}}}})",
        pid, pid);
    for (int s = 0; s < kStreamKindCount; ++s) {
      add(R"({{"ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "args": {{"name": "{}"}}}})",
          pid, s, kStreamNames[s]);
    }
  }

  std::vector<Transfer> transfers_of(const TimelineEvent& event) const {
    return transfers(plan_, event.instruction.object, event.rank);
  }

  /// What a transfer moves, or a collective reduces.
  std::int64_t bytes_of(const TimelineEvent& event) const {
    const InstructionId& id = event.instruction;
    if (id.opcode == Opcode::kAllReduce) {
      return travelling_bytes(plan_.training, plan_.buckets[static_cast<std::size_t>(id.object)]);
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
    const bool moves = stream != StreamKind::kCompute && opcode != Opcode::kReport;
    const std::string args =
        moves ? fmt::format(R"(, "args": {{"bytes": {}}})", bytes_of(event)) : std::string();
    add(R"({{"ph": "X", "name": {}, "cat": "{}", "cname": "{}", "pid": {}, "tid": {}, )"
        R"("ts": {:.3f}, "dur": {:.3f}{}}})",
        quoted(title_of(plan_, plan_.stage_of_rank(event.rank), event.instruction)),
        name_of(opcode), colour_of(opcode), pid_of(event.rank), static_cast<int>(stream),
        event.start * 1e6, (event.end - event.start) * 1e6, args);
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

  void add_arrow(std::string_view phase, const TimelineEvent& at, double time) {
    add(R"({{"ph": "{}", "name": "transfer", "cat": "transfer", "id": {}, "bp": "e", )"
        R"("pid": {}, "tid": {}, "ts": {:.3f}}})",
        phase, arrows_ * pid_step_ + first_pid_, pid_of(at.rank),
        static_cast<int>(stream_of(at.instruction.opcode)), time * 1e6);
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
  std::string text = "{\"displayTimeUnit\": \"ms\",\n\"otherData\": {";
  for (std::size_t i = 0; i < about.size(); ++i) {
    fmt::format_to(Out(text), "{}\n{}: {}", i == 0 ? "" : ",", quoted(about[i].first),
                   quoted(about[i].second));
  }
  text += "\n},\n\"traceEvents\": [";
  for (std::size_t i = 0; i < steps.size(); ++i) {
    TraceWriter writer(plan, *steps[i].step, " " + steps[i].label, static_cast<int>(i),
                       static_cast<int>(steps.size()));
    writer.write_steps();
    text += (i == 0 ? "" : ",") + writer.events();
  }
  return text + "\n]}\n";
}

}  // namespace agpcs
