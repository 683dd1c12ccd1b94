// SPDX-License-Identifier: Apache-2.0
// The manifest's text, and the folder of checkpoints through all kinds of harm.
#include "runtime/job/checkpoint.h"

#include "ir/base/rng.h"
#include "runtime/bootstrap/socket.h"
#include "runtime/job/checkpoint_folder.h"
#include "tests/support/temp_folder.h"

#include <agpcs/digest.h>
#include <agpcs/plan.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <linux/fs.h>
#include <optional>
#include <signal.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace agpcs {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

Checkpoint example() {
  Checkpoint c;
  c.made_by = "0.1.0";
  c.step = 100;
  c.batch = 32;
  c.seed = 18446744073709551615U;
  c.model_digest = digest_of("model");
  c.plan_digest = digest_of("plan");
  c.files = {{kModelFile, 10, digest_of("a")},
             {kModelDataFile, 4096 + 40, digest_of("b")},
             {kOptimizerFile, 80, digest_of("c")}};
  c.items = {{{"fc1 weight", "first", 10}, kOptimizerFile, 0},
             {{"fc1 weight", "second", 10}, kOptimizerFile, 40},
             {{"fc1 weight", "value", 10}, kModelDataFile, 4096}};
  return c;
}

TEST(CheckpointText, IsOneLineForEachThing) {
  const std::string text = print_checkpoint(example());
  EXPECT_EQ(text.substr(0, text.rfind("end ")),
            "agpcs-checkpoint 1\n"
            "made-by agpcs=0.1.0\n"
            "training step=100 batch=32 seed=18446744073709551615\n"
            "model digest=" +
                digest_of("model") +
                "\n"
                "plan digest=" +
                digest_of("plan") +
                "\n"
                "file model.onnx bytes=10 digest=" +
                digest_of("a") +
                "\n"
                "file model.onnx.data bytes=4136 digest=" +
                digest_of("b") +
                "\n"
                "file optimizer.data bytes=80 digest=" +
                digest_of("c") +
                "\n"
                "state \"fc1 weight\" slot=first elements=10 file=optimizer.data offset=0\n"
                "state \"fc1 weight\" slot=second elements=10 file=optimizer.data offset=40\n"
                "state \"fc1 weight\" slot=value elements=10 file=model.onnx.data offset=4096\n");
  EXPECT_EQ(text.substr(text.rfind("end ")),
            "end digest=" + digest_of(text.substr(0, text.rfind("end "))) + "\n");
}

TEST(CheckpointText, IsReadAsItWasWritten) {
  const auto read = parse_checkpoint(print_checkpoint(example()), "c.txt");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, example());
}

TEST(CheckpointText, HasTheBestResultSoFarIfThereIsOne) {
  Checkpoint best = example();
  best.best = BestResult{80, 0.1};
  const std::string text = print_checkpoint(best);
  EXPECT_THAT(text, HasSubstr("\nbest step=80 loss=0.1\nmodel digest="));
  const auto read = parse_checkpoint(text, "c.txt");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, best);
}

// With the right digest at its end.
std::string sealed(std::string text) {
  text.resize(std::min(text.size(), text.rfind("end digest=")));
  return text + "end digest=" + digest_of(text) + "\n";
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = print_checkpoint(example());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return sealed(text.replace(at, from.size(), to));
}

std::string refusal(const std::string& text) {
  const auto read = parse_checkpoint(text, "c.txt");
  return read.ok() ? "accepted" : read.status().message();
}

TEST(CheckpointText, RefusesEveryChangeOfAByte) {
  const std::string text = print_checkpoint(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const char c : {static_cast<char>(text[i] ^ 1), '\n', ' '}) {
      std::string changed = text;
      changed[i] = c;
      if (changed == text) continue;
      EXPECT_NE(refusal(changed), "accepted") << i;
    }
    EXPECT_NE(refusal(text.substr(0, i)), "accepted") << i;
    EXPECT_NE(refusal(std::string(text).erase(i, 1)), "accepted") << i;
  }
}

