// SPDX-License-Identifier: Apache-2.0
// Mistakes of whoever calls a benchmark: a message and exit code 1, as of the commands. (A failed
// AGPCS_CHECK is a mistake of ours.)
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace agpcs::bench {

[[noreturn]] inline void end_with(const std::string& message) {
  fmt::print(stderr, "{}\n", message);
  std::exit(1);
}

/// Ends the benchmark where it was not called as `usage` says.
[[noreturn]] inline void end_with_usage(std::string_view bench, std::string_view wrong,
                                        std::string_view usage) {
  end_with(fmt::format("{0}: error: {1}\n  hint: {0} {2}", bench, wrong, usage));
}

/// The whole number that `text` is. Ends the benchmark where it is none, or out of range.
template <typename Number>
Number number_of(std::string_view bench, std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stopped == end) return number;
  end_with(fmt::format("{}: error: '{}' is not a whole number in range", bench, text));
}

[[noreturn]] inline void end_unwritten(const std::string& path) {
  const std::error_code why(errno != 0 ? errno : EIO, std::generic_category());
  end_with(fmt::format("{}: error: cannot be written: {}", path, why.message()));
}

/// A file that is written at the end of a long run: opened before it, so that it can be.
inline std::ofstream open_for_results(const std::string& path) {
  errno = 0;
  std::ofstream file(path);
  if (!file) end_unwritten(path);
  return file;
}

/// Ends the benchmark where not all of it could be written.
inline void close_results(std::ofstream& file, const std::string& path) {
  errno = 0;
  file.close();
  if (!file) end_unwritten(path);
}

/// Ends the benchmark where data that it reads are not there; `what` says what they are.
inline void need_data(const std::filesystem::path& path, std::string_view what) {
  std::error_code none;
  if (std::filesystem::exists(path, none)) return;
  end_with(fmt::format("{}: error: there is nothing\n  hint: it is to be {}", path.string(), what));
}

/// Ends the benchmark where `path` is no folder, before results of a long run are to go there.
inline void need_folder(const std::string& path) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none)) return;
  end_with(fmt::format("{0}: error: not a folder\n  hint: make it first: mkdir -p {0}", path));
}

}  // namespace agpcs::bench
