// SPDX-License-Identifier: Apache-2.0
#include "tools/common/common.h"

#include "frontend/onnx/import_onnx.h"
#include "ir/base/diagnostics.h"
#include "ir/graph/fuse/fuse.h"
#include "ir/graph/fused_attention.h"
#include "ir/graph/training_graph.h"
#include "tools/common/new_file.h"
#include "tools/common/words/parse_fault.h"

#include <agpcs/version.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <system_error>
#include <unistd.h>

namespace agpcs {

int run_command(std::string_view name, int argc, char** argv,
                const std::function<int(std::vector<std::string>, Console)>& command) {
  try {
    const int code = command({argv + 1, argv + argc}, {std::cout, std::cerr});
    if (std::cout.flush() || code != 0) return code;
    std::cerr << name << ": error: standard output cannot be written\n";
    return exit_code(StatusCode::kInvalidInput);
  } catch (const std::exception& e) {
    std::cerr << name << ": internal error: " << e.what() << '\n';
    return exit_code(StatusCode::kInternal);
  }
}

void add_help(CLI::App& app, std::string_view examples) {
  app.set_version_flag("--version", fmt::format("{} {}", app.get_name(), version()));
  app.footer(fmt::format("\nExamples:\n{}", examples));
}

namespace {

/// Returns the options and arguments of `app` and of the given subcommands.
std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  std::vector<const CLI::App*> apps = {&app};
  for (const CLI::App* command : app.get_subcommands()) apps.push_back(command);
  std::vector<const CLI::Option*> all;
  for (const CLI::App* of : apps) {
    const std::vector<const CLI::Option*> options = of->get_options();
    all.insert(all.end(), options.begin(), options.end());
  }
  return all;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options_of(app)) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// Returns an option that was given an empty text, else nullptr. Scripts do that if a variable is
/// not set, and the option would look as if it were not given.
const CLI::Option* given_empty(const CLI::App& app) {
  for (const CLI::Option* option : options_of(app)) {
    const std::vector<std::string>& given = option->results();
    if (std::find(given.begin(), given.end(), "") != given.end()) return option;
  }
  return nullptr;
}

/// Reports the words of a command line that have no meaning: first an option.
int unexpected(const CLI::App& app, const std::vector<std::string>& words, Console console) {
  const auto option =
      std::find_if(words.begin(), words.end(), [](const auto& word) { return word[0] == '-'; });
  const std::string see = fmt::format("see {} --help", app.get_name());
  if (option == words.end()) {
    return usage_error(app.get_name(), fmt::format("unexpected argument '{}'", words.front()), see,
                       console);
  }
  const std::string name = option->substr(0, option->find('='));
  const std::string near = nearest(name, option_names(app));
  return usage_error(app.get_name(), fmt::format("unknown option '{}'", name),
                     near.empty() ? see : fmt::format("did you mean '{}'? {}", near, see), console);
}

/// The error of a file of options that cannot be read; what() is the whole message.
class UnreadableOptions : public CLI::FileError {
 public:
  explicit UnreadableOptions(const Status& why) : FileError(why.message()) {}
};

/// Reads a file of options instead of CLI11, which opens anything and reads as long as something
/// comes. CLI11 gets an empty file to open; `from_config` gives it the text of the user's file.
class OptionsFile final : public CLI::ConfigBase {
 public:
  /// Reads the file `name`, and replaces `name` with the name of an empty file.
  void take(std::string& name) {
    if (name.empty()) return;
    if (name != name_) {  // CLI11 asks twice, but a pipe can be read only once
      auto text = read_file(name, {"file of options"});
      if (!text.ok()) throw UnreadableOptions(text.status());
      text_ = std::move(*text);
      name_ = name;
    }
    name = "/dev/null";
  }
  std::vector<CLI::ConfigItem> from_config(std::istream& /*empty*/) const override {
    std::istringstream text(text_);
    return ConfigBase::from_config(text);
  }

  /// Returns the place where the file sets an option, "settings.ini:3: "; "" where it does not.
  std::string place_of(const std::string& option) const {
    std::istringstream lines(text_);
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
      const std::size_t begin = std::min(line.find_first_not_of(" \t"), line.size());
      const std::size_t end = std::min(line.find_first_of(" \t=", begin), line.size());
      if (line.substr(begin, end - begin) == option) return fmt::format("{}:{}: ", name_, number);
    }
    return "";
  }

 private:
  std::string name_, text_;
};

/// Returns where the options file of `app` sets `option`, a long name without dashes.
std::string place_in_file(const CLI::App& app, const std::string& option) {
  const auto file = std::dynamic_pointer_cast<const OptionsFile>(app.get_config_formatter());
  return file == nullptr ? "" : file->place_of(option);
}