TEST(CheckpointText, SaysWhatIsWrongWithLineBothValuesAndAHint) {
  const std::string text = print_checkpoint(example());
  EXPECT_EQ(refusal(""),
            "c.txt:1: error: the file is empty\n"
            "  hint: a manifest begins with the line 'agpcs-checkpoint 1'");
  EXPECT_THAT(refusal("agpcs-checkpoint 2\nend\n"),
              HasSubstr("version 2 of the format, this program knows version 1"));
  EXPECT_THAT(refusal(text.substr(0, text.size() / 2)), HasSubstr("is the file truncated?"));
  EXPECT_THAT(refusal(text.substr(0, text.rfind("end "))),
              HasSubstr("c.txt:11: error: the last line is not 'end'"));
  std::string other = text;
  other[other.find("batch=3") + 6] = '4';
  EXPECT_THAT(refusal(other), HasSubstr("the digest is sha256:"));
  EXPECT_THAT(refusal(with("batch=32", "batch=0")), HasSubstr("batch is 0, and at least 1"));
  EXPECT_THAT(refusal(with("step=100", "step=-1")), HasSubstr("step is -1, and at least 0"));
  EXPECT_THAT(refusal(with("step=100", "step=0100")), HasSubstr("in other words"));
  EXPECT_THAT(refusal(with("file model.onnx ", "file model.omnx ")),
              HasSubstr("c.txt:6:6: error: file 'model.omnx', where 'model.onnx' is expected"));
  EXPECT_THAT(refusal(with("file=model.onnx.data", "file=../passwd")),
              HasSubstr("state is in '../passwd', not in model.onnx.data or optimizer.data"));
  EXPECT_THAT(refusal(with("offset=4096", "offset=4097")),
              HasSubstr("c.txt:11: error: 40 bytes from 4097 on, but model.onnx.data has 4136"));
  EXPECT_THAT(
      refusal(with("offset=40\n", "offset=36\n")),
      HasSubstr("begins at 36, where the item before it in optimizer.data goes on until 40"));
  EXPECT_THAT(refusal(with("slot=second", "slot=first")),
              HasSubstr("'first' of 'fc1 weight' is out of order, or there twice"));
  EXPECT_THAT(refusal(with("elements=10 file=model", "elements=9223372036854775807 file=model")),
              HasSubstr("elements is 9223372036854775807, and at most 281474976710656"));
  EXPECT_THAT(refusal(with("plan digest=sha256:", "plan digest=sha512:")),
              HasSubstr("not sha256: and 64 hexadecimal digits"));
}

class CheckpointFolders : public ::testing::Test {
 protected:
  void TearDown() override { chmod(folder_.c_str(), 0755); }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  const TempFolder temp_;
  const std::string folder_ = temp_ / "checkpoints";
};

// Writes a small checkpoint whose contents follow from its step.
Status write_one(CheckpointFolder& folder, std::int64_t step, int keep = 2,
                 const std::optional<BestResult>& best = {}) {
  AGPCS_TRY(const std::string to, folder.begin(step));
  Checkpoint c = example();
  c.step = step;
  c.best = best;
  c.files.clear();
  for (const auto& [name, size] : {std::pair<const char*, std::size_t>{kModelFile, 10},
                                   {kModelDataFile, 300000},
                                   {kOptimizerFile, 80}}) {
    AGPCS_TRY(auto file, CheckpointFileWriter::create(to + "/" + name));
    const std::string bytes(size, static_cast<char>('a' + step % 26));
    for (std::size_t at = 0; at < size; at += 70000) {
      AGPCS_RETURN_IF_ERROR(file.write(bytes.data() + at, std::min<std::size_t>(70000, size - at)));
    }
    AGPCS_TRY(CheckpointFile written, file.finish());
    c.files.push_back(std::move(written));
  }
  return folder.commit(step, c, keep);
}

void write_all(const std::string& path, const std::vector<std::int64_t>& steps, int keep = 2) {
  auto folder = CheckpointFolder::open(path, 0);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  for (const std::int64_t step : steps) {
    const Status written = write_one(*folder, step, keep);
    ASSERT_TRUE(written.ok()) << written.message();
  }
}

