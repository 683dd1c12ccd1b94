// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/checkpoint_folder.h"

#include "ir/base/random_digits.h"
#include "ir/base/read_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace agpcs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kReplaced = ".replaced";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::int64_t kLongestManifest = std::int64_t{1} << 28;

Status failed(const std::string& path, const char* what, int error) {
  std::string message = fmt::format("{}: {}: {}", path, what, std::strerror(error));
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    message += "\n  hint: the checkpoint before this one is whole; make room, or save elsewhere";
  }
  return {StatusCode::kUnavailable, std::move(message)};
}

Status sync_folder(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return failed(path, "cannot be opened", errno);
  if (::fsync(fd.get()) != 0) return failed(path, "cannot be brought to the disk", errno);
  return {};
}

// Makes the folder and its missing parents, and brings their entries in their parents to the disk.
// An existing parent that cannot be opened is not our business.
Status make_folders(const std::string& path) {
  std::error_code error;
  std::vector<fs::path> made;
  const fs::path whole = fs::absolute(path).lexically_normal();
  for (fs::path at = whole; at.has_relative_path() && !fs::exists(at, error);) {
    made.push_back(at);
    at = at.parent_path();
  }
  fs::create_directories(path, error);
  if (error) return failed(path, "cannot be made", error.value());
  for (const fs::path& folder : made) {
    [[maybe_unused]] const Status synced = sync_folder(folder.parent_path().string());
  }
  return {};
}

// Returns 0, or the errno of the failure: EWOULDBLOCK if another process has the lock.
int lock_file(const Fd& fd) { return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno; }

// A checkpoint's place in the folder.
struct Entry {
  std::int64_t step = 0;
  bool replaced = false;
  std::string name;
};

// Orders entries newest first; a checkpoint that is being replaced comes after its successor.
bool newer(const Entry& a, const Entry& b) {
  return a.step != b.step ? a.step > b.step : a.replaced < b.replaced;
}

std::optional<Entry> entry_of(const std::string& name) {
  Entry entry;
  entry.name = name;
  std::string_view rest = name;
  if (rest.substr(0, kPrefix.size()) != kPrefix) return {};
  rest.remove_prefix(kPrefix.size());
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), entry.step);
  if (error != std::errc()) return {};
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  entry.replaced = rest == kReplaced;
  const std::string full = checkpoint_name(entry.step) + std::string(rest);
  if ((!rest.empty() && !entry.replaced) || full != name) return {};
  return entry;
}

// Returns the path, which nobody can guess, of checkpoint `name` in `folder` while it is written or
// removed.
Result<std::string> hidden_path(const std::string& folder, const std::string& name) {
  const std::string digits = random_digits();
  if (digits.empty()) return failed(folder, "nothing can be given a random name in it", errno);
  return fmt::format("{}/.{}{}{}", folder, name, kTemporary, digits);
}

Result<std::vector<std::string>> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) return failed(path, "cannot be listed", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::vector<Entry>> entries_in(const std::string& path) {
  AGPCS_TRY(const std::vector<std::string> names, names_in(path));
  std::vector<Entry> entries;
  for (const std::string& name : names) {
    if (auto entry = entry_of(name)) entries.push_back(std::move(*entry));
  }
  std::sort(entries.begin(), entries.end(), newer);
  return entries;
}

Result<Checkpoint> read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestFile;
  AGPCS_TRY(const InputFile file, InputFile::open(path, kCheckpointNoun));
  AGPCS_TRY(const std::string text, file.read_all({"manifest", kLongestManifest}));
  return parse_checkpoint(text, path);
}

constexpr const char* kDamaged = "\n  hint: the checkpoint is damaged: resume from another one";

// Checks a file's size and digest; reads all of it.
Status check_file(const std::string& folder, const CheckpointFile& file) {
  const std::string path = folder + "/" + file.name;
  std::error_code error;
  if (!fs::exists(path, error)) {
    return Status(StatusCode::kUnavailable,
                  failed(path, "cannot be read", ENOENT).message() + kDamaged);
  }
  AGPCS_TRY(const InputFile reader, InputFile::open(path, kCheckpointNoun));
  const std::int64_t size = reader.size();
  if (size != file.bytes) {
    return invalid_input(fmt::format("{}: error: it has {} bytes, its checkpoint says {}{}", path,
                                     size, file.bytes, kDamaged));
  }
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  std::vector<char> piece(static_cast<std::size_t>(std::min(size, kPiece)));
  Sha256 sha;
  for (std::int64_t at = 0; at < size; at += kPiece) {
    const auto bytes = static_cast<std::size_t>(std::min(kPiece, size - at));
    AGPCS_RETURN_IF_ERROR(reader.read(at, piece.data(), bytes));
    sha.update(piece.data(), bytes);
  }
  const std::string found = sha.digest();
  if (found == file.digest) return {};
  return invalid_input(fmt::format("{}: error: its digest is {}, its checkpoint says {}{}", path,
                                   found, file.digest, kDamaged));
}

