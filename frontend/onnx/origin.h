// SPDX-License-Identifier: Apache-2.0
// What a file says about its stored tensors: which were parameters of a module, and what an
// exporter computed.
#pragma once

#include "frontend/onnx/proto.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace agpcs::frontend {

enum class Owner : std::uint8_t {
  kParameter,  ///< a parameter of the module, which trains
  kFrozen,     ///< a parameter of the module that does not train (requires_grad = False)
  kBuffer,     ///< a buffer or a constant of the module
};

/// The notes of PyTorch's exporter and of agpcs.torch.export, read once.
class Origins {
 public:
  explicit Origins(const onnx::ModelProto& proto);

  /// Tells whether the file says which tensors are parameters. Nothing is guessed then.
  bool known() const { return known_; }
  /// Tells whether PyTorch's newer exporter wrote so.
  bool dynamo() const { return dynamo_; }
  /// Returns whose `tensor` is; nullopt if no module owns it.
  std::optional<Owner> owner(std::string_view tensor) const;
  /// Tells whether the exporter computed `tensor` from others.
  bool is_folded(std::string_view tensor) const { return sources_.count(std::string(tensor)) != 0; }
  /// Returns the parameters that `tensor` was computed from.
  std::vector<std::string> folded_parameters(std::string_view tensor) const;
  /// Tells whether the exporter computed any tensor of the file: it optimized the model.
  bool optimized() const { return !sources_.empty(); }
  /// Tells whether the exporter computed a tensor of the file from `tensor`.
  bool is_source(std::string_view tensor) const {
    return computed_from_.count(std::string(tensor)) != 0;
  }
  /// Tells whether `tensor` was computed from one tensor and nothing else.
  bool has_one_source(std::string_view tensor) const;

 private:
  void read_signature(std::string_view text);
  void read_list(std::string_view text, Owner owner);

  bool known_ = false, dynamo_ = false;
  std::unordered_map<std::string, Owner> owners_;
  std::unordered_map<std::string, std::vector<std::string>> sources_;
  std::unordered_set<std::string> computed_from_;
};

}  // namespace agpcs::frontend