/// Returns the unknown name in a file of options, from CLI11's message; "" if the error is another
/// one.
std::string unknown_name(const CLI::ParseError& error) {
  constexpr std::string_view kBefore = "INI was not able to parse ";
  const std::string_view what = error.what();
  return std::string(what.substr(0, kBefore.size()) == kBefore ? what.substr(kBefore.size()) : "");
}

/// Reports an error in the options file of `app`, at `place`. Returns 2.
int file_error(const std::string& place, const std::string& message, const std::string& hint,
               Console console) {
  console.err << fmt::format("{}error: {}\n  hint: {}\n", place, message, hint);
  return exit_code(StatusCode::kUsage);
}

int unknown_in_file(const CLI::App& app, const std::string& name, Console console) {
  const std::string near = nearest("--" + name, option_names(app));
  const std::string see = fmt::format("see {} --help", app.get_name());
  return file_error(place_in_file(app, name), fmt::format("unknown option '{}'", name),
                    near.empty() ? see : fmt::format("did you mean '{}'? {}", near.substr(2), see),
                    console);
}

/// Tells whether a command line has an option, as "--seed 1" or "--seed=1".
bool has_option(const std::vector<std::string>& args, const std::string& option) {
  return std::any_of(args.begin(), args.end(), [&](const std::string& word) {
    return word == option || word.rfind(option + "=", 0) == 0;
  });
}

/// Reports what is wrong with the options of `app`, of which the command line has `args`.
int wrong(const CLI::App& app, const ParseFault& fault, const std::vector<std::string>& args,
          Console console) {
  const std::string see = fmt::format("see {} --help", app.get_name());
  const std::string hint = fault.hint.empty() ? see : fmt::format("{} {}", fault.hint, see);
  const bool is_long = fault.option.rfind("--", 0) == 0 && !has_option(args, fault.option);
  const std::string place = is_long ? place_in_file(app, fault.option.substr(2)) : "";
  if (place.empty()) return usage_error(app.get_name(), fault.message, hint, console);
  return file_error(place, fault.message.substr(2), hint, console);
}

}  // namespace

void add_config_option(CLI::App& app) {
  const auto file = std::make_shared<OptionsFile>();
  app.set_config("--config", "", "file of options, NAME=VALUE a line")
      ->transform(CLI::Validator(
          [file](std::string& name) {
            file->take(name);
            return std::string();
          },
          ""));
  app.config_formatter(file);
  app.allow_config_extras(CLI::config_extras_mode::error);
}

