// SPDX-License-Identifier: Apache-2.0
#include <agpcs/version.h>

namespace agpcs {

std::string_view version() { return AGPCS_VERSION; }

}  // namespace agpcs
