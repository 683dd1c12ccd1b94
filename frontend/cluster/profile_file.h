// SPDX-License-Identifier: Apache-2.0
// Reads and writes profile files. docs/reference/profile_yaml.md is the reference of the format.
#pragma once

#include "ir/cluster/profile.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// The version in a profile's first line. A reader refuses any other.
inline constexpr int kProfileVersion = 1;

/// Reads a profile and checks it, including its digest. Reports all errors at once. The lists in
/// the file may be in any order; those of the result are sorted (`seal_profile`). `Profile::file`
/// is `path`.
Result<Profile> read_profile(const std::string& path);
/// Does the same from memory. `file` is the name used in messages.
Result<Profile> parse_profile(std::string_view text, const std::string& file);

/// Does the same for measurements that a program has just written, without a digest, and seals
/// them.
Result<Profile> seal_profile_text(std::string_view text, const std::string& file);

/// Returns the text of a profile file. Equal measurements give equal bytes, and `parse_profile`
/// gives back every figure exactly. Needs: `verify_profile(profile)`.
std::string print_profile(const Profile& profile);

}  // namespace agpcs
