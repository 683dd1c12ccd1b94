// SPDX-License-Identifier: Apache-2.0
// Operators that draw random numbers.
#include "ir/base/rng.h"
#include "runtime/torch/ops/ops.h"

#ifdef AGPCS_TORCH_CUDA
#include "runtime/torch/ops/draw.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <algorithm>
#include <cmath>
#include <optional>

namespace agpcs {
namespace {

// Returns which elements of a sample of the whole tensor the `per_sample` ones of `x` are, in their
// order.
std::vector<UnitRange> drawn_elements(const RandomSource& random, const at::Tensor& x,
                                      std::int64_t per_sample) {
  if (random.part_axis == kNone) return {{0, per_sample}};
  std::int64_t inner = 1;
  for (int axis = random.part_axis + 1; axis < x.dim(); ++axis) {
    if (axis != random.batch_axis) inner *= x.size(axis);
  }
  const std::int64_t width = x.size(random.part_axis) * inner;
  std::vector<UnitRange> drawn;
  for (std::int64_t outer = 0; width > 0 && outer < per_sample / width; ++outer) {
    const std::int64_t first = outer * random.part_of;
    for (const UnitRange& range : random.part) {
      drawn.push_back({(first + range.begin) * inner, (first + range.end) * inner});
    }
  }
  return drawn;
}

// Calls `put` with a random word for each element of `x`, sample by sample. Element e of sample s
// gets a word addressed by (seed, name, s, e), so that the words are the same for any plan.
template <typename F>
void draw_words(const OpCall& call, const at::Tensor& x, const F& put) {
  const RandomSource& random = call.random;
  const std::int64_t samples = random.batch_axis == kNone ? 1 : random.samples;
  const std::int64_t per_sample = x.numel() / std::max<std::int64_t>(samples, 1);
  const std::vector<UnitRange> drawn = drawn_elements(random, x, per_sample);
  const std::uint64_t key = stable_hash(call.op.name, random.seed);
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto sample = static_cast<std::uint64_t>(random.first_sample + s);
    for (const UnitRange& range : drawn) {
      for (std::int64_t e = range.begin; e < range.end;) {
        const auto words = philox(key, static_cast<std::uint64_t>(e / 4), sample);
        const std::int64_t end = std::min(e - e % 4 + 4, range.end);
        for (; e < end; ++e) put(words[static_cast<std::size_t>(e % 4)]);
      }
    }
  }
}

// Returns `drawn`, which is sample-major, in the layout of the data, which may have its batch axis
// elsewhere and several rows for each sample.
at::Tensor in_layout_of(const at::Tensor& drawn, const at::Tensor& x, const RandomSource& random) {
  if (random.batch_axis <= 0) return drawn.view(x.sizes()).to(x.device());
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.erase(shape.begin() + random.batch_axis);
  const std::int64_t rows = x.size(random.batch_axis) / random.samples;
  shape.insert(shape.begin(), rows);
  shape.insert(shape.begin(), random.samples);
  const at::Tensor leading = drawn.view(shape).flatten(0, 1);
  return leading.movedim(0, random.batch_axis).to(x.device());
}

#ifdef AGPCS_TORCH_CUDA
// Returns which words `x` gets, if the GPU draws them itself.
std::optional<DrawnWords> drawn_here(const OpCall& call, const at::Tensor& x) {
  const RandomSource& random = call.random;
  if (random.before_here == nullptr || random.part_axis != kNone) return std::nullopt;
  DrawnWords words;
  words.key = stable_hash(call.op.name, random.seed);
  words.samples = random.batch_axis == kNone ? 1 : random.samples;
  words.per_sample = x.numel() / std::max<std::int64_t>(words.samples, 1);
  words.first_sample = random.first_sample - random.before;
  words.before = random.before_here;
  return words;
}

cudaStream_t stream_of(const at::Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
}
#endif

constexpr double kWords = 4294967296.0;

at::Tensor keep_mask(const OpCall& call, double ratio) {
  const at::Tensor& x = call.input(0);
  const auto threshold = static_cast<std::uint64_t>(ratio * kWords);
#ifdef AGPCS_TORCH_CUDA
  if (const auto words = drawn_here(call, x)) {
    const c10::cuda::CUDAGuard guard(x.device());
    at::Tensor here = at::empty({x.numel()}, x.options().dtype(at::kBool));
    C10_CUDA_CHECK(draw_mask_on_gpu(*words, threshold, here.data_ptr<bool>(), stream_of(x)));
    return in_layout_of(here, x, call.random);
  }
#endif
  at::Tensor mask = at::empty({x.numel()}, at::kBool);
  bool* out = mask.data_ptr<bool>();
  draw_words(call, x, [&](std::uint32_t word) { *out++ = word >= threshold; });
  return in_layout_of(mask, x, call.random);
}

// Computes Dropout. Version 12 has an input for training. Without this input Dropout is the
// identity, as in ONNX's tests; the importer adds it to models that leave it out.
Tensors dropout(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const bool training =
      !call.evaluates && call.op.version >= 12 && call.has(2) && call.number(2) != 0;
  const double ratio = call.has(1) ? call.number(1) : call.op.float_attribute("ratio", 0.5);
  if (!training || ratio == 0) return {x, at::ones_like(x, at::kBool)};
  if (ratio < 0 || ratio >= 1) throw KernelError("ratio is outside [0, 1)");
  const at::Tensor mask = keep_mask(call, ratio);
  // Autograd keeps the mask as it is, a byte for each element. As in PyTorch, a dropped infinity is
  // not 0 but not a number.
  return {x.mul(mask).mul_(1.0 / (1.0 - ratio)), mask};
}

// Returns a number for each element of input 0, drawn evenly from (0, 1).
at::Tensor even_numbers(const OpCall& call) {
  const at::Tensor& x = call.input(0);
#ifdef AGPCS_TORCH_CUDA
  if (const auto words = drawn_here(call, x)) {
    const c10::cuda::CUDAGuard guard(x.device());
    at::Tensor here = at::empty({x.numel()}, x.options().dtype(at::kDouble));
    C10_CUDA_CHECK(draw_even_on_gpu(*words, here.data_ptr<double>(), stream_of(x)));
    return in_layout_of(here, x, call.random);
  }
#endif
  at::Tensor numbers = at::empty({x.numel()}, at::kDouble);
  auto* out = numbers.data_ptr<double>();
  draw_words(call, x, [&](std::uint32_t word) { *out++ = (word + 0.5) / kWords; });
  return in_layout_of(numbers, x, call.random);
}

at::ScalarType drawn_type(const OpCall& call) {
  if (!call.has_attribute("dtype")) return call.input(0).scalar_type();
  return computed_type_of_onnx(call.op.int_attribute("dtype", 1));
}

Tensors uniform_like(const OpCall& call) {
  const double low = call.op.float_attribute("low", 0), high = call.op.float_attribute("high", 1);
  return {(even_numbers(call) * (high - low) + low).to(drawn_type(call))};
}

Tensors normal_like(const OpCall& call) {
  const at::Tensor deviates = at::erfinv(even_numbers(call) * 2 - 1) * std::sqrt(2.0);
  return {(deviates * call.op.float_attribute("scale", 1) + call.op.float_attribute("mean", 0))
              .to(drawn_type(call))};
}

Tensors bernoulli(const OpCall& call) {
  return {(even_numbers(call) < call.input(0).detach()).to(drawn_type(call))};
}

constexpr KernelEntry kRandomKernels[] = {
    {"Bernoulli", bernoulli},
    {"Dropout", dropout},
    {"RandomNormalLike", normal_like},
    {"RandomUniformLike", uniform_like},
};

}  // namespace

std::span<const KernelEntry> random_kernels() { return kRandomKernels; }

}  // namespace agpcs
