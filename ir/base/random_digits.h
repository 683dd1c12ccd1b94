// SPDX-License-Identifier: Apache-2.0
// Names that nobody can guess.
#pragma once

#include <string>

namespace agpcs {

/// Returns eight hexadecimal digits by the kernel's random numbers, as a part of the name of a
/// temporary file or folder: nobody can put something of theirs there first. Empty: errno says why
/// there are none. (`Rng` is for decisions, which are the same in each run.)
std::string random_digits();

}  // namespace agpcs