TEST_F(CheckpointFolders, KeepTheBestBesideTheLast) {
  auto folder = CheckpointFolder::open(folder_, 0);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  for (const std::int64_t step : {10, 20, 30, 40}) {
    ASSERT_TRUE(write_one(*folder, step, 1, BestResult{20, 0.5}).ok());
  }
  EXPECT_THAT(names(), ElementsAre("step-00000020", "step-00000040"));
  ASSERT_TRUE(write_one(*folder, 50, 1, BestResult{50, 0.25}).ok());
  EXPECT_THAT(names(), ElementsAre("step-00000050"));
  const auto newest = find_checkpoint(folder_);
  ASSERT_TRUE(newest.ok()) << newest.status().message();
  EXPECT_EQ(newest->checkpoint.best, (BestResult{50, 0.25}));
}

std::string found(const std::string& path) {
  const auto found = find_checkpoint(path);
  if (!found.ok()) return found.status().message();
  return fmt::format("{} step {}\n{}", fs::path(found->folder).filename().string(),
                     found->checkpoint.step, found->warnings);
}

TEST_F(CheckpointFolders, KeepTheLastAndFindTheNewest) {
  write_all(folder_, {10, 20, 30, 40}, 2);
  EXPECT_THAT(names(), ElementsAre("step-00000030", "step-00000040"));
  EXPECT_EQ(found(folder_), "step-00000040 step 40\n");
  EXPECT_EQ(found(folder_ + "/step-00000030"), "step-00000030 step 30\n");
}

TEST_F(CheckpointFolders, TellTheirLatestStep) {
  EXPECT_EQ(latest_step(folder_), -1);
  write_all(folder_, {10, 20}, 2);
  EXPECT_EQ(latest_step(folder_), 20);
  EXPECT_EQ(latest_step(folder_ + "/step-00000010"), 10);
  EXPECT_EQ(latest_step(temp_.path()), -1);
}

TEST_F(CheckpointFolders, AStepThatIsWrittenAgainTakesItsOwnPlace) {
  write_all(folder_, {10, 10, 10}, 1);
  EXPECT_THAT(names(), ElementsAre("step-00000010"));
  EXPECT_EQ(found(folder_), "step-00000010 step 10\n");
}

TEST_F(CheckpointFolders, ADamagedOneIsPassedOverWithAWarning) {
  write_all(folder_, {10, 20}, 2);
  std::ofstream(folder_ + "/step-00000020/" + kModelDataFile, std::ios::app) << "x";
  EXPECT_EQ(found(folder_), "step-00000010 step 10\nstep-00000020: passed over:\n" + folder_ +
                                "/step-00000020/model.onnx.data: error: it has 300001 bytes, its "
                                "checkpoint says 300000\n  hint: the checkpoint is damaged: "
                                "resume from another one\n");
  // Told about it by name, it is an error.
  EXPECT_THAT(found(folder_ + "/step-00000020"), HasSubstr("it has 300001 bytes"));
  fs::remove(folder_ + "/step-00000010/" + kManifestFile);
  EXPECT_THAT(found(folder_), HasSubstr("no checkpoint in this folder is whole"));
}

TEST_F(CheckpointFolders, EveryKindOfDamageIsNoticed) {
  for (const char* name : {kModelFile, kModelDataFile, kOptimizerFile, kManifestFile}) {
    fs::remove_all(folder_);
    write_all(folder_, {10}, 1);
    const std::string path = folder_ + "/step-00000010/" + name;
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(name == std::string(kManifestFile) ? 60 : 7);
      file.put('?');
    }
    EXPECT_THAT(found(folder_), HasSubstr("digest")) << name;
    fs::resize_file(path, 5);
    EXPECT_THAT(found(folder_), HasSubstr("error")) << name;
    fs::remove(path);
    EXPECT_THAT(found(folder_), HasSubstr("No such file")) << name;
    fs::create_directory(path);
    EXPECT_THAT(found(folder_), HasSubstr("it is a directory, not a file of a checkpoint")) << name;
    fs::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);  // nobody writes to it: whoever waits waits forever
    EXPECT_THAT(found(folder_), HasSubstr("it is a pipe, not a file of a checkpoint")) << name;
    fs::remove(path);
    fs::create_symlink("/dev/zero", path);
    EXPECT_THAT(found(folder_), HasSubstr("it is a character device, not a file of a checkpoint"))
        << name;
  }
}

