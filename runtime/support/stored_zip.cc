// SPDX-License-Identifier: Apache-2.0
// The format: PKWARE's APPNOTE.TXT, 6.3.10. At the end of an archive lies a record that says where
// the directory is; an entry of the directory says where the header of its file is, and the file
// follows its header.
#include "runtime/support/stored_zip.h"

#include "ir/base/little_endian.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace agpcs {
namespace {

constexpr std::uint64_t kInZip64 = 0xffffffff;  // a field of 4 bytes that has its value elsewhere
constexpr std::uint64_t kMostDirectory = std::uint64_t{64} << 20;

// Returns the little-endian number of `bytes` bytes at `at`, which lies in `text`.
std::uint64_t number(std::string_view text, std::size_t at, std::size_t bytes) {
  return little_endian(text.substr(at, bytes));
}

struct Directory {
  std::uint64_t offset = 0, bytes = 0, entries = 0;
};

class ArchiveReader {
 public:
  explicit ArchiveReader(const InputFile& archive)
      : archive_(archive), size_(static_cast<std::uint64_t>(archive.size())) {}

  Result<std::vector<StoredFile>> run() {
    AGPCS_TRY(const Directory directory, find_directory());
    if (directory.bytes > kMostDirectory) {
      return error(
          fmt::format("its directory has {} bytes, more than {}", directory.bytes, kMostDirectory));
    }
    AGPCS_TRY(const std::string text, part(directory.offset, directory.bytes));
    std::vector<StoredFile> files;
    std::string_view rest = text;
    for (std::uint64_t i = 0; i < directory.entries; ++i) {
      AGPCS_TRY(StoredFile file, next_file(rest));
      files.push_back(std::move(file));
    }
    return files;
  }

 private:
  Status error(const std::string& what) const {
    return invalid_input(fmt::format("{}: {}", archive_.path(), what));
  }
  Status damaged() const { return error("the archive is truncated or damaged"); }

  // Reads a part of the archive, if it has it.
  Result<std::string> part(std::uint64_t offset, std::uint64_t bytes) const {
    if (offset > size_ || bytes > size_ - offset) return damaged();
    std::string text(bytes, '\0');
    AGPCS_RETURN_IF_ERROR(archive_.read(static_cast<std::int64_t>(offset), text.data(), bytes));
    return text;
  }

  Result<Directory> find_directory() const {
    constexpr std::size_t kRecord = 22, kMostComment = 0xffff, kLocator = 20;
    const std::uint64_t read = std::min<std::uint64_t>(size_, kRecord + kMostComment + kLocator);
    AGPCS_TRY(const std::string end, part(size_ - read, read));
    const std::size_t at = end.rfind("PK\5\6");
    if (at == std::string::npos || end.size() - at < kRecord) {
      return error("not a .npz file\n  hint: write it with numpy.savez");
    }
    const Directory found{number(end, at + 16, 4), number(end, at + 12, 4),
                          number(end, at + 10, 2)};
    const bool in_zip64 =
        found.offset == kInZip64 || found.bytes == kInZip64 || found.entries == 0xffff;
    if (!in_zip64) return found;
    if (at < kLocator || number(end, at - kLocator, 4) != 0x07064b50) return damaged();
    AGPCS_TRY(const std::string record, part(number(end, at - kLocator + 8, 8), 56));
    if (number(record, 0, 4) != 0x06064b50) return damaged();
    return Directory{number(record, 48, 8), number(record, 40, 8), number(record, 32, 8)};
  }

  // Takes an entry from the front of the directory.
  Result<StoredFile> next_file(std::string_view& rest) const {
    constexpr std::size_t kEntry = 46;
    if (rest.size() < kEntry || number(rest, 0, 4) != 0x02014b50) return damaged();
    const std::size_t name = number(rest, 28, 2), extra = number(rest, 30, 2);
    const std::size_t length = kEntry + name + extra + number(rest, 32, 2);
    if (rest.size() < length) return damaged();
    const std::string_view entry = rest.substr(0, length);
    rest.remove_prefix(length);
    StoredFile file{std::string(entry.substr(kEntry, name)), 0, 0};
    const std::uint64_t flags = number(entry, 8, 2), method = number(entry, 10, 2);
    if ((flags & 1) != 0 || method != 0) {
      return error(
          fmt::format("'{}' is {}\n  hint: write it with numpy.savez, which does not compress",
                      file.name, method != 0 ? "compressed" : "encrypted"));
    }
    std::uint64_t bytes = number(entry, 24, 4), header = number(entry, 42, 4);
    AGPCS_RETURN_IF_ERROR(
        take_zip64(entry.substr(kEntry + name, extra), {&bytes, number(entry, 20, 4), &header}));
    AGPCS_RETURN_IF_ERROR(place(header, bytes, file));
    return file;
  }

  // The fields of an entry that may be in its extra field, in this order.
  struct LongFields {
    std::uint64_t* bytes;
    std::uint64_t compressed;
    std::uint64_t* header;
  };

  Status take_zip64(std::string_view extra, const LongFields& fields) const {
    std::string_view values;
    while (extra.size() >= 4) {
      const std::size_t length = number(extra, 2, 2);
      if (extra.size() - 4 < length) return damaged();
      if (number(extra, 0, 2) == 1) values = extra.substr(4, length);
      extra.remove_prefix(4 + length);
    }
    const auto take = [&](std::uint64_t& field) {
      if (field != kInZip64) return true;
      if (values.size() < 8) return false;
      field = number(values, 0, 8);
      values.remove_prefix(8);
      return true;
    };
    std::uint64_t compressed = fields.compressed;
    const bool whole = take(*fields.bytes) && take(compressed) && take(*fields.header);
    if (!whole || compressed != *fields.bytes) return damaged();
    return {};
  }

  // Finds the file behind its own header.
  Status place(std::uint64_t header, std::uint64_t bytes, StoredFile& file) const {
    constexpr std::uint64_t kHeader = 30;
    AGPCS_TRY(const std::string text, part(header, kHeader));
    if (number(text, 0, 4) != 0x04034b50) return damaged();
    const std::uint64_t begin = header + kHeader + number(text, 26, 2) + number(text, 28, 2);
    if (begin > size_ || bytes > size_ - begin) return damaged();
    file.offset = static_cast<std::int64_t>(begin);
    file.bytes = static_cast<std::int64_t>(bytes);
    return {};
  }

  const InputFile& archive_;
  std::uint64_t size_;
};

}  // namespace

Result<std::vector<StoredFile>> stored_files(const InputFile& archive) {
  return ArchiveReader(archive).run();
}

}  // namespace agpcs
