// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/slow_products.h"

#include "tools/run/processes/blas_kernels.h"

#include <gtest/gtest.h>

namespace agpcs {
namespace {

ProductSpeed reference_blas() {
  ProductSpeed speed;
  speed.measured = 4.93e9;
  speed.clock = 2.6e9;
  speed.vectors = {16, 4};
  speed.blas = "libblas.so.3.11.0 of blas";
  speed.library = "/lib/blas/libblas.so.3.11.0";
  return speed;
}

TEST(SlowProducts, AreWarnedOfWithFiguresAndTheBlas) {
  EXPECT_EQ(slow_product_warning(reference_blas()),
            "warning: matrices are multiplied at 4.93 GFLOP/s on a core that does up to 166 "
            "(2.6 GHz x 16 floats x 4 operations)\n"
            "  the BLAS that LibTorch uses is libblas.so.3.11.0 of blas "
            "(/lib/blas/libblas.so.3.11.0)\n"
            "  hint: install a fast one, OpenBLAS (Debian: libopenblas0-openmp); steps are many "
            "times as long otherwise, and so are those that a profile measures\n");
}

TEST(SlowProducts, OfOpenBlasMayBeAskedFor) {
  ProductSpeed speed = reference_blas();
  speed.blas = "OpenBLAS 0.3.21 OpenMP Prescott";
  EXPECT_NE(slow_product_warning(speed).find(
                "hint: set OPENBLAS_CORETYPE to kernels of the processor, or "
                "install a later one; steps"),
            std::string::npos);
}

TEST(SlowProducts, ABlasWithoutAFileIsNamedAlone) {
  ProductSpeed speed = reference_blas();
  speed.blas = "unknown";
  speed.library.clear();
  EXPECT_NE(slow_product_warning(speed).find("\n  the BLAS that LibTorch uses is unknown\n"),
            std::string::npos);
}

TEST(SlowProducts, ATenthOfTheCoreIsFastEnough) {
  ProductSpeed speed = reference_blas();
  speed.measured = 0.1 * 2.6e9 * 16 * 4;
  EXPECT_EQ(slow_product_warning(speed), "");
  speed.measured *= 0.999;
  EXPECT_NE(slow_product_warning(speed), "");
}

TEST(SlowProducts, AQuotaExplainsThem) {
  ProductSpeed speed = reference_blas();
  speed.quota = 0.25;  // of 166 GFLOP/s
  EXPECT_EQ(slow_product_warning(speed), "");
  speed.quota = 0.5;
  EXPECT_NE(slow_product_warning(speed), "");
  speed.quota = 8;  // more than the one core that multiplies
  EXPECT_EQ(slow_product_warning(speed), slow_product_warning(reference_blas()));
}

TEST(SlowProducts, NothingIsSaidOfWhatIsNotKnown) {
  for (double ProductSpeed::*figure : {&ProductSpeed::measured, &ProductSpeed::clock}) {
    ProductSpeed speed = reference_blas();
    speed.*figure = 0;
    EXPECT_EQ(slow_product_warning(speed), "");
  }
  ProductSpeed speed = reference_blas();
  speed.vectors = {};
  EXPECT_EQ(slow_product_warning(speed), "");
}

// What OpenBLAS 0.3.21 takes on a Xeon of 2023, which has AVX-512.
TEST(BlasKernels, OfAProcessorThatOpenBlasDoesNotKnowAreReplaced) {
  EXPECT_EQ(better_kernels("Prescott", {16, 4}), "Haswell");
  EXPECT_EQ(better_kernels("Barcelona", {8, 4}), "Haswell");
}

TEST(BlasKernels, ThatFitTheProcessorStay) {
  EXPECT_EQ(better_kernels("SkylakeX", {16, 4}), "");
  EXPECT_EQ(better_kernels("Zen", {8, 4}), "");
  EXPECT_EQ(better_kernels("Nehalem", {4, 2}), "");      // a processor of that time
  EXPECT_EQ(better_kernels("Sandybridge", {8, 2}), "");  // AVX without fused operations
  EXPECT_EQ(better_kernels("", {16, 4}), "");            // not OpenBLAS
}

}  // namespace
}  // namespace agpcs