Result<FoundCheckpoint> read_whole(const std::string& folder) {
  AGPCS_TRY(Checkpoint checkpoint, read_manifest(folder));
  for (const CheckpointFile& file : checkpoint.files) {
    AGPCS_RETURN_IF_ERROR(check_file(folder, file));
  }
  return FoundCheckpoint{folder, std::move(checkpoint), "", false};
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

bool has_checkpoints(const std::string& folder) {
  std::error_code error;
  const auto entries = entries_in(folder);
  return fs::exists(folder + "/" + kManifestFile, error) || !entries.ok() || !entries->empty();
}

std::int64_t latest_step(const std::string& path) {
  std::error_code error;
  if (fs::exists(path + "/" + kManifestFile, error)) {
    const auto manifest = read_manifest(path);
    return manifest.ok() ? manifest->step : -1;
  }
  const auto entries = entries_in(path);
  return entries.ok() && !entries->empty() ? entries->front().step : -1;
}

Result<FoundCheckpoint> find_checkpoint(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const int cause = error ? error.value() : ENOTDIR;
    return Status(StatusCode::kUnavailable,
                  fmt::format("{}: there is no checkpoint: {}\n"
                              "  hint: give a checkpoint's folder, or the folder that --save wrote",
                              path, std::strerror(cause)));
  }
  if (fs::exists(path + "/" + kManifestFile, error)) return read_whole(path);
  AGPCS_TRY(const std::vector<Entry> entries, entries_in(path));
  std::string reasons;
  for (const Entry& entry : entries) {
    auto found = read_whole(path + "/" + entry.name);
    if (found.ok()) {
      found->warnings = std::move(reasons);
      found->newest = true;
      return found;
    }
    reasons += fmt::format("{}: passed over:\n{}\n", entry.name, found.status().message());
  }
  const fs::path name = (fs::absolute(path) / "").lexically_normal().parent_path().filename();
  if (entries.empty() && entry_of(name.string())) {
    return invalid_input(fmt::format("{}: error: it has no {}{}", path, kManifestFile, kDamaged));
  }
  if (entries.empty()) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("{}: there is no checkpoint in this folder\n"
                              "  hint: checkpoints are folders such as {}",
                              path, checkpoint_name(100)));
  }
  if (!reasons.empty() && reasons.back() == '\n') reasons.pop_back();
  return invalid_input(fmt::format("{}: no checkpoint in this folder is whole\n{}", path, reasons));
}

Result<CheckpointFileWriter> CheckpointFileWriter::create(const std::string& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (fd.get() < 0) return failed(path, "cannot be made", errno);
  return CheckpointFileWriter(path, std::move(fd));
}

