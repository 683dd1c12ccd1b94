// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace agpcs {

/// The token of jobs of tests: as long as a token has to be.
inline constexpr char kJobToken[] = "5ec2e75ec2e75ec2e75ec2e75ec2e70f";
/// One that is as long, and wrong.
inline constexpr char kWrongToken[] = "9e559e559e559e559e559e559e559e55";

}  // namespace agpcs
