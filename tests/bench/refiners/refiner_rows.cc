// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/refiners/refiner_rows.h"

#include "planner/learn/untrained_network.h"
#include "planner/refine/dqn.h"
#include "planner/refine/features.h"
#include "planner/refine/q_network.h"
#include "planner/refine/walk.h"
#include "tests/bench/support/mistakes.h"

#include <fmt/format.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs::bench {
namespace {

/// A point that imagines nothing.
class WideAwake final : public SearchPoint {
 public:
  explicit WideAwake(SearchPoint& point) : point_(point) {}
  Outcome outcome() const override { return point_.outcome(); }
  std::vector<Move> moves(std::size_t most, Rng& rng) override { return point_.moves(most, rng); }
  void describe(std::span<const Move> moves, std::span<Features> features) override {
    point_.describe(moves, features);
  }
  void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) override {
    point_.evaluate(moves, outcomes);
  }
  void take(const Move& move) override { point_.take(move); }
  void keep() override { point_.keep(); }
  void go_back() override { point_.go_back(); }
  int starts() const override { return point_.starts(); }
  void go_to_start(int start) override { point_.go_to_start(start); }

 private:
  SearchPoint& point_;
};

class WithoutWalks final : public Refiner {
 public:
  explicit WithoutWalks(std::unique_ptr<Refiner> refiner) : refiner_(std::move(refiner)) {}
  std::string_view name() const override { return refiner_->name(); }
  void refine(SearchPoint& point, SearchBudget& budget, Rng rng) const override {
    WideAwake awake(point);
    refiner_->refine(awake, budget, rng);
  }

 private:
  std::unique_ptr<Refiner> refiner_;
};

bool take_suffix(std::string& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.resize(text.size() - suffix.size());
  return true;
}

QNetwork zero_policy() {
  QNetwork network;
  network.mean.assign(kFeatureCount, 0);
  network.scale.assign(kFeatureCount, 1);
  network.hidden.assign(kFeatureCount, 0);
  network.bias = network.output = {0};
  return network;
}

/// Ends the benchmark with `message` unless `holds`.
void need(bool holds, const std::string& message) {
  if (!holds) end_with(fmt::format("refiner_bench: error: {}", message));
}

QNetwork policy_of(const std::string& name, std::uint64_t seed) {
  constexpr std::string_view kRandom = "random:";
  const bool random = name == "random" || name.starts_with(kRandom);
  if (name.starts_with(kRandom)) {
    seed = number_of<std::uint64_t>("refiner_bench", name.substr(kRandom.size()));
  }
  if (name == "shipped") return shipped_policy();
  if (name == "zero") return zero_policy();
  if (random || name == "formula") {  // as agpcs-train-policy begins
    const int guess = random ? -1 : static_cast<int>(Feature::kRoughChange);
    return untrained_network(DqnOptions().hidden_units, guess, Rng(seed).fork("network"));
  }
  std::ifstream file(name);
  need(file.good(),
       fmt::format("policy '{}' is neither a file nor shipped, formula, zero, random, random:SEED",
                   name));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Result<QNetwork> policy = parse_policy(text, name);
  if (!policy.ok()) end_with(policy.status().message());
  return *std::move(policy);
}

}  // namespace

RefinerRow refiner_row(const std::string& text, const std::string& policy, bool imagination) {
  RefinerRow row = {text, text, {}, false};
  const bool with = take_suffix(row.refiner, "+walks"),
             without = take_suffix(row.refiner, "-walks");
  if (const std::size_t colon = row.refiner.find(':'); colon != std::string::npos) {
    row.policy = row.refiner.substr(colon + 1);
    row.refiner.resize(colon);
  }
  const bool learned = row.refiner == "dqn";
  need(learned || row.policy.empty(), fmt::format("'{}': only dqn has a policy", text));
  need(!with || learned || row.refiner == "greedy" || row.refiner == "anneal",
       fmt::format("'{}': only dqn, greedy and anneal walk", text));
  need(!with || imagination, fmt::format("'{}' walks, which --no-imagination forbids", text));
  if (learned && row.policy.empty()) row.policy = policy;
  row.walks = with || (learned && !without && imagination);
  return row;
}

std::unique_ptr<Refiner> make_refiner_of(const RefinerRow& row, std::uint64_t seed) {
  if (row.refiner == "dqn") {
    auto refiner = make_dqn_refiner(policy_of(row.policy, seed));
    if (row.walks) return refiner;
    return std::make_unique<WithoutWalks>(std::move(refiner));
  }
  if (row.walks) {
    return row.refiner == "greedy" ? make_greedy_refiner_with_walks()
                                   : make_anneal_refiner_with_walks();
  }
  Result<std::unique_ptr<Refiner>> refiner = make_refiner(row.refiner);
  if (!refiner.ok()) end_with(refiner.status().message());
  return *std::move(refiner);
}

}  // namespace agpcs::bench
