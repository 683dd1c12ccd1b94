// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/kineto/trace.h"

#include "ir/base/read_file.h"
#include "tools/common/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>

namespace agpcs {
namespace {

using Kind = TracedCall::Kind;

constexpr std::string_view kHint =
    "record a trace by torch.profiler.profile(record_shapes=True, with_stack=True), call its "
    "step() after each training step, and write it by export_chrome_trace(\"trace.json\")";
constexpr double kMicrosecond = 1e-6;
constexpr std::int64_t kMostTensor = std::int64_t{1} << 40;  // of a tensor
constexpr std::size_t kMostNested = 1000;                    // calls inside one another

std::string_view text_in(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? std::string_view(at->get_ref<const std::string&>())
                                               : std::string_view();
}

std::optional<double> number_in(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number()) return std::nullopt;
  return at->get<double>();
}

/// Returns an integer, which older traces write as a text: "24572"; -1 if there is none.
std::int64_t integer_in(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end()) return -1;
  if (at->is_number_integer()) return at->get<std::int64_t>();
  std::int64_t value = -1;
  if (at->is_string()) {
    const std::string& text = at->get_ref<const std::string&>();
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return -1;
  }
  return value;
}

/// Returns the number of the operator of PyTorch that an event belongs to.
std::int64_t external_id(const Json& args) {
  return std::max(integer_in(args, "External id"), integer_in(args, "external id"));
}

const Json& object_in(const Json& object, const char* key) {
  static const Json empty = Json::object();
  const auto at = object.find(key);
  return at != object.end() && at->is_object() ? *at : empty;
}

/// Names of element types as PyTorch writes them, by its version.
std::optional<DType> type_of(std::string_view name) {
  constexpr std::pair<std::string_view, DType> kTypes[] = {
      {"float", DType::kFp32},       {"c10::Half", DType::kFp16}, {"c10::BFloat16", DType::kBf16},
      {"double", DType::kFp64},      {"long int", DType::kInt64}, {"long", DType::kInt64},
      {"int", DType::kInt32},        {"short", DType::kInt16},    {"short int", DType::kInt16},
      {"signed char", DType::kInt8}, {"char", DType::kInt8},      {"unsigned char", DType::kUint8},
      {"bool", DType::kBool},
  };
  for (const auto& [known, type] : kTypes) {
    if (known == name) return type;
  }
  return std::nullopt;
}

/// Returns the extents of a tensor; nullopt if it is none that a device could hold.
std::optional<std::vector<std::int64_t>> dims_in(const Json& list) {
  std::vector<std::int64_t> dims;
  double elements = 1;
  for (const Json& extent : list) {
    if (!extent.is_number_integer()) return std::nullopt;
    dims.push_back(extent.get<std::int64_t>());
    elements *= static_cast<double>(dims.back());
    if (dims.back() < 0 || dims.back() > kMostTensor || elements > kMostTensor) return std::nullopt;
  }
  return dims;
}

TracedInput input_of(const Json& dims, std::string_view type) {
  TracedInput input;
  if (!dims.is_array()) return input;
  if (!dims.empty() && dims.front().is_array()) {
    for (const Json& each : dims) {
      auto extents = each.is_array() ? dims_in(each) : std::nullopt;
      if (extents) input.list.push_back(std::move(*extents));
    }
    return input;
  }
  auto extents = dims_in(dims);
  if (!extents) return input;
  input.type = type_of(type);
  if (input.type) input.dims = std::move(*extents);
  return input;
}

std::string text_of(const TracedInputs& inputs) {
  std::string text;
  const auto add = [&](std::string_view word) {
    text += (text.empty() ? "" : ", ") + std::string(word);
  };
  for (std::size_t i = 0; i < inputs.tensors.size(); ++i) {
    const TracedInput& input = inputs.tensors[i];
    const std::string concrete = i < inputs.concrete.size() ? inputs.concrete[i] : "";
    if (input.type) {
      add(fmt::format("{}[{}]", name_of(*input.type), fmt::join(input.dims, ",")));
    } else if (!input.list.empty()) {
      std::string list;
      for (const auto& dims : input.list) list += fmt::format("[{}]", fmt::join(dims, ","));
      add(fmt::format("[{}]", list));
    } else {
      add(concrete.empty() ? "-" : concrete);
    }
  }
  return "(" + text + ")";
}

struct Kernel {
  std::int64_t correlation = -1, external = -1;
  double seconds = 0;
};

class TraceReader {
 public:
  explicit TraceReader(const std::string& file) { trace_.file = file; }