std::optional<int> parse_arguments(CLI::App& app, std::vector<std::string> args, Console console) {
  const std::vector<std::string> given = args;
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
    if (dynamic_cast<const UnreadableOptions*>(&e) != nullptr) {
      return finish({StatusCode::kUsage, e.what()}, app.get_name(), console);
    }
    if (const auto extras = app.remaining(true); !extras.empty()) {
      return unexpected(app, extras, console);
    }
    if (const std::string name = unknown_name(e); !name.empty()) {
      return unknown_in_file(app, name, console);
    }
    return wrong(app, parse_fault(e, app), given, console);
  }
  if (const CLI::Option* empty = given_empty(app)) {
    const std::string name =
        empty->get_positional() ? empty->get_name() : "--" + empty->get_lnames().front();
    return usage_error(app.get_name(), fmt::format("{} is empty", name),
                       "give it a value; is it a variable of the shell that is not set?", console);
  }
  for (const CLI::Option* option : options_of(app)) {
    if (const auto fault = untrue_flag(*option)) return wrong(app, *fault, given, console);
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
  const std::string first = message.substr(0, message.find('\n'));
  const bool placed =
      first.find(": error: ") != first.npos || first.find(": warning: ") != first.npos;
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

void Progress::leave(std::string_view what) {
  done();
  err_ << what << '\n';
}

void Progress::done() {
  if (width_ > 0) err_ << '\r' << std::string(width_, ' ') << '\r' << std::flush;
  width_ = 0;
}

Result<std::string> read_input(const std::string& path, const InputKind& kind) {
  return path == "-" ? read_standard_input(kind) : read_file(path, kind);
}

namespace {

std::error_code last_error() { return {errno, std::generic_category()}; }

std::error_code write_and_close(int file, std::string_view text) {
  std::error_code error;
  while (!error && !text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    if (count > 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      error = count == 0 ? std::make_error_code(std::errc::io_error) : last_error();
    }
  }
  if (::close(file) != 0 && !error) error = last_error();
  return error;
}

// Writes to what cannot be replaced, such as /dev/null, a pipe, or an open file without a name.
std::error_code write_into(const std::string& path, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  return file < 0 ? last_error() : write_and_close(file, text);
}

}  // namespace

bool has_ending(std::string_view path, std::string_view ending) {
  return path.size() > ending.size() && path.ends_with(ending);
}

std::error_code write_new_file(const std::string& path, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return last_error();
  const std::error_code error = write_and_close(file, text);
  if (error) ::unlink(path.c_str());
  return error;
}

std::error_code replace_file(const std::string& path, std::string_view text) {
  std::error_code error;
  std::string written;
  do {
    written = temporary_beside(path);
    if (written.empty()) return last_error();
    error = write_new_file(written, text);
  } while (error == std::errc::file_exists);
  if (error || std::rename(written.c_str(), path.c_str()) == 0) return error;
  error = last_error();
  ::unlink(written.c_str());
  return error;
}

Status write_file(const std::string& path, std::string_view text, Console console) {
  if (path == "-") {
    console.out << text;
    return {};
  }
  namespace fs = std::filesystem;
  std::error_code none;  // ignored: opening the path reports the error
  const fs::file_status status = fs::status(path, none);
  const bool link = fs::is_symlink(path, none);
  const fs::path link_end = link ? fs::canonical(path, none) : fs::path();
  // A link of /proc may lead to an open file that has no name any more.
  const bool nameless = link && link_end.empty();
  const bool special = fs::exists(status) && (!fs::is_regular_file(status) || nameless);
  const std::error_code error =
      special ? write_into(path, text)
              : replace_file(link_end.empty() ? path : link_end.string(), text);
  if (!error) return {};
  return invalid_input(fmt::format("{}: error: cannot be written: {}", path, error.message()));
}

Result<Plan> read_plan(const std::string& path) {
  AGPCS_TRY(const std::string text, read_input(path, {"plan"}));
  return parse_plan(text, path);
}

Status in_plan_file(const Status& status, std::string_view path) {
  constexpr std::string_view kPlan = "plan", kError = "plan: error:";
  std::string text = status.message();
  for (std::size_t at = 0; at < text.size();) {
    if (text.compare(at, kError.size(), kError) == 0) text.replace(at, kPlan.size(), path);
    const std::size_t end = text.find('\n', at);
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return status.ok() ? status : Status(status.code(), std::move(text));
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

void add_model_options(CLI::App& app, ModelChoices& choices, std::vector<std::string>& dims) {
  app.add_option("--dim", dims, "NAME=VALUE binds a symbolic dimension of a model")
      ->allow_extra_args(false);
  app.add_option("--freeze", choices.freeze,
                 "NAME of a weight that is not trained, or a pattern such as 'rotary.*'; may be "
                 "given several times")
      ->allow_extra_args(false);
  app.add_option(
         "--train", choices.train,
         "NAME of a constant of the model's file that is trained, or a pattern; may be given "
         "several times")
      ->allow_extra_args(false);
}

namespace {

Result<TrainingModel> training_model_of(Imported imported, Loss& loss) {
  AGPCS_TRY(Graph with_loss, attach_loss(std::move(imported.graph), loss));
  AGPCS_TRY(Graph graph, derive_backward(std::move(with_loss)));
  return TrainingModel{std::move(graph), std::move(imported.warnings)};
}

}  // namespace

Result<TrainingModel> read_training_model(const std::string& path, const ModelChoices& choices,
                                          Loss& loss, bool read_weights) {
  ImportOptions options;
  options.dims = choices.dims;
  options.freeze = choices.freeze;
  options.train = choices.train;
  options.fuse = choices.fuse;
  options.inference_graph = true;
  options.read_weights = read_weights;
  AGPCS_TRY(Imported imported, import_onnx(path, options));
  return training_model_of(std::move(imported), loss);
}

Result<TrainingModel> parse_training_model(std::string_view text, const std::string& file,
                                           Loss& loss) {
  ImportOptions options;
  options.inference_graph = true;
  AGPCS_TRY(Imported imported, import_onnx_bytes(std::string(text), file, "", options));
  return training_model_of(std::move(imported), loss);
}

Result<TrainingModel> read_planned_model(const std::string& path, const Plan& plan,
                                         bool read_weights) {
  Loss loss = plan.training.loss;
  const std::vector<std::string_view> known = fusible_types();
  for (const std::string& type : plan.fused) {
    if (std::find(known.begin(), known.end(), type) != known.end()) continue;
    return invalid_input(
        fmt::format("the plan fuses operators to {}, which this version does not\n"
                    "  hint: it fuses {}; plan the model anew",
                    type, fmt::join(known, ", ")));
  }
  const ModelChoices choices = {plan.dims, plan.frozen, plan.trained, plan.fused};
  AGPCS_TRY(TrainingModel model, read_training_model(path, choices, loss, read_weights));
  if (plan.training.attention == AttentionForm::kFused) fuse_attention(model.graph);
  return model;
}

}  // namespace agpcs