Status CheckpointFileWriter::write_out(const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t count = ::write(fd_.get(), data, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return failed(path_, "cannot be written", count < 0 ? errno : EIO);
    data += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return {};
}

Status CheckpointFileWriter::flush() {
  const Status written = write_out(waiting_.data(), waiting_.size());
  waiting_.clear();
  return written;
}

Status CheckpointFileWriter::write(const void* data, std::size_t bytes) {
  constexpr std::size_t kWaiting = std::size_t{1} << 18;  // small tensors are written together
  sha_.update(data, bytes);
  size_ += static_cast<std::int64_t>(bytes);
  if (waiting_.size() + bytes > kWaiting) AGPCS_RETURN_IF_ERROR(flush());
  if (bytes > kWaiting) return write_out(static_cast<const char*>(data), bytes);
  const auto* first = static_cast<const char*>(data);
  waiting_.insert(waiting_.end(), first, first + bytes);
  return {};
}

Status CheckpointFileWriter::fill_to(std::int64_t size) {
  static constexpr char kZeros[4096] = {};
  while (size_ < size) {
    const auto bytes = std::min<std::int64_t>(size - size_, sizeof kZeros);
    AGPCS_RETURN_IF_ERROR(write(kZeros, static_cast<std::size_t>(bytes)));
  }
  return {};
}

Result<CheckpointFile> CheckpointFileWriter::finish() {
  AGPCS_RETURN_IF_ERROR(flush());
  if (::fsync(fd_.get()) != 0) return failed(path_, "cannot be brought to the disk", errno);
  if (::close(fd_.release()) != 0) return failed(path_, "cannot be written", errno);
  return CheckpointFile{fs::path(path_).filename().string(), size_, sha_.digest()};
}

Result<CheckpointFolder> CheckpointFolder::open(const std::string& path, std::int64_t first_step,
                                                const FoundCheckpoint* resumed) {
  AGPCS_RETURN_IF_ERROR(make_folders(path));
  if (::access(path.c_str(), W_OK | X_OK) != 0) return failed(path, "cannot be written to", errno);
  CheckpointFolder folder(path);
  AGPCS_RETURN_IF_ERROR(folder.lock());
  folder.remove_leftovers();
  std::error_code error;
  const bool goes_on = resumed != nullptr && resumed->newest &&
                       fs::equivalent(fs::path(resumed->folder).parent_path(), path, error);
  if (goes_on) return folder;
  AGPCS_TRY(const std::vector<Entry> entries, entries_in(path));
  for (const Entry& entry : entries) {
    if (entry.step <= first_step || !read_manifest(path + "/" + entry.name).ok()) continue;
    return invalid_input(
        fmt::format("{}: has a checkpoint of step {}, and this run begins at step {}\n"
                    "  hint: go on from it with --resume {}, or save to another folder",
                    path, entry.step, first_step, path));
  }
  return folder;
}

Status CheckpointFolder::lock() {
  Fd folder(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return failed(path_, "cannot be opened", errno);
  int error = lock_file(folder);
  if (error == 0) fd_ = std::move(folder);
  if (error != 0 && error != EWOULDBLOCK) {
    // NFS turns the lock into one of a range of bytes, for which the file must be open for writing.
    Fd file(::open((path_ + "/.lock").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (file.get() < 0) return failed(path_ + "/.lock", "cannot be opened", errno);
    error = lock_file(file);
    if (error == 0) fd_ = std::move(file);
  }
  if (error == EWOULDBLOCK) {
    return invalid_input(
        fmt::format("{}: another run saves its checkpoints here\n"
                    "  hint: give each run a folder of its own",
                    path_));
  }
  if (error != 0) warn(failed(path_, "cannot be locked, so another run could save here", error));
  return {};
}

void CheckpointFolder::warn(const Status& status) {
  if (status.ok() || !warned_.insert(status.message()).second) return;
  warnings_ += "warning: " + status.message() + "\n";
}

void CheckpointFolder::remove_leftovers() {
  const auto names = names_in(path_);
  if (!names.ok()) return warn(names.status());
  const std::string hidden = "." + std::string(kPrefix);
  for (const std::string& name : *names) {
    if (name.rfind(hidden, 0) != 0 || name.find(kTemporary) == std::string::npos) continue;
    std::error_code error;
    fs::remove_all(fs::path(path_) / name, error);
    if (error) warn(failed(path_ + "/" + name, "cannot be removed", error.value()));
  }
}

Result<std::string> CheckpointFolder::begin(std::int64_t step) {
  discard();
  for (;;) {
    AGPCS_TRY(const std::string path, hidden_path(path_, checkpoint_name(step)));
    if (::mkdir(path.c_str(), 0777) == 0) return begun_ = path;
    if (errno != EEXIST) return failed(path, "cannot be made", errno);
  }
}

void CheckpointFolder::discard() {
  std::error_code ignored;  // what stays is removed by the next writer
  if (!begun_.empty()) fs::remove_all(begun_, ignored);
  begun_.clear();
}

Status CheckpointFolder::commit(std::int64_t step, const Checkpoint& checkpoint, int keep) {
  AGPCS_TRY(auto manifest, CheckpointFileWriter::create(begun_ + "/" + kManifestFile));
  const std::string text = print_checkpoint(checkpoint);
  AGPCS_RETURN_IF_ERROR(manifest.write(text.data(), text.size()));
  AGPCS_RETURN_IF_ERROR(manifest.finish().status());
  AGPCS_RETURN_IF_ERROR(sync_folder(begun_));
  AGPCS_RETURN_IF_ERROR(replace(step));
  begun_.clear();
  remove_leftovers();
  prune(step, keep, checkpoint.best);
  return {};
}

// Puts the new checkpoint in place. After each of these steps there is a whole checkpoint of this
// step: the old one, the same under its name with "replaced", or the new one.
Status CheckpointFolder::replace(std::int64_t step) {
  const std::string name = checkpoint_name(step), target = path_ + "/" + name;
  const std::string old = name + std::string(kReplaced);
  std::error_code error;
  if (fs::exists(target, error)) {
    AGPCS_RETURN_IF_ERROR(remove(old));
    if (::rename(target.c_str(), (path_ + "/" + old).c_str()) != 0) {
      return failed(target, "cannot be replaced", errno);
    }
  }
  if (::rename(begun_.c_str(), target.c_str()) != 0) {
    return failed(target, "cannot be put in its place", errno);
  }
  AGPCS_RETURN_IF_ERROR(sync_folder(path_));
  warn(remove(old));
  return {};
}

// Renames the checkpoint before removing it, so that half a checkpoint never has a
// checkpoint's name.
Status CheckpointFolder::remove(const std::string& name) {
  const std::string path = path_ + "/" + name;
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  AGPCS_TRY(const std::string hidden, hidden_path(path_, name));
  if (::rename(path.c_str(), hidden.c_str()) != 0) return failed(path, "cannot be removed", errno);
  fs::remove_all(hidden, error);
  if (error) return failed(path, "cannot be removed", error.value());
  return {};
}

void CheckpointFolder::prune(std::int64_t step, int keep, const std::optional<BestResult>& best) {
  const auto entries = entries_in(path_);
  if (!entries.ok()) return warn(entries.status());
  int kept = 1;  // counts the checkpoint of `step`
  for (const Entry& entry : *entries) {
    if (entry.step >= step) continue;  // later ones (damaged) are not this run's business
    const bool is_best = best && entry.step == best->step;
    if (++kept > keep && !is_best) warn(remove(entry.name));
  }
}

}  // namespace agpcs
