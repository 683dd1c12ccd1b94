// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/blas.h"

#include "runtime/torch/device/clock.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <dlfcn.h>
#include <exception>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace agpcs {
namespace {

// Values of `openblas_get_parallel`.
constexpr int kOwnThreads = 1, kOpenMp = 2;

/// The library whose products LibTorch calls. We link no BLAS: the system chooses one. Its
/// functions are looked up while the process runs, in this library and in those that it needs.
/// Another BLAS may be loaded as well that multiplies nothing (for LAPACK, say).
class BlasLibrary {
 public:
  BlasLibrary() {
    Dl_info info{};
    void* const product = dlsym(RTLD_DEFAULT, "sgemm_");
    if (product == nullptr || dladdr(product, &info) == 0) return;
    there_ = true;
    file_ = info.dli_fname;
    handle_ = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);  // null: it is the program itself
  }
  BlasLibrary(const BlasLibrary&) = delete;
  BlasLibrary& operator=(const BlasLibrary&) = delete;
  ~BlasLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }

  /// Returns null if the library has no such function.
  template <typename Function>
  Function* find(const char* name) const {
    if (!there_) return nullptr;
    return reinterpret_cast<Function*>(dlsym(handle_ != nullptr ? handle_ : RTLD_DEFAULT, name));
  }
  /// Returns the path with the symbolic links of Debian's alternatives resolved; empty: not known.
  std::string path() const {
    std::error_code error;
    const std::string path = std::filesystem::canonical(file_, error).string();
    return error ? file_ : path;
  }

 private:
  bool there_ = false;
  std::string file_;
  void* handle_ = nullptr;
};

// Returns "OpenBLAS 0.3.21" for "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...".
std::string first_two_words(std::string_view text) {
  const std::size_t one = text.find(' ');
  if (one == std::string_view::npos) return std::string(text);
  return std::string(text.substr(0, text.find(' ', one + 1)));
}

std::string openblas_kernels(const BlasLibrary& blas) {
  const auto core = blas.find<const char*()>("openblas_get_corename");
  return core == nullptr ? "" : core();
}

std::string name_of_openblas(const BlasLibrary& blas, std::string_view config) {
  std::string name = first_two_words(config);
  if (const auto parallel = blas.find<int()>("openblas_get_parallel")) {
    const int threads = parallel();
    if (threads == kOwnThreads) name += " pthreads";
    if (threads == kOpenMp) name += " OpenMP";
  }
  if (const std::string kernels = openblas_kernels(blas); !kernels.empty()) name += " " + kernels;
  return name;
}

std::string name_of(const BlasLibrary& blas) {
  if (at::hasMKL()) return at::get_mkl_version();  // part of LibTorch
  if (const auto config = blas.find<const char*()>("openblas_get_config")) {
    return name_of_openblas(blas, config());
  }
  if (const auto version = blas.find<const char*()>("bli_info_get_version_str")) {
    return fmt::format("BLIS {}", version());
  }
  if (const auto version = blas.find<void(char*, int)>("MKL_Get_Version_String")) {
    char text[200] = "";
    version(text, sizeof text - 1);
    return text;
  }
  const std::filesystem::path path = blas.path();
  if (path.empty()) return "unknown";
  return fmt::format("{} of {}", path.filename().string(), path.parent_path().filename().string());
}

// Returns the seconds of one product.
double product_seconds(const at::Tensor& inputs, const at::Tensor& weights) {
  const double begin = busy_seconds_of(at::kCPU);
  at::mm(inputs, weights.t());
  return busy_seconds_of(at::kCPU) - begin;
}

double best_product_seconds(std::int64_t side) {
  constexpr int kProducts = 5;
  constexpr double kEnough = 0.02;  // seconds
  const at::NoGradGuard guard;
  const at::Tensor inputs = at::full({side, side}, 0.5), weights = at::full({side, side}, 0.25);
  product_seconds(inputs, weights);  // the first one detects the processor and allocates
  double best = product_seconds(inputs, weights), all = best;
  for (int i = 1; i < kProducts && all < kEnough; ++i) {
    const double seconds = product_seconds(inputs, weights);
    best = std::min(best, seconds);
    all += seconds;
  }
  return best;
}

}  // namespace

Blas loaded_blas() {
  const BlasLibrary blas;
  return {name_of(blas), blas.path(), at::hasMKL() ? "" : openblas_kernels(blas)};
}

void use_blas_threads(int count) {
  const BlasLibrary blas;
  if (const auto set = blas.find<void(int)>("openblas_set_num_threads")) {
    // If built with OpenMP, it takes LibTorch's number for the calling thread at each product.
    // Setting another number would free memory that products of other ranks' threads use.
    const auto parallel = blas.find<int()>("openblas_get_parallel");
    if (parallel == nullptr || parallel() != kOpenMp) set(count);
  }
  if (const auto set = blas.find<void(std::int64_t)>("bli_thread_set_num_threads")) set(count);
  if (const auto set = blas.find<int(int)>("MKL_Set_Num_Threads_Local")) set(count);
}

double product_speed() {
  constexpr std::int64_t kSide = 192;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  use_blas_threads(1);
  double seconds = 0;
  try {
    seconds = best_product_seconds(kSide);
  } catch (const std::exception&) {  // no memory for it
  }
  at::set_num_threads(threads);
  use_blas_threads(threads);
  return seconds > 0 ? 2.0 * kSide * kSide * kSide / seconds : 0;
}

}  // namespace agpcs
