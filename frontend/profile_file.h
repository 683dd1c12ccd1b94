// SPDX-License-Identifier: Apache-2.0
// Profile files (docs/profile_yaml.md is the reference of the format).
#pragma once

#include "ir/profile.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// The version in a profile's first line. A reader refuses any other.
inline constexpr int kProfileVersion = 1;

/// Reads and checks a profile, its digest too: all errors at once. Lists may be in any order in
/// the file; the profile's are sorted (`seal_profile`). `Profile::file` is `path`.
Result<Profile> read_profile(const std::string& path);
/// The same from memory; `file` is the name used in messages.
Result<Profile> parse_profile(std::string_view text, const std::string& file);

/// The text of a profile file: equal measurements give equal bytes, and `parse_profile` gives back
/// every figure exactly. Needs: `verify_profile(profile)`.
std::string print_profile(const Profile& profile);

}  // namespace agpcs
