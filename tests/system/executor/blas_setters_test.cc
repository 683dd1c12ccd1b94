// SPDX-License-Identifier: Apache-2.0
// BLAS libraries with threads of their own are told how many they may use. This program has their
// functions itself, whatever BLAS is installed.
#include "runtime/torch/blas.h"
#include "runtime/torch/threads.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>

namespace {
int openblas_parallel = 0;  // 0: one thread, 1: threads of its own, 2: OpenMP
int openblas_threads = 0, mkl_threads = 0;
std::int64_t blis_threads = 0;
}  // namespace

extern "C" {
// That this program has the products, too, makes it the BLAS.
void sgemm_() {}
const char* openblas_get_config() {
  return "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH MAX_THREADS=64";
}
const char* openblas_get_corename() { return "SkylakeX"; }
int openblas_get_parallel() { return openblas_parallel; }
void openblas_set_num_threads(int count) { openblas_threads = count; }
void bli_thread_set_num_threads(std::int64_t count) { blis_threads = count; }
int MKL_Set_Num_Threads_Local(int count) {
  mkl_threads = count;
  return 0;
}
}

namespace agpcs {
namespace {

TEST(BlasSetters, EachIsToldOfTheRanksThreads) {
  openblas_parallel = 1;
  ASSERT_TRUE(use_threads(3).ok());
  EXPECT_EQ(openblas_threads, 3);
  EXPECT_EQ(blis_threads, 3);
  EXPECT_EQ(mkl_threads, 3);
}

TEST(BlasSetters, AnOpenBlasOfOpenMpTakesTheCallingThreadsNumber) {
  openblas_parallel = 2;
  openblas_threads = 7;
  ASSERT_TRUE(use_threads(3).ok());
  EXPECT_EQ(openblas_threads, 7);
}

TEST(BlasSetters, MeasuringLeavesThreadsAsTheyWere) {
  openblas_parallel = 1;
  ASSERT_TRUE(use_threads(2).ok());
  product_speed();
  EXPECT_EQ(openblas_threads, 2);
  EXPECT_EQ(blis_threads, 2);
}

TEST(BlasSetters, TheProgramIsTheBlas) {
  EXPECT_EQ(std::filesystem::path(loaded_blas().library).filename(), "executor_blas_setters_test");
}

TEST(BlasSetters, OpenBlasIsNamedWithVersionThreadsAndKernels) {
  if (loaded_blas().name.rfind("Intel", 0) == 0) GTEST_SKIP() << "this LibTorch has MKL inside";
  openblas_parallel = 2;
  EXPECT_EQ(loaded_blas().name, "OpenBLAS 0.3.21 OpenMP SkylakeX");
  openblas_parallel = 1;
  EXPECT_EQ(loaded_blas().name, "OpenBLAS 0.3.21 pthreads SkylakeX");
  openblas_parallel = 0;
  EXPECT_EQ(loaded_blas().name, "OpenBLAS 0.3.21 SkylakeX");
}

}  // namespace
}  // namespace agpcs