  void take(const Json& event) {
    if (!event.is_object() || text_in(event, "ph") != "X") return;
    const auto start = number_in(event, "ts"), length = number_in(event, "dur");
    if (!start || !length || *length < 0) return;
    const std::string_view category = text_in(event, "cat"), name = text_in(event, "name");
    const Json& args = object_in(event, "args");
    if (category == "kernel" || category == "Kernel" || category.starts_with("gpu_mem")) {
      return take_kernel(name, *length, args);
    }
    TracedCall call;
    call.start = *start;
    call.end = *start + *length;
    call.thread = integer_in(event, "tid");
    call.external = external_id(args);
    call.sequence = integer_in(args, "Sequence number");
    if (category == "cpu_op" || category == "Operator") {
      ++operators_;
      take_operator(call, name, args);
    } else if (category == "user_annotation" || category == "python_function") {
      take_mark(call, name);
    } else if (category == "cuda_runtime" || category == "cuda_driver" || category == "Runtime") {
      call.kind = Kind::kLaunch;
      call.correlation = integer_in(args, "correlation");
      add(call, name);
    }
  }

  Result<KinetoTrace> finish(const Json& document);

 private:
  void add(TracedCall& call, std::string_view name) {
    const auto [at, fresh] = names_.try_emplace(std::string(name), static_cast<int>(names_.size()));
    if (fresh) trace_.names.emplace_back(name);
    call.name = at->second;
    trace_.calls.push_back(call);
  }

  void take_operator(TracedCall& call, std::string_view name, const Json& args) {
    constexpr std::string_view kBackward = "autograd::engine::evaluate_function: ";
    if (name.starts_with(kBackward)) {
      call.kind = Kind::kBackward;
      return add(call, name.substr(kBackward.size()));
    }
    call.inputs = inputs_of(args);
    add(call, name);
  }

  void take_mark(TracedCall& call, std::string_view name) {
    constexpr std::pair<std::string_view, Kind> kMarks[] = {{"nn.Module: ", Kind::kModule},
                                                            {"ProfilerStep#", Kind::kStep},
                                                            {"Optimizer.step#", Kind::kUpdate},
                                                            {"Optimizer.zero_grad#", Kind::kBegin}};
    for (const auto& [prefix, kind] : kMarks) {
      if (!name.starts_with(prefix)) continue;
      call.kind = kind;
      trace_.has_modules |= kind == Kind::kModule;
      steps_ += kind == Kind::kStep ? 1 : 0;
      const std::string_view rest = name.substr(prefix.size());
      return add(call, kind == Kind::kStep ? name : rest.substr(0, rest.find('.')));
    }
  }

  void take_kernel(std::string_view name, double length, const Json& args) {
    if (name.starts_with("nccl")) {
      trace_.communication += length * kMicrosecond;
      return;
    }
    kernels_.push_back({integer_in(args, "correlation"), external_id(args), length * kMicrosecond});
    devices_.insert(integer_in(args, "device"));
    trace_.tf32 |= name.find("tf32") != std::string_view::npos;
  }

  int inputs_of(const Json& args) {
    const auto dims = args.find("Input Dims"), types = args.find("Input type");
    if (dims == args.end() || types == args.end() || !dims->is_array() || !types->is_array() ||
        dims->size() != types->size()) {
      return -1;
    }
    TracedInputs inputs;
    for (std::size_t i = 0; i < dims->size(); ++i) {
      const Json& type = (*types)[i];
      inputs.tensors.push_back(
          input_of((*dims)[i], type.is_string() ? type.get<std::string>() : std::string()));
    }
    const auto concrete = args.find("Concrete Inputs");
    if (concrete != args.end() && concrete->is_array()) {
      for (const Json& value : *concrete) {
        inputs.concrete.push_back(value.is_string() ? value.get<std::string>() : std::string());
      }
    }
    inputs.text = text_of(inputs);
    const auto [at, fresh] = inputs_.try_emplace(inputs.text, static_cast<int>(inputs_.size()));
    if (fresh) trace_.inputs.push_back(std::move(inputs));
    return at->second;
  }

  Status check(const Json& document);
  void read_devices(const Json& document);
  void link_kernels();
  Status nest();

  KinetoTrace trace_;
  std::unordered_map<std::string, int> names_, inputs_;
  std::vector<Kernel> kernels_;
  std::set<std::int64_t> devices_;
  std::size_t operators_ = 0, steps_ = 0;
};

Status refused(const std::string& file, std::string_view what, std::string_view hint) {
  return invalid_input(fmt::format("{}: error: {}\n  hint: {}", file, what, hint));
}

