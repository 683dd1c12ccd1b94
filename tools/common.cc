// SPDX-License-Identifier: Apache-2.0
#include "tools/common.h"

#include "frontend/import_onnx.h"
#include "ir/training_graph.h"

#include <agpcs/version.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <unistd.h>

namespace agpcs {

int run_command(std::string_view name, int argc, char** argv,
                const std::function<int(std::vector<std::string>, Console)>& command) {
  try {
    return command({argv + 1, argv + argc}, {std::cout, std::cerr});
  } catch (const std::exception& e) {
    std::cerr << name << ": internal error: " << e.what() << '\n';
    return exit_code(StatusCode::kInternal);
  }
}

void add_help(CLI::App& app, std::string_view examples) {
  app.set_version_flag("--version", fmt::format("{} {}", app.get_name(), version()));
  app.footer(fmt::format("\nExamples:\n{}", examples));
}

std::optional<int> parse_arguments(CLI::App& app, std::vector<std::string> args, Console console) {
  std::reverse(args.begin(), args.end());  // CLI11 takes them from the back
  try {
    app.parse(std::move(args));
  } catch (const CLI::ParseError& e) {
    const bool asked = e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    std::ostringstream text;
    app.exit(e, text, text);
    if (asked) {
      console.out << text.str();
      return 0;
    }
    return usage_error(app.get_name(), e.what(), fmt::format("see {} --help", app.get_name()),
                       console);
  }
  return {};
}

int usage_error(std::string_view name, std::string message, std::string_view hint,
                Console console) {
  const bool word = message.size() > 1 && message[0] >= 'A' && message[0] <= 'Z' &&
                    !(message[1] >= 'A' && message[1] <= 'Z');
  if (word) message[0] = static_cast<char>(message[0] - 'A' + 'a');
  console.err << fmt::format("{}: error: {}\n  hint: {}\n", name, message, hint);
  return exit_code(StatusCode::kUsage);
}

int finish(const Status& status, std::string_view name, Console console) {
  if (status.ok()) return 0;
  const std::string& message = status.message();
  const bool placed = message.substr(0, message.find('\n')).find(": error: ") != std::string::npos;
  console.err << (placed ? message : fmt::format("{}: error: {}", name, message)) << '\n';
  return exit_code(status.code());
}

bool is_terminal(int fd) { return isatty(fd) == 1; }

void Progress::step(std::string_view what) {
  if (!on_terminal_) {
    err_ << what << '\n';
    return;
  }
  const std::size_t before = width_;
  width_ = what.size();
  err_ << '\r' << what << std::string(before > width_ ? before - width_ : 0, ' ') << std::flush;
}

void Progress::done() {
  if (width_ > 0) err_ << '\r' << std::string(width_, ' ') << '\r' << std::flush;
  width_ = 0;
}

namespace {

Status file_error(const std::string& path, const char* what) {
  return invalid_input(fmt::format("{}: error: cannot be {}: {}", path, what,
                                   errno != 0 ? std::strerror(errno) : "unknown reason"));
}

}  // namespace

Result<std::string> read_file(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    if (file && file.peek() == std::ifstream::traits_type::eof() && errno == 0)
      return std::string();
    return file_error(path, "read");
  }
  return std::move(text).str();
}

Status write_file(const std::string& path, std::string_view text, Console console) {
  if (path == "-") {
    console.out << text;
    return {};
  }
  errno = 0;
  const std::string unfinished = fmt::format("{}.{}.tmp", path, getpid());
  std::ofstream file(unfinished, std::ios::binary);
  file << text;
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    const Status status = file_error(path, "written");
    std::remove(unfinished.c_str());
    return status;
  }
  return {};
}

Result<Plan> read_plan(const std::string& path) {
  AGPCS_TRY(const std::string text, read_file(path));
  return parse_plan(text, path);
}

Result<std::vector<std::pair<std::string, std::int64_t>>> parse_dims(
    const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::int64_t>> dims;
  for (const std::string& text : texts) {
    const std::size_t equals = text.rfind('=');
    std::int64_t value = 0;
    const char* end = text.data() + text.size();
    const char* begin = equals == std::string::npos ? end : text.data() + equals + 1;
    const auto [rest, error] = std::from_chars(begin, end, value);
    if (equals == 0 || error != std::errc() || rest != end || value < 1) {
      return Status(StatusCode::kUsage,
                    fmt::format("--dim '{}' is not NAME=VALUE with a whole value above 0, such as "
                                "seq=128",
                                text));
    }
    dims.emplace_back(text.substr(0, equals), value);
  }
  return dims;
}

Result<TrainingModel> read_training_model(
    const std::string& path, const std::vector<std::pair<std::string, std::int64_t>>& dims,
    Loss& loss, bool read_weights) {
  ImportOptions options;
  options.dims = dims;
  options.read_weights = read_weights;
  AGPCS_TRY(Imported imported, import_onnx(path, options));
  AGPCS_TRY(Graph with_loss, attach_loss(std::move(imported.graph), loss));
  AGPCS_TRY(Graph graph, derive_backward(std::move(with_loss)));
  return TrainingModel{std::move(graph), std::move(imported.warnings)};
}

}  // namespace agpcs
