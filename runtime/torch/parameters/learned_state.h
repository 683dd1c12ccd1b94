// SPDX-License-Identifier: Apache-2.0
// LearnedState: what a rank has learned of its stage, as items that can be read and written.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/status.h>

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

class LearnedState {
 public:
  /// Adds an item whose elements lie in `values`, one behind the other, from now on. `item` counts
  /// elements of the tensor's type; the list counts words of four bytes.
  void add(StateItem item, const at::Tensor& values);
  std::vector<StateItem> items() const;

  /// See `Executor::read_state`, `write_state`. Error: `item` is not in the list, or this rank has
  /// not all of these elements.
  Status read(const StateItem& item, std::int64_t first, std::int64_t count, float* out) const;
  Status write(const StateItem& item, std::int64_t first, std::int64_t count,
               const float* words) const;

 private:
  struct Piece {
    StateItem item;
    at::Tensor bytes;
  };
  /// Returns the piece of an item, which has the elements of it that are asked for.
  Result<const Piece*> find(const StateItem& item, std::int64_t first, std::int64_t count) const;

  std::vector<Piece> pieces_;
  std::map<std::pair<std::string, std::string>, std::size_t> piece_of_;  // by tensor and slot
};

}  // namespace agpcs
