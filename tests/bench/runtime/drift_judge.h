// SPDX-License-Identifier: Apache-2.0
// Judges drift detection by recordings of jobs whose machines were changed.
#pragma once

#include <string>

namespace agpcs {

/// Plays the recordings in a file (tests/system/testbed/record_drift.py writes them) and prints,
/// for each kind of change, how many were named rightly and in time, and what was told where there
/// was no change. Ends the program with an error that names the line if it is not such a file.
void judge_drift(const std::string& path);

}  // namespace agpcs
