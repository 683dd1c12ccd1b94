// SPDX-License-Identifier: Apache-2.0
// Has OpenBLAS multiply with the vectors of this processor. OpenBLAS knows processors by their
// model numbers; for one that is newer than itself it takes kernels of 2004, ten times as slow.
#pragma once

#include "tools/run/processes/machine.h"

#include <string>

namespace agpcs {

/// Returns the kernels, a value of OpenBLAS's variable OPENBLAS_CORETYPE, that a processor with
/// `vectors` should have in place of `kernels`. Empty: those are good, or there is no OpenBLAS.
std::string better_kernels(const std::string& kernels, const VectorUnit& vectors);

/// Starts this program anew, with its arguments `argv`, if OpenBLAS should have better kernels,
/// which it chooses when it is loaded. Does nothing if OPENBLAS_CORETYPE is set: the user chose.
void use_better_kernels(char** argv);

}  // namespace agpcs
