// SPDX-License-Identifier: Apache-2.0
#include "ir/base/read_file.h"

#include "ir/base/check.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace agpcs {
namespace {

namespace fs = std::filesystem;

constexpr InputKind kPlan = {"plan"};
constexpr InputKind kShort = {"plan", 8, "write less"};

class ReadFile : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  /// A file of 64 GiB that takes no room.
  std::string write_sparse(const std::string& name) const {
    const std::string path = write(name, "");
    fs::resize_file(path, std::uintmax_t{64} << 30);
    return path;
  }
  std::string make_pipe(const std::string& name) const {
    const std::string path = folder_ + "/" + name;
    AGPCS_CHECK(mkfifo(path.c_str(), 0600) == 0, "no pipe {}", path);
    return path;
  }
  /// Where a socket listens.
  std::string make_socket(const std::string& name, Fd& listening) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = folder_ + "/" + name;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    listening = Fd(socket(AF_UNIX, SOCK_STREAM, 0));
    const auto* const any = reinterpret_cast<const sockaddr*>(&address);
    AGPCS_CHECK(bind(listening.get(), any, sizeof address) == 0, "no socket {}", path);
    return path;
  }

  const TempFolder temp_;
  std::string folder_ = temp_.path();
};

/// The text, or the error.
std::string text_of(const Result<std::string>& read) {
  return read.ok() ? *read : read.status().message();
}
std::string refusal(const std::string& path, const InputKind& kind = kPlan) {
  const Result<std::string> read = read_file(path, kind);
  EXPECT_EQ(read.status().code(), StatusCode::kInvalidInput) << path;
  return read.status().message();
}
std::string refusal_inside(const std::string& path) {
  const Result<InputFile> file = InputFile::open(path, "file of a checkpoint");
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidInput) << path;
  return file.status().message();
}

