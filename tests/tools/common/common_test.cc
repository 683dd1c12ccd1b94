// SPDX-License-Identifier: Apache-2.0
#include "tools/common/common.h"

#include "ir/base/check.h"
#include "tests/support/temp_folder.h"
#include "tools/common/interrupt.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

namespace agpcs {
namespace {

namespace fs = std::filesystem;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// In a folder that goes away with the test.
class WriteFile : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ostringstream out, err;
    return write_file(path(name), text, {out, err}).message();
  }

  const TempFolder temp_;
  std::string folder_ = temp_.path();
};

TEST_F(WriteFile, ReplacesAFileAndLeavesNothingElse) {
  EXPECT_EQ(write("a.plan", "old"), "");
  EXPECT_EQ(write("a.plan", "new"), "");
  EXPECT_EQ(contents(path("a.plan")), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(WriteFile, FollowsASymbolicLink) {
  EXPECT_EQ(write("a.plan", "old"), "");
  fs::create_symlink("a.plan", path("link.plan"));
  EXPECT_EQ(write("link.plan", "new"), "");
  EXPECT_TRUE(fs::is_symlink(path("link.plan")));
  EXPECT_EQ(contents(path("a.plan")), "new");
}

/// As for /dev/null, which a rename would replace by a file where root compiles.
TEST_F(WriteFile, WritesToAPipeInsteadOfReplacingIt) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  EXPECT_EQ(write("pipe", "plan"), "");
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  char text[8] = {};
  EXPECT_EQ(read(reader, text, sizeof text), 4);
  EXPECT_STREQ(text, "plan");
  close(reader);
}

/// As for /dev/stdout, whose file was removed meanwhile.
TEST_F(WriteFile, WritesToAnOpenFileThatHasNoNameAnyMore) {
  const int file = open(path("gone").c_str(), O_RDWR | O_CREAT, 0600);
  fs::remove(path("gone"));
  fs::create_symlink(fmt::format("/proc/self/fd/{}", file), path("link"));
  EXPECT_EQ(write("link", "plan"), "");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  char text[8] = {};
  EXPECT_EQ(pread(file, text, sizeof text, 0), 4);
  EXPECT_STREQ(text, "plan");
  close(file);
}

/// Under the name that a former version wrote to first: of the file and of the process.
TEST_F(WriteFile, LeavesAloneWhatAnotherUserPutInItsWay) {
  std::ofstream(path("theirs")) << "theirs";
  const std::string planted = fmt::format("a.plan.{}.tmp", getpid());
  fs::create_symlink("theirs", path(planted));
  EXPECT_EQ(write("a.plan", "plan"), "");
  EXPECT_EQ(contents(path("theirs")), "theirs");
  EXPECT_TRUE(fs::is_symlink(path(planted)));
  EXPECT_FALSE(fs::is_symlink(path("a.plan")));
  EXPECT_EQ(contents(path("a.plan")), "plan");

  fs::remove(path(planted));
  std::ofstream(path(planted)) << "theirs";
  EXPECT_EQ(write("a.plan", "new"), "");
  EXPECT_EQ(contents(path(planted)), "theirs");
  EXPECT_EQ(contents(path("a.plan")), "new");
}

/// The names under which files appeared in a folder, in order.
class Watch {
 public:
  explicit Watch(const std::string& folder) : events_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    AGPCS_CHECK(inotify_add_watch(events_, folder.c_str(), IN_CREATE) >= 0, "no watch");
  }
  ~Watch() { close(events_); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  std::vector<std::string> created() const {
    alignas(inotify_event) char buffer[4096];
    const ssize_t size = read(events_, buffer, sizeof buffer);
    std::vector<std::string> names;
    for (ssize_t at = 0; at < size;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      names.emplace_back(event->name);
      at += static_cast<ssize_t>(sizeof *event + event->len);
    }
    return names;
  }

 private:
  int events_;
};

TEST_F(WriteFile, WritesFirstUnderANameThatNobodyCanKnow) {
  const Watch watch(folder_);
  EXPECT_EQ(write("a.plan", "one"), "");
  EXPECT_EQ(write("a.plan", "two"), "");
  const std::vector<std::string> names = watch.created();
  ASSERT_EQ(names.size(), 2U);
  for (const std::string& name : names) {
    EXPECT_THAT(name, ::testing::ContainsRegex("^a\\.plan\\.[0-9a-f]{8}\\.tmp$"));
  }
  EXPECT_NE(names[0], names[1]);
}

TEST_F(WriteFile, TakesItsPermissionsFromTheUmask) {
  const mode_t before = umask(027);
  EXPECT_EQ(write("a.plan", "plan"), "");
  umask(before);
  EXPECT_EQ(static_cast<int>(fs::status(path("a.plan")).permissions()), 0640);
}

TEST_F(WriteFile, LeavesNothingWhereTheFileCannotTakeItsName) {
  const std::string name(250, 'a');  // with a suffix it is too long
  EXPECT_EQ(write(name, "plan"), path(name) + ": error: cannot be written: File name too long");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(WriteFile, MakesANewFileOnlyWhereThereIsNone) {
  fs::create_symlink("nowhere", path("link"));
  EXPECT_EQ(write_new_file(path("link"), "new"), std::errc::file_exists);
  EXPECT_FALSE(fs::exists(path("nowhere")));
  EXPECT_EQ(write_new_file(path("file"), "one"), std::error_code());
  EXPECT_EQ(write_new_file(path("file"), "two"), std::errc::file_exists);
  EXPECT_EQ(contents(path("file")), "one");
}

TEST_F(WriteFile, ReplacesALinkWhereNoUserNamedIt) {
  std::ofstream(path("theirs")) << "theirs";
  fs::create_symlink("theirs", path("link"));
  EXPECT_EQ(replace_file(path("link"), "new"), std::error_code());
  EXPECT_FALSE(fs::is_symlink(path("link")));
  EXPECT_EQ(contents(path("link")), "new");
  EXPECT_EQ(contents(path("theirs")), "theirs");
}

TEST_F(WriteFile, SaysWhyItCannot) {
  EXPECT_EQ(write("nowhere/a.plan", ""),
            path("nowhere/a.plan") + ": error: cannot be written: No such file or directory");
  EXPECT_EQ(write("", ""), path("") + ": error: cannot be written: Is a directory");
}

TEST(RunCommand, FailsWhenStandardOutputTookNotAll) {
  char name[] = "agpcs-test";
  char* argv[] = {name};
  const auto command = [](const std::vector<std::string>&, Console console) {
    console.out << "plan";
    return 0;
  };
  std::cout.setstate(std::ios::badbit);
  ::testing::internal::CaptureStderr();
  const int code = run_command("agpcs-test", 1, argv, command);
  std::cout.clear();
  EXPECT_EQ(code, 1);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "agpcs-test: error: standard output cannot be written\n");
}

void send(int signal) { kill(getpid(), signal); }

// False when it is not set within a minute.
bool is_set(const InterruptFlag& interrupt) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!interrupt.flag() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return interrupt.flag();
}

