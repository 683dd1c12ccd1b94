// SPDX-License-Identifier: Apache-2.0
// What the commands share: exit codes, --help and --version, files, models and progress.
#pragma once

#include "ir/graph.h"
#include "ir/read_file.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 names it
class App;
}

namespace agpcs {

/// Where a command writes: results to `out`, errors, warnings and progress to `err`. Tests pass
/// string streams.
struct Console {
  std::ostream& out;
  std::ostream& err;
};

/// Runs `command` on standard output and error with the arguments after the program's name, and
/// returns its exit code; 1 when standard output could not take all of it. An exception that
/// escapes is our bug: exit code 70.
int run_command(std::string_view name, int argc, char** argv,
                const std::function<int(std::vector<std::string>, Console)>& command);

/// Gives `app` its --version and the examples at the end of its --help.
void add_help(CLI::App& app, std::string_view examples);
/// Adds --config FILE: options from a file, NAME=VALUE a line. An unknown name is an error.
void add_config_option(CLI::App& app);

/// Parses `args`. Nothing when the command is to go on; else the exit code: 0 after --help or
/// --version, 2 when the command line is wrong. An unknown option is told the nearest one; no
/// option and no argument takes an empty text.
std::optional<int> parse_arguments(CLI::App& app, std::vector<std::string> args, Console console);

/// Says what is wrong with a command line; returns 2.
int usage_error(std::string_view name, std::string message, std::string_view hint, Console console);

/// The exit code of `status`; its message, if it is an error, goes to `console.err` as
/// "NAME: error: message", or as it is when it says itself what is wrong where.
int finish(const Status& status, std::string_view name, Console console);

/// Whether file descriptor `fd` (1: standard output, 2: standard error) is a terminal.
bool is_terminal(int fd);

/// Says what a command is doing, on `err`: one line that is overwritten on a terminal, else one
/// line a step.
class Progress {
 public:
  Progress(std::ostream& err, bool on_terminal) : err_(err), on_terminal_(on_terminal) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { done(); }
  void step(std::string_view what);
  void done();  ///< clears the line

 private:
  std::ostream& err_;
  bool on_terminal_;
  std::size_t width_ = 0;
};

/// What `read_file` reads (ir/read_file.h); "-" is standard input.
Result<std::string> read_input(const std::string& path, const InputKind& kind);
/// Makes a file that was not there, whole or not at all. std::errc::file_exists: there is something
/// by that name, be it a symbolic link to nowhere, and it is left as it is.
std::error_code write_new_file(const std::string& path, std::string_view text);
/// Replaces a file as a whole: readers see the old or the new one. "-" is `console.out`; what is no
/// file, such as /dev/null, is written to, and a symbolic link is followed.
Status write_file(const std::string& path, std::string_view text, Console console);

Result<Plan> read_plan(const std::string& path);

/// "seq=128" -> {"seq", 128}, for --dim. kUsage when wrong.
Result<std::vector<std::pair<std::string, std::int64_t>>> parse_dims(
    const std::vector<std::string>& texts);

/// A model made ready for training.
struct TrainingModel {
  Graph graph;           ///< with loss and backward
  std::string warnings;  ///< ready to print, empty when none
};
/// What is asked of a model beside its loss (frontend/import_onnx.h).
struct ModelChoices {
  std::vector<std::pair<std::string, std::int64_t>> dims;
  std::vector<std::string> freeze;
};
/// Those that `plan` was made with.
ModelChoices choices_of(const Plan& plan);
/// Imports `path`, attaches `loss` (which then says what was taken) and derives the backward pass.
Result<TrainingModel> read_training_model(const std::string& path, const ModelChoices& choices,
                                          Loss& loss, bool read_weights = false);

}  // namespace agpcs
