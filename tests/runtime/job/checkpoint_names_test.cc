// SPDX-License-Identifier: Apache-2.0
// The hidden names in a folder of checkpoints: others can put nothing in their place.
#include "runtime/job/checkpoint_folder.h"
#include "tests/support/temp_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

// Whether locks are as on NFS, where only files that are open for writing can be locked.
bool locks_as_on_nfs = false;

}  // namespace

/// Takes the place of libc's.
extern "C" int flock(int fd, int operation) noexcept {
  if (locks_as_on_nfs && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) {
    errno = EBADF;
    return -1;
  }
  return static_cast<int>(syscall(SYS_flock, fd, operation));
}

namespace agpcs {
namespace {

namespace fs = std::filesystem;

class CheckpointNames : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder_); }
  void TearDown() override { locks_as_on_nfs = false; }

  const TempFolder temp_;
  const std::string folder_ = temp_ / "checkpoints", theirs_ = temp_ / "theirs";
};

TEST_F(CheckpointNames, OfWhatIsBeingWrittenCannotBeGuessed) {
  auto folder = CheckpointFolder::open(folder_, 0);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  const auto first = folder->begin(10), second = folder->begin(10);
  ASSERT_TRUE(first.ok() && second.ok());
  for (const std::string& path : {*first, *second}) {
    EXPECT_THAT(fs::path(path).filename().string(),
                ::testing::ContainsRegex("^\\.step-00000010\\.tmp-[0-9a-f]{8}$"));
  }
  EXPECT_NE(*first, *second);
  EXPECT_FALSE(fs::exists(*first));  // only one is written at a time
  EXPECT_TRUE(fs::is_directory(*second));
}

/// A link among what dead writers left.
TEST_F(CheckpointNames, ALinkAmongLeftoversIsRemovedAndNotWhatItLeadsTo) {
  fs::create_directory(theirs_);
  std::ofstream(theirs_ + "/file") << "theirs";
  const std::string planted = folder_ + "/.step-00000010.tmp-4711";
  fs::create_directory_symlink(theirs_, planted);
  auto folder = CheckpointFolder::open(folder_, 0);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_EQ(folder->take_warnings(), "");
  EXPECT_FALSE(fs::is_symlink(planted));
  EXPECT_TRUE(fs::exists(theirs_ + "/file"));
}

TEST_F(CheckpointNames, AFileIsLockedWhereFoldersCannotBe) {
  locks_as_on_nfs = true;
  auto first = CheckpointFolder::open(folder_, 0);
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->take_warnings(), "");
  EXPECT_TRUE(fs::is_regular_file(folder_ + "/.lock"));
  EXPECT_EQ(CheckpointFolder::open(folder_, 0).status().message(),
            folder_ +
                ": another run saves its checkpoints here\n"
                "  hint: give each run a folder of its own");
}

TEST_F(CheckpointNames, ALinkInPlaceOfTheLockIsRefused) {
  locks_as_on_nfs = true;
  fs::create_symlink(theirs_, folder_ + "/.lock");
  EXPECT_EQ(CheckpointFolder::open(folder_, 0).status().message(),
            folder_ + "/.lock: cannot be opened: Too many levels of symbolic links");
  EXPECT_FALSE(fs::exists(theirs_));
}

}  // namespace
}  // namespace agpcs
