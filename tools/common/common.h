// SPDX-License-Identifier: Apache-2.0
// Code that the commands share: exit codes, --help and --version, files, models and progress.
#pragma once

#include "ir/base/read_file.h"
#include "ir/graph/graph.h"

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

/// The streams of a command: results go to `out`; errors, warnings and progress go to `err`. Tests
/// pass string streams.
struct Console {
  std::ostream& out;
  std::ostream& err;
};

/// Runs `command` on standard output and error with the arguments after the program's name, and
/// returns its exit code. The code is 1 if standard output could not take all of the output. An
/// exception that escapes is our bug: exit code 70.
int run_command(std::string_view name, int argc, char** argv,
                const std::function<int(std::vector<std::string>, Console)>& command);

/// Gives `app` its --version, and the examples at the end of its --help.
void add_help(CLI::App& app, std::string_view examples);
/// Adds --config FILE: options from a file, one NAME=VALUE per line. An unknown name is an error.
void add_config_option(CLI::App& app);

/// Parses `args`. Returns nullopt if the command is to go on, else the exit code: 0 after --help or
/// --version, 2 if the command line is wrong. The error for an unknown option suggests the nearest
/// one. Options and arguments must not be empty texts.
std::optional<int> parse_arguments(CLI::App& app, std::vector<std::string> args, Console console);

/// Reports an error in a command line and returns 2.
int usage_error(std::string_view name, std::string message, std::string_view hint, Console console);

/// Returns the exit code of `status`. The message of an error goes to `console.err` as "NAME:
/// error: message", or unchanged if it already names the place of the error.
int finish(const Status& status, std::string_view name, Console console);

/// Tells whether file descriptor `fd` (1: standard output, 2: standard error) is a terminal.
bool is_terminal(int fd);

/// Shows on `err` what a command is doing. On a terminal it overwrites one line; elsewhere each
/// step gets a line.
class Progress {
 public:
  Progress(std::ostream& err, bool on_terminal) : err_(err), on_terminal_(on_terminal) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { done(); }
  void step(std::string_view what);
  /// Leaves a line that is not overwritten.
  void leave(std::string_view what);
  void done();  ///< clears the line
  bool on_terminal() const { return on_terminal_; }

 private:
  std::ostream& err_;
  bool on_terminal_;
  std::size_t width_ = 0;
};

/// Does what `read_file` does (ir/base/read_file.h); "-" is standard input.
Result<std::string> read_input(const std::string& path, const InputKind& kind);
/// Creates a new file, either completely or not at all. If something has that name, even a symbolic
/// link to nowhere, it stays as it is and the error is std::errc::file_exists.
std::error_code write_new_file(const std::string& path, std::string_view text);
/// Returns whether the name of a file has the ending `ending`, such as ".svg", and something before
/// it.
bool has_ending(std::string_view path, std::string_view ending);
/// Replaces whatever has that name by a file, as a whole: readers see either the old or the new
/// one. A symbolic link is replaced, not followed.
std::error_code replace_file(const std::string& path, std::string_view text);
/// Writes to a path that a user names, as `replace_file` does, with these exceptions. "-" is
/// `console.out`. A path that is not a regular file, such as /dev/null, is written to directly. A
/// symbolic link to an existing path is followed; one to nowhere is replaced.
Status write_file(const std::string& path, std::string_view text, Console console);

Result<Plan> read_plan(const std::string& path);
/// Returns `status` with the plan's file in place of "plan" where a line begins with "plan: error:"
/// (verify_plan and others do not know the file).
Status in_plan_file(const Status& status, std::string_view path);

/// Parses the values of --dim: "seq=128" gives {"seq", 128}. Errors: kUsage.
Result<std::vector<std::pair<std::string, std::int64_t>>> parse_dims(
    const std::vector<std::string>& texts);

/// A model ready for training.
struct TrainingModel {
  Graph graph;           ///< with loss and backward
  std::string warnings;  ///< ready to print; empty if there are none
};
/// The choices for a model besides its loss (frontend/onnx/import_onnx.h).
struct ModelChoices {
  std::vector<std::pair<std::string, std::int64_t>> dims;
  std::vector<std::string> freeze, train;
  std::optional<std::vector<std::string>> fuse;
};
/// Adds --dim, whose texts are for `parse_dims`, --freeze and --train.
void add_model_options(CLI::App& app, ModelChoices& choices, std::vector<std::string>& dims);
/// Imports `path`, attaches `loss`, and derives the backward pass. `loss` then says what was
/// chosen. A file that was optimized for inference is taken as it is: agpcs-compile has refused it,
/// or was told to take it.
Result<TrainingModel> read_training_model(const std::string& path, const ModelChoices& choices,
                                          Loss& loss, bool read_weights = false);
/// Does so with a model from memory, in ONNX's text form. `file` is its name in messages.
Result<TrainingModel> parse_training_model(std::string_view text, const std::string& file,
                                           Loss& loss);
/// Does so with the choices, the loss and the form of attention that `plan` was made with. Error:
/// the plan names types of operators that this version does not fuse.
Result<TrainingModel> read_planned_model(const std::string& path, const Plan& plan,
                                         bool read_weights = false);

}  // namespace agpcs
