// SPDX-License-Identifier: Apache-2.0
#include "ir/base/read_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <system_error>

namespace agpcs {
namespace {

enum class Pipes { kRead, kRefuse };

// The system's description of a path or a descriptor.
struct Found {
  struct stat info {};
  struct statfs system {};
};

Status unreadable(const std::string& path, int error) {
  return invalid_input(
      fmt::format("{}: error: cannot be read: {}", path, std::generic_category().message(error)));
}

// Names the file system of files that look regular but whose size is 0 whatever they contain.
const char* made_by_kernel(const struct statfs& system) {
  switch (static_cast<unsigned long>(system.f_type)) {
    case PROC_SUPER_MAGIC:
      return "a file of procfs";
    case SYSFS_MAGIC:
      return "a file of sysfs";
    case DEBUGFS_MAGIC:
      return "a file of debugfs";
    case TRACEFS_MAGIC:
      return "a file of tracefs";
    case SECURITYFS_MAGIC:
      return "a file of securityfs";
    case CGROUP_SUPER_MAGIC:
    case CGROUP2_SUPER_MAGIC:
      return "a file of cgroupfs";
    default:
      return nullptr;
  }
}

// Returns what makes the file unreadable ("a directory"), or nullptr if it can be read.
const char* obstacle(const Found& found, Pipes pipes) {
  const mode_t mode = found.info.st_mode;
  if (S_ISREG(mode)) return made_by_kernel(found.system);
  if (S_ISFIFO(mode)) return pipes == Pipes::kRead ? nullptr : "a pipe";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  return "a socket";
}

Status check(const std::string& path, const Found& found, std::string_view noun, Pipes pipes) {
  const char* const what = obstacle(found, pipes);
  if (what == nullptr) return {};
  const bool hint = pipes == Pipes::kRead && !S_ISDIR(found.info.st_mode);
  return invalid_input(fmt::format("{}: error: it is {}, not a {}{}", path, what, noun,
                                   hint ? "\n  hint: give a file or a pipe" : ""));
}

struct Opened {
  Fd fd;
  std::int64_t size = 0;  // 0: unknown, because it is a pipe
};

// Checks the file before opening it, because opening a device may already have an effect and
// opening a pipe waits for its writer. It checks again afterwards, because another file may have
// taken the path by then.
Result<Opened> open_input(const std::string& path, std::string_view noun, Pipes pipes) {
  Found found;
  if (stat(path.c_str(), &found.info) != 0 || statfs(path.c_str(), &found.system) != 0) {
    return unreadable(path, errno);
  }
  AGPCS_RETURN_IF_ERROR(check(path, found, noun, pipes));
  const int waits = pipes == Pipes::kRead ? 0 : O_NONBLOCK;
  Opened opened;
  do {
    opened.fd = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | waits));
  } while (opened.fd.get() < 0 && errno == EINTR);
  if (opened.fd.get() < 0 || fstat(opened.fd.get(), &found.info) != 0 ||
      fstatfs(opened.fd.get(), &found.system) != 0) {
    return unreadable(path, errno);
  }
  AGPCS_RETURN_IF_ERROR(check(path, found, noun, pipes));
  if (S_ISREG(found.info.st_mode)) opened.size = found.info.st_size;
  return opened;
}

Status too_long(const std::string& path, std::int64_t bytes, bool more, const InputKind& kind) {
  return invalid_input(fmt::format("{}: error: it has {}{} bytes, a {} at most {}{}{}", path,
                                   more ? "at least " : "", bytes, kind.noun, kind.most_bytes,
                                   kind.hint.empty() ? "" : "\n  hint: ", kind.hint));
}

// Reads to the end of the file. `size` only says how much memory to begin with, because files that
// a network or a program serves may report size 0.
Result<std::string> read_to_end(int fd, const std::string& path, std::int64_t size,
                                const InputKind& kind) {
  if (size > kind.most_bytes) return too_long(path, size, false, kind);
  constexpr std::size_t kLeast = std::size_t{1} << 16;
  const auto most = static_cast<std::size_t>(kind.most_bytes) +
                    1;  // one byte more shows that the file is too long
  std::string text(std::min(std::max(static_cast<std::size_t>(size) + 1, kLeast), most), '\0');
  std::size_t have = 0;
  while (true) {
    if (have == most) return too_long(path, kind.most_bytes + 1, true, kind);
    if (have == text.size()) text.resize(std::min(2 * have, most));
    const ssize_t count = ::read(fd, text.data() + have, text.size() - have);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return unreadable(path, errno);
    if (count == 0) break;
    have += static_cast<std::size_t>(count);
  }
  text.resize(have);
  return text;
}

}  // namespace

Result<std::string> read_file(const std::string& path, const InputKind& kind) {
  AGPCS_TRY(const Opened opened, open_input(path, kind.noun, Pipes::kRead));
  return read_to_end(opened.fd.get(), path, opened.size, kind);
}

Result<std::string> read_standard_input(const InputKind& kind) {
  return read_to_end(STDIN_FILENO, "-", 0, kind);
}

Result<InputFile> InputFile::open(const std::string& path, std::string_view noun) {
  AGPCS_TRY(Opened opened, open_input(path, noun, Pipes::kRefuse));
  return InputFile(path, std::move(opened.fd), opened.size);
}

Status InputFile::read(std::int64_t offset, void* out, std::size_t bytes) const {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t count = ::pread(fd_.get(), to, bytes, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return unreadable(path_, errno);
    if (count == 0) {
      return invalid_input(fmt::format("{}: error: ends at {}, where {} more bytes are expected",
                                       path_, offset, bytes));
    }
    to += count;
    offset += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return {};
}

Result<std::string> InputFile::read_all(const InputKind& kind) const {
  if (size_ > kind.most_bytes) return too_long(path_, size_, false, kind);
  std::string text(static_cast<std::size_t>(size_), '\0');
  AGPCS_RETURN_IF_ERROR(read(0, text.data(), text.size()));
  return text;
}

}  // namespace agpcs