Status TraceReader::check(const Json& document) {
  const std::string& file = trace_.file;
  if (!document.is_object() || !document.contains("traceEvents")) {
    return refused(file, "it is JSON, but no trace of torch.profiler: it has no 'traceEvents'",
                   kHint);
  }
  if (operators_ == 0)
    return refused(file, "the trace has no operators of PyTorch ('cpu_op')", kHint);
  if (steps_ == 0) {
    return refused(file,
                   "the trace does not say where training steps begin: it has no 'ProfilerStep#'",
                   "call the profiler's step() after each training step");
  }
  if (trace_.inputs.empty()) {
    return refused(file, "the trace has no shapes of operators",
                   "record it with record_shapes=True");
  }
  if (kernels_.empty() && !trace_.gpus.empty()) {
    return refused(
        file,
        fmt::format(
            "the machine has a GPU ('{}'), but no kernel was traced: calls that only launch "
            "kernels do not say how long these take",
            trace_.gpus.front()),
        "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]; to measure the CPU, "
        "hide the GPUs: CUDA_VISIBLE_DEVICES=");
  }
  return {};
}

void TraceReader::read_devices(const Json& document) {
  const auto devices = document.find("deviceProperties");
  if (devices == document.end() || !devices->is_array()) return;
  for (const Json& device : *devices) {
    if (!device.is_object()) continue;
    trace_.gpus.emplace_back(text_in(device, "name"));
    if (trace_.gpu_memory == 0) {
      trace_.gpu_memory = std::max<std::int64_t>(integer_in(device, "totalGlobalMem"), 0);
    }
  }
}

/// Gives each kernel's time to the call that launched it: the call of CUDA with its correlation, or
/// else the operator with its External id.
void TraceReader::link_kernels() {
  std::unordered_map<std::int64_t, std::size_t> by_correlation, by_external;
  for (std::size_t i = 0; i < trace_.calls.size(); ++i) {
    const TracedCall& call = trace_.calls[i];
    if (call.kind == Kind::kLaunch && call.correlation >= 0) by_correlation[call.correlation] = i;
    const bool called = call.kind == Kind::kOperator || call.kind == Kind::kBackward;
    if (called && call.external >= 0) by_external[call.external] = i;
  }
  for (const Kernel& kernel : kernels_) {
    auto at = by_correlation.find(kernel.correlation);
    if (at == by_correlation.end()) {
      at = by_external.find(kernel.external);
      if (at == by_external.end()) {
        trace_.unlinked += kernel.seconds;
        continue;
      }
    }
    trace_.calls[at->second].device += kernel.seconds;
  }
  trace_.on_gpu = !kernels_.empty();
  trace_.kernel_devices = static_cast<int>(devices_.size());
}

Status TraceReader::nest() {
  std::vector<TracedCall>& calls = trace_.calls;
  std::erase_if(calls,
                [](const TracedCall& c) { return c.kind == Kind::kLaunch && c.device == 0; });
  std::stable_sort(calls.begin(), calls.end(), [](const TracedCall& a, const TracedCall& b) {
    return std::tuple(a.thread, a.start, -a.end) < std::tuple(b.thread, b.start, -b.end);
  });
  double first = std::numeric_limits<double>::infinity();
  for (const TracedCall& call : calls) first = std::min(first, call.start);
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    TracedCall& call = calls[i];
    call.start = (call.start - first) * kMicrosecond;
    call.end = (call.end - first) * kMicrosecond;
    while (!open.empty() &&
           (calls[open.back()].thread != call.thread || calls[open.back()].end <= call.start)) {
      calls[open.back()].after = i;
      open.pop_back();
    }
    if (open.size() == kMostNested) {
      return refused(trace_.file,
                     fmt::format("more than {} calls are inside one another", kMostNested), kHint);
    }
    open.push_back(i);
  }
  for (const std::size_t i : open) calls[i].after = calls.size();
  trace_.device_before.assign(1, 0);
  for (const TracedCall& call : calls) {
    trace_.device_before.push_back(trace_.device_before.back() + call.device);
  }
  return {};
}

Result<KinetoTrace> TraceReader::finish(const Json& document) {
  if (document.is_object()) read_devices(document);
  AGPCS_RETURN_IF_ERROR(check(document));
  link_kernels();
  AGPCS_RETURN_IF_ERROR(nest());
  return std::move(trace_);
}

}  // namespace

double KinetoTrace::seconds(std::size_t i) const {
  const TracedCall& call = calls[i];
  if (!on_gpu) return call.end - call.start;
  return device_before[call.after] - device_before[i];
}

Result<KinetoTrace> parse_kineto_trace(std::string_view text, const std::string& file) {
  if (text.starts_with("\x1f\x8b")) {
    return refused(file, "the trace is compressed", "gunzip it");
  }
  TraceReader reader(file);
  AGPCS_TRY(const Json document, parse_json_list(text, {file, kHint}, "traceEvents",
                                                 [&](const Json& event) { reader.take(event); }));
  return reader.finish(document);
}

Result<KinetoTrace> read_kineto_trace(const std::string& path) {
  AGPCS_TRY(const std::string text,
            read_file(path, {"trace", kMostTraceBytes, "trace fewer steps: three are enough"}));
  return parse_kineto_trace(text, path);
}

}  // namespace agpcs
