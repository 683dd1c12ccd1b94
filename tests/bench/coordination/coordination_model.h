// SPDX-License-Identifier: Apache-2.0
// What benchmarks of coordination simulate: a model's gradients as they become ready, and
// all-reduces between equal hosts behind one switch.
#pragma once

#include "ir/cluster/cluster.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace agpcs {

/// Gradients of a step of data parallelism, in the order in which backward makes them.
struct ModelGradients {
  double compute = 0;         ///< forward and backward, seconds
  std::vector<double> ready;  ///< seconds from the begin of forward
  std::vector<std::int64_t> bytes;
};

/// Of an ONNX model in fp32 on a V100 (roofline with default efficiencies), `samples` a step.
ModelGradients gradients_of_model(const std::string& path, std::int64_t samples);

/// Sums over `ranks` V100, six to a host of two EDR InfiniBand ports, which is a node of Summit:
/// NVLink of 50 GB/s and 3 us, 25 GB/s and 1.5 us to a switch that is never the bottleneck.
class SummitReduce {
 public:
  explicit SummitReduce(int ranks);
  /// Of the fastest of ring, hierarchical and tree, by the cost model. Beyond 512 hosts, whose
  /// routes would not fit into memory, the ring between hosts and the levels of the tree are
  /// continued; the ring over all devices is left out.
  double operator()(std::int64_t bytes);

 private:
  double lone(AllReduce algorithm, int hosts, std::int64_t bytes);
  double hierarchical(std::int64_t bytes);
  double tree(std::int64_t bytes);

  int ranks_, hosts_;
  std::map<int, Cluster> clusters_;  // by hosts
  std::map<std::int64_t, double> known_;
};

/// How far the continuations are off at 512 hosts, where the cost model itself can say: the larger
/// relative difference.
double continuation_error(std::int64_t bytes);

}  // namespace agpcs