bool is_blocked(int signal) {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

// What a shell's & or nohup(1) had the tests ignore.
void heed(std::initializer_list<int> signals) {
  for (const int signal : signals) std::signal(signal, SIG_DFL);
}

TEST(InterruptFlag, TheFirstSignalSetsItAndTheSecondEndsTheProcess) {
  heed({SIGINT, SIGTERM});
  for (const int signal : {SIGINT, SIGTERM}) {
    {
      const InterruptFlag interrupt;
      EXPECT_FALSE(interrupt.flag());
      send(signal);
      EXPECT_TRUE(is_set(interrupt));
      send(signal);  // at once: the same request, by way of the process group
    }
    EXPECT_FALSE(is_blocked(signal));
    EXPECT_FALSE(InterruptFlag().flag()) << "a new one is not set";
    EXPECT_EXIT(
        {
          const InterruptFlag interrupt;
          send(signal);
          is_set(interrupt);
          std::this_thread::sleep_for(std::chrono::milliseconds(250));
          send(signal);
          pause();
        },
        testing::KilledBySignal(signal), "");
  }
}

TEST(InterruptFlag, IsNotSetByWhatTheProcessWasStartedToIgnore) {
  heed({SIGINT, SIGTERM});
  for (const int ignored : {SIGINT, SIGTERM}) {
    const auto before = std::signal(ignored, SIG_IGN);
    {
      const InterruptFlag interrupt;
      send(ignored);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_FALSE(interrupt.flag());
      send(ignored == SIGINT ? SIGTERM : SIGINT);
      EXPECT_TRUE(is_set(interrupt));
    }
    std::signal(ignored, before);
  }
}

TEST(InterruptFlag, ASecondHangupIsNoSecondRequest) {
  heed({SIGHUP});
  const InterruptFlag interrupt({SIGHUP});
  for (int i = 0; i < 2; ++i) {
    send(SIGHUP);
    EXPECT_TRUE(is_set(interrupt));
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
}

TEST(InterruptFlag, ASignalBeforeItIsArmedEndsTheProcess) {
  EXPECT_EXIT(
      {
        const InterruptFlag interrupt({SIGTERM}, InterruptFlag::Arm::kLater);
        send(SIGTERM);
        pause();
      },
      testing::KilledBySignal(SIGTERM), "");
  InterruptFlag interrupt({SIGTERM}, InterruptFlag::Arm::kLater);
  interrupt.arm();
  send(SIGTERM);
  EXPECT_TRUE(is_set(interrupt));
}

// METIS installs a handler of its own for SIGTERM while it runs.
TEST(InterruptFlag, IsSetWhateverHandlerThereIs) {
  const InterruptFlag interrupt;
  const auto before = std::signal(SIGTERM, [](int) { _exit(3); });
  send(SIGTERM);
  EXPECT_TRUE(is_set(interrupt));
  std::signal(SIGTERM, before);
}

}  // namespace
}  // namespace agpcs
