// SPDX-License-Identifier: Apache-2.0
// Finds the files in a zip archive that stores them as they are, as numpy.savez writes them.
#pragma once

#include "ir/base/read_file.h"

#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// The place of a file in an archive.
struct StoredFile {
  std::string name;
  std::int64_t offset = 0, bytes = 0;
};

/// Returns the files in the order of the archive's directory. Reads the directory and the files'
/// headers, also beyond 4 GiB (Zip64); the checksums of the files are not compared. Errors: it is
/// no archive, it is truncated, or a file in it is compressed or encrypted.
Result<std::vector<StoredFile>> stored_files(const InputFile& archive);

}  // namespace agpcs
