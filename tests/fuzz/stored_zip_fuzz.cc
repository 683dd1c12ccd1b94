// SPDX-License-Identifier: Apache-2.0
// Archives of arrays: an error that names the archive, or files that lie within it.
#include "runtime/support/stored_zip.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/temp_folder.h"

#include <fstream>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace agpcs;
  static const TempFolder folder;
  const std::string path = folder / "train.npz";
  std::ofstream(path, std::ios::binary) << fuzz::text_of(data, size);
  const Result<InputFile> archive = InputFile::open(path, ".npz file");
  fuzz::require(archive.ok(), "a regular file opens");
  const auto files = stored_files(*archive);
  if (!files.ok()) {
    const Status status = files.status();
    fuzz::require(status.code() == StatusCode::kInvalidInput, "the input is at fault",
                  status.message());
    fuzz::require(status.message().rfind(path + ": ", 0) == 0, "an error names the archive",
                  status.message());
    return 0;
  }
  for (const StoredFile& file : *files) {
    fuzz::require(file.offset >= 0 && file.bytes >= 0 && file.offset <= archive->size() &&
                      file.bytes <= archive->size() - file.offset,
                  "a file lies within its archive", file.name);
    std::string bytes(static_cast<std::size_t>(file.bytes), '\0');
    fuzz::require(archive->read(file.offset, bytes.data(), bytes.size()).ok(), "and can be read",
                  file.name);
  }
  return 0;
}
