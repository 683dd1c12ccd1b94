// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/rough/fit.h"

#include <algorithm>
#include <array>

namespace agpcs {
namespace {

constexpr double kRidge = 10;  // the ridge weighs as much as this many samples
constexpr double kMost = 2;    // factors are believed between 1 / this and this
constexpr std::size_t kTerms = 6;

std::array<double, kTerms> terms_of(const RoughStep& rough) {
  return {1,
          rough.longest_way / rough.seconds,
          rough.late / rough.seconds,
          std::min(1.0, rough.reduces / rough.seconds),
          rough.slowest_cut / rough.longest_way,
          rough.slowest_stage / rough.longest_way};
}

}  // namespace

RoughFit::RoughFit() : fit_(kTerms, kRidge) {}

void RoughFit::add(const RoughStep& rough, double seconds) {
  const double factor = seconds / rough.seconds;
  if (factor <= kMost && factor >= 1 / kMost) fit_.add(terms_of(rough), factor - 1);
}

double RoughFit::factor(const RoughStep& rough) const {
  return std::clamp(1 + fit_.value(terms_of(rough)), 1 / kMost, kMost);
}

}  // namespace agpcs
