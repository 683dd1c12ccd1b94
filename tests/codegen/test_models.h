// SPDX-License-Identifier: Apache-2.0
// The problems that tests of lowering, verification and memory share.
#pragma once

#include "tests/support/plan_builders.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {

/// A chain of four layers with a skip connection from the first to the last.
inline Graph skip_model() {
  return graph_of(R"(
      input x [n,8]
      input labels int64[n]
      parameter w0 [8,16]
      parameter w1 [16,16]
      parameter w2 [16,16]
      parameter w3 [16,4]
      h0 = MatMul(x, w0) [n,16]
      a0 = Relu(h0) [n,16]
      h1 = MatMul(a0, w1) [n,16]
      a1 = Relu(h1) [n,16]
      h2 = MatMul(a1, w2) [n,16]
      a2 = Relu(h2) [n,16]
      sum = Add(a2, a0) [n,16]
      y = MatMul(sum, w3) [n,4]
      l = SoftmaxCrossEntropyLoss(y, labels) []
      outputs y
      loss l
  )");
}

/// Two layers. Of n samples: x has 32n bytes, h and a 64n, y 16n. Between its passes a micro-batch
/// keeps a, once, for Relu and for the second MatMul.
inline Graph two_layers() {
  return graph_of(R"(
      input x [n,8]
      parameter w [8,16]
      parameter v [16,4]
      h = MatMul(x, w) [n,16]
      a = Relu(h) [n,16]
      y = MatMul(a, v) [n,4]
      l = ReduceSum(y) []
      outputs y
      loss l
  )");
}

/// A table of words that is the head, too, with a layer between.
inline Graph tied_model() {
  return graph_of(R"(
      input ids int64[n]
      input labels int64[n]
      parameter table [16,8]
      parameter w [8,8]
      e = Gather(table, ids) [n,8]
      h = MatMul(e, w) [n,8]
      t = Transpose(table) [8,16]
      y = MatMul(h, t) [n,16]
      l = SoftmaxCrossEntropyLoss(y, labels) []
      outputs y
      loss l
  )");
}

/// Two stages of it: the table is in both.
inline constexpr const char* kTiedStages = "micro-batches 2\nstage a/0=8 : e..h\nstage b/0=8 : *\n";

inline Cluster two_hosts() {
  return cluster_of(R"(
      kind fast memory=16e9 bandwidth=900e9 fp32=15e12
      kind slow memory=8e9 bandwidth=300e9 fp32=5e12
      host a fast 2
      host b slow 2
  )");
}

/// Name, strategy over `skip_model` and `two_hosts`; the batch is 16.
inline const std::vector<std::pair<std::string, std::string>>& strategies() {
  static const std::vector<std::pair<std::string, std::string>> kStrategies = {
      {"alone", "micro-batches 1\nstage a/0=16 : *\n"},
      {"data parallel",
       "micro-batches 2\nstage a/0=3 a/1=3 b/0=1 b/1=1 : *\n"
       "bucket 0 ring w3 w2\nbucket 0 hierarchical w1 w0\n"},
      {"two stages", "micro-batches 4\nstage a/0=4 : h0..a1\nstage b/0=4 : *\n"},
      {"four stages with a skip",
       "micro-batches 8\nstage a/0=2 : h0..a0\nstage a/1=2 : h1..a1\nstage b/0=2 : h2..a2\n"
       "stage b/1=2 : *\n"},
      {"two stages of two replicas",
       "micro-batches 4\nstage a/0=3 a/1=1 recompute : h0..a1\nstage b/0=2 b/1=2 : *\n"},
      {"gpipe",
       "micro-batches 4 gpipe\nstage a/0=4 : h0..a0\nstage a/1=2 b/0=2 : h1..a2\nstage b/1=4 : "
       "*\n"},
      {"parted backward passes",
       "micro-batches 4 zero-bubble\nstage a/0=4 : h0..a0\nstage a/1=3 b/0=1 : h1..a2\n"
       "stage b/1=4 : *\n"},
      {"flows",
       "micro-batches 2\nstage a/0=3 a/1=3 b/0=1 b/1=1 : *\n"
       "bucket 0 flow:rings w3 w2\nbucket 0 flow:star w1\nbucket 0 ring w0\n"},
      {"divided parameters",
       "micro-batches 2\nstage a/0=5 a/1=3 state=parameters : *\n"
       "bucket 0 ring w3\nbucket 0 tree w2 w1\nbucket 0 ring w0\n"},
      {"divided gradients",
       "micro-batches 4\nstage a/0=3 a/1=1 state=gradients : h0..a1\n"
       "stage b/0=2 b/1=2 state=gradients : *\n"
       "bucket 0 ring w1\nbucket 0 tree w0\nbucket 1 ring w3\nbucket 1 ring w2\n"},
      {"divided state",
       "micro-batches 2\nstage a/0=5 a/1=3 state=optimizer : h0..a1\n"
       "stage b/0=6 b/1=2 state=optimizer : *\n"},
  };
  return kStrategies;
}

inline Plan plan_of_strategy(const std::string& strategy) {
  return plan_of(skip_model(), two_hosts(), strategy, 16);
}

/// The lines of the plan's text from the one that starts with `first` to the next section.
inline std::string section(const Plan& plan, const std::string& first) {
  const std::string text = "\n" + print_plan(plan);
  std::size_t begin = text.find("\n" + first);
  if (begin == std::string::npos) return "";
  std::size_t end = ++begin;
  do {
    end = text.find('\n', end) + 1;
  } while (end < text.size() && text[end] == ' ');
  return text.substr(begin, end - begin);
}

}  // namespace agpcs::testing