TEST_F(CheckpointFolders, ADamagedOneThatIsNamedSaysWhatToDo) {
  const std::string hint = "\n  hint: the checkpoint is damaged: resume from another one";
  write_all(folder_, {10});
  const std::string named = folder_ + "/step-00000010";
  fs::resize_file(named + "/" + kModelFile, 5);
  EXPECT_THAT(found(named), HasSubstr("it has 5 bytes, its checkpoint says "));
  EXPECT_THAT(found(named), ::testing::EndsWith(hint));
  fs::remove(named + "/" + kModelFile);
  EXPECT_EQ(found(named), named + "/model.onnx: cannot be read: No such file or directory" + hint);
  fs::remove(named + "/" + kManifestFile);
  EXPECT_EQ(found(named), named + ": error: it has no checkpoint.txt" + hint);
  EXPECT_EQ(found(named + "/"), named + "/: error: it has no checkpoint.txt" + hint);
}

TEST_F(CheckpointFolders, WhatADeadWriterLeftIsRemovedByTheNext) {
  fs::create_directories(folder_ + "/.step-00000050.tmp-4711");
  std::ofstream(folder_ + "/.step-00000050.tmp-4711/" + kModelFile) << "half";
  fs::create_directories(folder_ + "/mine");
  EXPECT_THAT(found(folder_), HasSubstr("there is no checkpoint in this folder"));
  write_all(folder_, {60});
  EXPECT_THAT(names(), ElementsAre("mine", "step-00000060"));
}

TEST_F(CheckpointFolders, TwoRunsDoNotShareAFolder) {
  const auto first = CheckpointFolder::open(folder_, 0);
  ASSERT_TRUE(first.ok());
  const auto second = CheckpointFolder::open(folder_, 0);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().message(), folder_ +
                                           ": another run saves its checkpoints here\n"
                                           "  hint: give each run a folder of its own");
}

TEST_F(CheckpointFolders, ARunDoesNotSaveBehindAnotherOnesSteps) {
  write_all(folder_, {10, 20});
  EXPECT_TRUE(CheckpointFolder::open(folder_, 20).ok());
  EXPECT_EQ(CheckpointFolder::open(folder_, 10).status().message(),
            folder_ +
                ": has a checkpoint of step 20, and this run begins at step 10\n"
                "  hint: go on from it with --resume " +
                folder_ + ", or save to another folder");
}

TEST_F(CheckpointFolders, AFileInTheFoldersPlaceIsNamed) {
  std::ofstream(folder_) << "hello";
  EXPECT_EQ(CheckpointFolder::open(folder_, 0).status().message(),
            folder_ + ": cannot be made: Not a directory");
  EXPECT_THAT(found(folder_), HasSubstr("there is no checkpoint: Not a directory"));
  EXPECT_THAT(found(temp_ / "nothing"), HasSubstr("No such file or directory"));
}

TEST_F(CheckpointFolders, AFolderThatCannotBeWrittenToIsNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  write_all(folder_, {10});
  chmod(folder_.c_str(), 0555);
  EXPECT_EQ(CheckpointFolder::open(folder_, 10).status().message(),
            folder_ + ": cannot be written to: Permission denied");
}

