// SPDX-License-Identifier: Apache-2.0
// The source that CMake wants of the target that compiles the header (cmake/AgpcsLibrary.cmake).
#include "tests/support/precompiled.h"
