// SPDX-License-Identifier: Apache-2.0
// Small search points that a DQN must learn.
#pragma once

#include "planner/refine/search_point.h"

#include <vector>

namespace agpcs {

/// In each of ten states one of six moves lowers the cost and the others raise it. Feature 5 tells
/// which; the others are noise.
class TellingPoint : public SearchPoint {
 public:
  Outcome outcome() const override { return {cost_, 0}; }
  std::vector<Move> moves(std::size_t most, Rng& rng) override {
    if (state_ == 10) return {};
    const std::uint64_t good = rng.below(6);
    std::vector<Move> result;
    noise_.clear();
    for (int i = 0; i < 6 && result.size() < most; ++i) {
      const bool is_good = static_cast<std::uint64_t>(i) == good;
      result.push_back({is_good ? 1 : 0, i});
      noise_.push_back(static_cast<int>(rng.below(100)));
    }
    return result;
  }
  void describe(std::span<const Move> moves, std::span<Features> features) override {
    for (std::size_t i = 0; i < moves.size(); ++i) {
      features[i] = {};
      features[i][0] = 1;
      features[i][3] =
          static_cast<float>(noise_[static_cast<std::size_t>(moves[i].index)]) / 50 - 1;
      features[i][5] = moves[i].kind == 1 ? 0.1F : -0.1F;
    }
  }
  void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) override {
    for (std::size_t i = 0; i < moves.size(); ++i) outcomes[i] = {after(moves[i]), 0};
  }
  void take(const Move& move) override {
    cost_ = after(move);
    ++state_;
  }
  void keep() override { kept_ = cost_; }
  void go_back() override {
    cost_ = kept_;
    state_ = 0;
  }
  double kept() const { return kept_; }

 private:
  double after(const Move& move) const { return cost_ * (move.kind == 1 ? 0.95 : 1.1); }
  int state_ = 0;
  std::vector<int> noise_;  // of each move listed last
  double cost_ = 1, kept_ = 1;
};

/// Two moves: one gains a little and ends, the other loses a little and then allows a large gain.
class PatientPoint : public SearchPoint {
 public:
  static constexpr int kGreedy = 0, kPatient = 1, kGain = 2;

  Outcome outcome() const override { return {cost_, 0}; }
  std::vector<Move> moves(std::size_t /*most*/, Rng& /*rng*/) override {
    if (cost_ == 1) return {{kGreedy, 0}, {kPatient, 1}};
    if (cost_ == cost_after(kPatient)) return {{kGain, 0}};
    return {};
  }
  void describe(std::span<const Move> moves, std::span<Features> features) override {
    for (std::size_t i = 0; i < moves.size(); ++i) features[i] = features_of(moves[i].kind);
  }
  static Features features_of(int kind) {
    Features features{};
    features[static_cast<std::size_t>(kind)] = 1;
    return features;
  }
  void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) override {
    for (std::size_t i = 0; i < moves.size(); ++i) outcomes[i] = {cost_after(moves[i].kind), 0};
  }
  void take(const Move& move) override { cost_ = cost_after(move.kind); }
  void keep() override {}
  void go_back() override { cost_ = 1; }

 private:
  static double cost_after(int kind) {
    return kind == kGreedy ? 0.98 : kind == kPatient ? 1.1 : 0.5;
  }
  double cost_ = 1;
};

}  // namespace agpcs
