// SPDX-License-Identifier: Apache-2.0
// The template of `agpcs-plan report`, report.html, which the build embeds.
#pragma once

#include <string_view>

namespace agpcs {

extern const std::string_view kReportPage;

}  // namespace agpcs
