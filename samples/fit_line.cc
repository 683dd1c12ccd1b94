// SPDX-License-Identifier: Apache-2.0
// Replays a plan with an executor of our own: it fits y = slope * x + offset, and every rank is a
// thread. The plan says which samples a rank takes and when gradients are summed; the executor says
// what a forward and a backward pass compute.
#include <agpcs/executor.h>
#include <agpcs/loopback.h>
#include <agpcs/plan.h>
#include <agpcs/replayer.h>
#include <agpcs/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

/// Computes plans with one stage and one bucket: the gradients of slope and offset.
class LineExecutor : public agpcs::Executor {
 public:
  agpcs::Status prepare(const agpcs::Plan& plan, int rank) override {
    const agpcs::PlanStage& stage = plan.stages.front();
    if (plan.stages.size() != 1 || plan.buckets.size() != 1 || plan.buckets[0].elements() != 2) {
      return agpcs::invalid_input("this is not a plan for a line");
    }
    while (stage.ranks[replica_] != rank) ++replica_;
    plan_ = plan;
    learning_rate_ = static_cast<float>(plan.training.optimizer.learning_rate);
    return {};
  }

  agpcs::Status begin_step(std::int64_t) override {
    gradient_ = {0, 0};
    loss_ = 0;
    return {};
  }

  agpcs::Status forward(const agpcs::StagePass& pass) override {
    for_each_sample(pass.micro_batch,
                    [this](float, float error) { loss_ += error * error / count(); });
    return {};
  }

  agpcs::Status backward(const agpcs::StagePass& pass, bool last,
                         agpcs::GradientListener& ready) override {
    for_each_sample(pass.micro_batch, [this](float x, float error) {
      gradient_[0] += 2 * error * x / count();
      gradient_[1] += 2 * error / count();
    });
    if (last) ready.bucket_ready(0);
    return {};
  }

  agpcs::Status update() override {
    for (std::size_t i = 0; i < line_.size(); ++i) line_[i] -= learning_rate_ * gradient_[i];
    return {};
  }

  agpcs::Result<agpcs::Buffer> activation(int, const agpcs::Transfer&, int) override {
    return agpcs::internal_error("a plan of one stage has no cut");
  }
  agpcs::Result<agpcs::Buffer> gradient(int, const agpcs::Transfer&, int) override {
    return agpcs::internal_error("a plan of one stage has no cut");
  }
  agpcs::Result<agpcs::Buffer> bucket(int) override {
    return agpcs::Buffer{gradient_.data(), sizeof(gradient_), agpcs::DType::kFp32, false};
  }

  double loss() const override { return loss_; }
  const std::array<float, 2>& line() const { return line_; }

 private:
  float count() const { return static_cast<float>(plan_.training.batch); }

  /// Calls `visit(x, prediction - truth)` for this rank's samples of a micro-batch. The truth is
  /// y = 3x - 1.
  template <typename Visit>
  void for_each_sample(int micro_batch, Visit visit) const {
    const agpcs::PlanStage& stage = plan_.stages.front();
    const bool smaller = plan_.is_smaller(micro_batch);
    std::int64_t first = plan_.first_sample(micro_batch);
    for (std::size_t i = 0; i < replica_; ++i) first += stage.samples_of(i, smaller);
    for (std::int64_t i = first; i < first + stage.samples_of(replica_, smaller); ++i) {
      const float x = static_cast<float>(i) / count();
      visit(x, line_[0] * x + line_[1] - (3 * x - 1));
    }
  }

  agpcs::Plan plan_;
  std::size_t replica_ = 0;  // this rank, among those of the stage
  float learning_rate_ = 0;
  std::array<float, 2> line_ = {0, 0};  // slope, offset
  std::array<float, 2> gradient_ = {0, 0};
  double loss_ = 0;
};

agpcs::Status train(const agpcs::Plan& plan, int rank, agpcs::LoopbackHub& hub) {
  const std::unique_ptr<agpcs::Transport> transport = hub.join(rank);
  LineExecutor executor;
  AGPCS_TRY(auto replayer, agpcs::Replayer::create(plan, rank, *transport, executor));
  double loss = 0;
  for (int step = 0; step < 200; ++step) {
    AGPCS_TRY(const agpcs::StepReport report, replayer->run_step());
    loss = report.loss;
  }
  if (rank == 0) {
    std::cout << "y = " << executor.line()[0] << " x + " << executor.line()[1] << ", loss " << loss
              << '\n';
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: fit_line PLAN\n";
    return 2;
  }
  std::ostringstream text;
  text << std::ifstream(argv[1]).rdbuf();
  const agpcs::Result<agpcs::Plan> plan = agpcs::parse_plan(text.str(), argv[1]);
  if (!plan) {
    std::cerr << plan.status().message() << '\n';
    return agpcs::exit_code(plan.status().code());
  }

  agpcs::LoopbackHub hub(plan->rank_count());
  std::vector<agpcs::Status> results(static_cast<std::size_t>(plan->rank_count()));
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    ranks.emplace_back([&, rank] { results[rank] = train(*plan, static_cast<int>(rank), hub); });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const agpcs::Status& result : results) {
    if (result) continue;
    std::cerr << result.message() << '\n';
    return agpcs::exit_code(result.code());
  }
  return 0;
}