TEST_F(ReadFile, GivesTheBytesOfAFile) {
  const std::string bytes = std::string("a\0b\r\n", 5) + std::string(300'000, 'x');
  EXPECT_EQ(text_of(read_file(write("a", bytes), kPlan)), bytes);
  EXPECT_EQ(text_of(read_file(write("empty", ""), kPlan)), "");
  fs::create_symlink("a", folder_ + "/link");
  EXPECT_EQ(text_of(read_file(folder_ + "/link", kPlan)), bytes);
}

TEST_F(ReadFile, SaysWhyItCannot) {
  EXPECT_EQ(refusal(folder_ + "/none"),
            folder_ + "/none: error: cannot be read: No such file or directory");
  EXPECT_EQ(refusal(""), ": error: cannot be read: No such file or directory");
  EXPECT_EQ(refusal(folder_), folder_ + ": error: it is a directory, not a plan");
  EXPECT_EQ(refusal_inside(folder_),
            folder_ + ": error: it is a directory, not a file of a checkpoint");
}

TEST_F(ReadFile, RefusesDevicesAndSockets) {
  EXPECT_EQ(refusal("/dev/zero"),
            "/dev/zero: error: it is a character device, not a plan\n"
            "  hint: give a file or a pipe");
  EXPECT_EQ(refusal_inside("/dev/zero"),
            "/dev/zero: error: it is a character device, not a file of a checkpoint");
  Fd listening;
  const std::string path = make_socket("socket", listening);
  EXPECT_EQ(refusal(path),
            path + ": error: it is a socket, not a plan\n  hint: give a file or a pipe");
}

// They look like empty files.
TEST_F(ReadFile, RefusesWhatTheKernelMakesUp) {
  for (const char* path : {"/proc/self/mem", "/proc/self/status"}) {
    EXPECT_EQ(refusal(path), std::string(path) +
                                 ": error: it is a file of procfs, not a plan\n"
                                 "  hint: give a file or a pipe");
    EXPECT_EQ(refusal_inside(path),
              std::string(path) + ": error: it is a file of procfs, not a file of a checkpoint");
  }
  const std::string in_sysfs = "/sys/kernel/mm/transparent_hugepage/enabled";
  if (!fs::exists(in_sysfs)) GTEST_SKIP() << in_sysfs << " is not there";
  EXPECT_EQ(refusal(in_sysfs), in_sysfs +
                                   ": error: it is a file of sysfs, not a plan\n"
                                   "  hint: give a file or a pipe");
}

TEST_F(ReadFile, RefusesAFileThatIsTooLongByItsSize) {
  const std::string path = write_sparse("sparse");
  EXPECT_EQ(refusal(path), path + ": error: it has 68719476736 bytes, a plan at most 67108864");
  EXPECT_EQ(refusal(path, kShort),
            path + ": error: it has 68719476736 bytes, a plan at most 8\n  hint: write less");
  EXPECT_EQ(text_of(read_file(write("a", "12345678"), kShort)), "12345678");
  EXPECT_EQ(refusal(write("b", "123456789"), kShort),
            folder_ + "/b: error: it has 9 bytes, a plan at most 8\n  hint: write less");
}

TEST_F(ReadFile, ReadsAPipeToItsEnd) {
  const std::string path = make_pipe("pipe"), bytes(200'000, 'y');
  auto writer = std::async(std::launch::async, [&] { std::ofstream(path) << bytes; });
  EXPECT_EQ(text_of(read_file(path, kPlan)), bytes);
}

TEST_F(ReadFile, ReadsOfAPipeNoMoreThanItMayHave) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Fd out(ends[0]), in(ends[1]);  // its writer never closes it
  ASSERT_EQ(::write(in.get(), "123456789", 9), 9);
  const std::string path = "/dev/fd/" + std::to_string(out.get());
  EXPECT_EQ(refusal(path, kShort),
            path + ": error: it has at least 9 bytes, a plan at most 8\n  hint: write less");
}

/// Standard input is `fd` meanwhile.
std::string standard_input_of(int fd, const InputKind& kind) {
  const Fd before(dup(STDIN_FILENO));
  dup2(fd, STDIN_FILENO);
  std::string text = text_of(read_standard_input(kind));
  dup2(before.get(), STDIN_FILENO);
  return text;
}

TEST_F(ReadFile, ReadsStandardInputWhateverItIs) {
  const Fd file(open(write("a", "1234").c_str(), O_RDONLY));
  EXPECT_EQ(standard_input_of(file.get(), kShort), "1234");
  const Fd endless(open("/dev/zero", O_RDONLY));
  EXPECT_EQ(standard_input_of(endless.get(), kShort),
            "-: error: it has at least 9 bytes, a plan at most 8\n  hint: write less");
}

TEST_F(ReadFile, InAFolderOfOursAPipeIsRefusedInsteadOfWaitedFor) {
  const std::string path = make_pipe("optimizer.data");
  EXPECT_EQ(refusal_inside(path), path + ": error: it is a pipe, not a file of a checkpoint");
}

TEST_F(ReadFile, AnOpenFileIsReadHereAndThere) {
  const auto file = InputFile::open(write("a", "0123456789"), "file of a checkpoint");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->size(), 10);
  std::string part(4, '\0');
  EXPECT_TRUE(file->read(3, part.data(), part.size()).ok());
  EXPECT_EQ(part, "3456");
  EXPECT_EQ(file->read(8, part.data(), part.size()).message(),
            folder_ + "/a: error: ends at 10, where 2 more bytes are expected");
  EXPECT_EQ(text_of(file->read_all(kPlan)), "0123456789");
  EXPECT_EQ(text_of(file->read_all(kShort)),
            folder_ + "/a: error: it has 10 bytes, a plan at most 8\n  hint: write less");
}

// A checkpoint's files may be longer than any memory.
TEST_F(ReadFile, AnOpenFileMayBeAsLongAsItLikes) {
  const auto file = InputFile::open(write_sparse("weights"), "file of a checkpoint");
  ASSERT_TRUE(file.ok()) << file.status().message();
  char last = 'x';
  EXPECT_TRUE(file->read((std::int64_t{64} << 30) - 1, &last, 1).ok());
  EXPECT_EQ(last, '\0');
}

}  // namespace
}  // namespace agpcs
