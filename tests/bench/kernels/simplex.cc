// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/kernels/simplex.h"

#include <algorithm>
#include <utility>

namespace agpcs::bench {
namespace {

constexpr int kStarts = 10, kSteps = 250;
constexpr double kFirstEdge = 0.2;

using Function = std::function<double(const std::vector<double>&)>;
struct Corner {
  double value = 0;
  std::vector<double> x;
};

/// Corners sorted by their values, of which the last one is replaced in each step.
class Simplex {
 public:
  Simplex(const std::vector<double>& start, double edge, const Function& f) : f_(f) {
    add(start);
    for (std::size_t i = 0; i < start.size(); ++i) {
      std::vector<double> x = start;
      x[i] += i % 2 == 0 ? edge : -edge;
      add(std::move(x));
    }
    sort();
  }

  void step() {
    const Corner reflected = at(-1);
    Corner& worst = corners_.back();
    if (reflected.value < corners_.front().value) {
      Corner further = at(-2);
      worst = further.value < reflected.value ? std::move(further) : reflected;
    } else if (reflected.value < corners_[corners_.size() - 2].value) {
      worst = reflected;
    } else {
      Corner nearer = at(reflected.value < worst.value ? -0.5 : 0.5);
      if (nearer.value < std::min(reflected.value, worst.value)) {
        worst = std::move(nearer);
      } else {
        shrink();
      }
    }
    sort();
  }

  const std::vector<double>& best() const { return corners_.front().x; }

 private:
  void add(std::vector<double> x) {
    const double value = f_(x);
    corners_.push_back({value, std::move(x)});
  }
  void sort() {
    std::stable_sort(corners_.begin(), corners_.end(),
                     [](const Corner& a, const Corner& b) { return a.value < b.value; });
  }
  /// Returns the point that far from the middle of all but the worst corner: 1 is the worst one.
  Corner at(double far) const {
    const std::size_t n = corners_.size() - 1;
    std::vector<double> x(n);
    for (std::size_t j = 0; j < n; ++j) {
      double middle = 0;
      for (std::size_t i = 0; i < n; ++i) middle += corners_[i].x[j] / static_cast<double>(n);
      x[j] = middle + far * (corners_.back().x[j] - middle);
    }
    const double value = f_(x);
    return {value, std::move(x)};
  }
  void shrink() {
    for (std::size_t i = 1; i < corners_.size(); ++i) {
      for (std::size_t j = 0; j < corners_[i].x.size(); ++j) {
        corners_[i].x[j] = (corners_[i].x[j] + corners_.front().x[j]) / 2;
      }
      corners_[i].value = f_(corners_[i].x);
    }
  }

  const Function& f_;
  std::vector<Corner> corners_;
};

}  // namespace

std::vector<double> minimized(std::vector<double> start, const Function& f) {
  for (int i = 0; i < kStarts; ++i) {
    Simplex simplex(start, i % 2 == 0 ? kFirstEdge : -kFirstEdge, f);
    for (int step = 0; step < kSteps; ++step) simplex.step();
    start = simplex.best();
  }
  return start;
}

}  // namespace agpcs::bench
