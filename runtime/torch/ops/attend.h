// SPDX-License-Identifier: Apache-2.0
// attend: attention whose scores are never in memory as a whole.
#pragma once

#include <ATen/ATen.h>

namespace agpcs {

struct AttendOptions {
  double scale = 1;
  double cap = 0;        ///< scores become cap x tanh(score / cap); 0: they stay
  bool causal = false;   ///< hides the keys that come after the query; there is no bias then
  bool precise = false;  ///< the softmax is computed in fp64
};

/// Returns softmax(scale x q k^T + bias) v for queries, keys and values of shape [batch, heads,
/// sequence, head size]. Each head of keys and values serves a group of heads of queries. `bias`
/// may be undefined; it has up to four axes and is broadcast to the scores. Takes a kernel of
/// LibTorch where that has one which keeps no scores. Elsewhere blocks of scores that fit in a
/// cache are computed one after the other, and once more in the backward pass.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& bias, const AttendOptions& options);

}  // namespace agpcs
