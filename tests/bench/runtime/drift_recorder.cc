// SPDX-License-Identifier: Apache-2.0
// What a rank of a data-parallel job measures for drift detection, as a recording:
//
//     drift_recorder FOLDER STEPS WORK ELEMENTS
//
// It is one rank, by torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, AGPCS_PORT,
// AGPCS_JOB_TOKEN), over TCP. A step computes WORK times a pass over 2 MB, whatever the speed, and
// sums ELEMENTS fp32 gradients. FOLDER/rank-N gets a line for each 5 steps: means, in microseconds
// a step, of computing by the wall clock, its processor time, the time for which the kernel held
// the processor back, all-reduces, and sends. Every 20 steps all ranks probe the links, and
// FOLDER/links gets a line: for each link "FROM TO SECONDS-PER-BYTE LATENCY HELD". Rank 0 prints
// the number of steps that are done. tests/system/testbed/record_drift.py runs it.
#include "runtime/job/drift/expectation.h"
#include "runtime/support/processor_time.h"
#include "tests/bench/runtime/bucket_plan.h"
#include "tests/bench/support/mistakes.h"
#include "tests/runtime/null_executor.h"

#include <agpcs/bootstrap.h>
#include <agpcs/digest.h>
#include <agpcs/drift.h>
#include <agpcs/replayer.h>
#include <agpcs/tcp.h>

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::int64_t kExchange = 5, kProbe = 20;  // steps

/// Computes for as much processor time in each pass, and sums what others do.
class WorkingExecutor final : public NullExecutor {
 public:
  explicit WorkingExecutor(int work) : work_(work), values_(std::size_t{1} << 19, 1.F) {}
  Status forward(const StagePass& /*pass*/) override { return compute(work_ / 3); }
  Status backward(const StagePass& pass, bool last, GradientListener& listener) override {
    AGPCS_RETURN_IF_ERROR(compute(work_ - work_ / 3));
    return NullExecutor::backward(pass, last, listener);
  }

 private:
  Status compute(int passes) {
    for (int pass = 0; pass < passes; ++pass) {
      for (float& value : values_) value = value * 0.999F + 0.001F;
    }
    return {};
  }
  int work_;
  std::vector<float> values_;
};

template <typename Value>
Value need(Result<Value> result) {
  if (result.ok()) return std::move(*result);
  bench::end_with("drift_recorder: error: " + std::string(result.status().message()));
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) bench::end_with(fmt::format("drift_recorder: error: {} is not set", name));
  return value;
}

/// Sums of one rank since the last line.
struct Sums {
  std::array<std::int64_t, kQuantityCount> nanoseconds{};
  std::int64_t processor = 0;

  void add(const Plan& plan, const InstructionTime* times) {
    const std::vector<Instruction>& program = plan.programs.front().instructions;
    for (std::size_t i = 0; i < program.size(); ++i) {
      const int quantity = quantity_of(plan, program[i].id);
      if (quantity == kQuantityCount || times[i].end <= times[i].begin) continue;
      nanoseconds[static_cast<std::size_t>(quantity)] += times[i].end - times[i].begin;
      processor += times[i].processor;
    }
  }
  std::string line(std::int64_t held) const {
    const auto mean = [](std::int64_t sum) { return sum / 1000 / kExchange; };
    return fmt::format("{} {} {} {} {}\n", mean(nanoseconds[0]), mean(processor), mean(held),
                       mean(nanoseconds[1]), mean(nanoseconds[2]));
  }
};

std::string line_of(const std::vector<LinkMeasurement>& links) {
  std::string line;
  for (const LinkMeasurement& link : links) {
    line += fmt::format("{} {} {:.4g} {:.4g} {} ", link.from, link.to, link.seconds_per_byte,
                        link.latency_seconds, link.held ? 1 : 0);
  }
  return line + "\n";
}

void record(const std::string& folder, std::int64_t steps, int work, std::int64_t elements) {
  BootstrapOptions meeting;
  meeting.rank = std::stoi(variable("RANK"));
  meeting.size = std::stoi(variable("WORLD_SIZE"));
  meeting.address = variable("MASTER_ADDR");
  meeting.port = std::stoi(variable("AGPCS_PORT"));
  meeting.token = variable("AGPCS_JOB_TOKEN");
  const Plan plan = plan_of_buckets(meeting.size, {elements / 2, elements - elements / 2});
  meeting.identity = digest_of(print_plan(plan));
  const auto bootstrap = need(Bootstrap::join(meeting));
  const auto transport = need(connect_tcp(*bootstrap));
  WorkingExecutor executor(work);
  ReplayOptions options;
  options.check_finite = false;
  const auto replayer = need(Replayer::create(plan, meeting.rank, *transport, executor, options));
  std::ofstream own(fmt::format("{}/rank-{}", folder, meeting.rank)), links(folder + "/links");
  HeldTime held;
  Sums sums;
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step % kProbe == 0) {
      const std::string line = line_of(need(probe_links(plan, *transport, options.limit)));
      if (meeting.rank == 0) links << line << std::flush;
    }
    const StepReport report = need(replayer->run_step());
    sums.add(plan, replayer->times().row(report.step));
    if ((step + 1) % kExchange != 0) continue;
    own << sums.line(held.take()) << std::flush;
    sums = {};
    if (meeting.rank == 0) std::cout << step + 1 << std::endl;
  }
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  using namespace agpcs::bench;
  if (argc != 5) {
    end_with_usage("drift_recorder", "it takes four words", "FOLDER STEPS WORK ELEMENTS");
  }
  need_folder(argv[1]);
  const auto number = [&](int word) {
    return number_of<std::int64_t>("drift_recorder", argv[word]);
  };
  agpcs::record(argv[1], number(2), static_cast<int>(number(3)), number(4));
  return 0;
}