// While it lives nobody may change what is in a folder, nor its name: for root by a flag of the
// file system, where that has one.
class Immovable {
 public:
  explicit Immovable(const std::string& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
        holds_(set(FS_IMMUTABLE_FL)) {}
  ~Immovable() { set(0); }
  bool holds() const { return holds_; }

 private:
  bool set(int flag) {
    int flags = 0;
    if (::ioctl(fd_.get(), FS_IOC_GETFLAGS, &flags) != 0) return false;
    flags = (flags & ~FS_IMMUTABLE_FL) | flag;
    return ::ioctl(fd_.get(), FS_IOC_SETFLAGS, &flags) == 0;
  }
  Fd fd_;
  bool holds_;
};

TEST_F(CheckpointFolders, OldOnesThatCannotBeRemovedAreToldOnceAndTriedAgain) {
  write_all(folder_, {10, 20});
  auto folder = CheckpointFolder::open(folder_, 20);
  ASSERT_TRUE(folder.ok());
  {
    const Immovable old(folder_ + "/step-00000010");
    if (!old.holds()) GTEST_SKIP() << "this needs root, and a file system with flags";
    ASSERT_EQ(write_one(*folder, 30, 1).message(), "");
    EXPECT_EQ(folder->take_warnings(), "warning: " + folder_ +
                                           "/step-00000010: cannot be removed: Operation not "
                                           "permitted\n");
    ASSERT_EQ(write_one(*folder, 40, 1).message(), "");
    EXPECT_EQ(folder->take_warnings(), "");
    EXPECT_THAT(names(), ElementsAre("step-00000010", "step-00000040"));
  }
  ASSERT_EQ(write_one(*folder, 50, 1).message(), "");
  EXPECT_THAT(names(), ElementsAre("step-00000050"));
}

TEST_F(CheckpointFolders, LeftoversThatCannotBeRemovedAreToldAndStopNoRun) {
  const std::string left = folder_ + "/.step-00000010.tmp-4711";
  fs::create_directories(left + "/held");
  const Immovable held(left);
  if (!held.holds()) GTEST_SKIP() << "this needs root, and a file system with flags";
  auto folder = CheckpointFolder::open(folder_, 0);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_THAT(folder->take_warnings(), StartsWith("warning: " + left + ": cannot be removed"));
  EXPECT_EQ(write_one(*folder, 10).message(), "");
}

// No file may have more than 100,000 bytes: for the writer as if the disk were full.
TEST_F(CheckpointFolders, AFullDiskIsAnErrorAndTheCheckpointBeforeStays) {
  write_all(folder_, {10});
  auto folder = CheckpointFolder::open(folder_, 10);
  ASSERT_TRUE(folder.ok());
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{100000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status failed = write_one(*folder, 20);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, ignored);
  EXPECT_THAT(failed.message(),
              HasSubstr("/model.onnx.data: cannot be written: File too large\n"
                        "  hint: the checkpoint before this one is whole; make room"));
  EXPECT_EQ(found(folder_), "step-00000010 step 10\n");
  folder->discard();
  EXPECT_THAT(names(), ElementsAre("step-00000010"));
  EXPECT_TRUE(write_one(*folder, 20).ok());
  EXPECT_EQ(found(folder_), "step-00000020 step 20\n");
}

// Writes checkpoints until it is killed, and says so after each.
[[noreturn]] void write_until_killed(const std::string& path, std::int64_t step, int said) {
  auto folder = CheckpointFolder::open(path, step);
  if (!folder.ok()) _exit(3);
  for (;; ++step) {
    if (!write_one(*folder, step, 2).ok()) _exit(4);
    if (::write(said, &step, sizeof step) != sizeof step) _exit(5);
  }
}

TEST_F(CheckpointFolders, AWriterThatIsKilledAtAnyMomentLeavesAWholeOne) {
  constexpr int kKills = 40;
  Rng rng(7);
  std::int64_t last = -1;  // said to be there
  for (int i = 0; i < kKills; ++i) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    Fd read_end(ends[0]), write_end(ends[1]);
    // Every other writer writes the last step again.
    const std::int64_t begin = std::max<std::int64_t>(last + (i % 2), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_until_killed(folder_, begin, write_end.get());
    write_end.reset();
    std::int64_t said = 0;
    // On a busy machine a writer may not come far in a few milliseconds.
    if (i % 4 != 0 && ::read(read_end.get(), &said, sizeof said) == sizeof said) last = said;
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(30000)));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed: " << WEXITSTATUS(status);
    while (::read(read_end.get(), &said, sizeof said) == sizeof said) last = said;
    if (last < 0) continue;
    const auto found = find_checkpoint(folder_);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->warnings, "");
    EXPECT_GE(found->checkpoint.step, last);
    last = found->checkpoint.step;
  }
  EXPECT_GT(last, 0);
}

}  // namespace
}  // namespace agpcs
