// SPDX-License-Identifier: Apache-2.0
// The options that a command was given, which print themselves as a command line: for processes
// that a command starts to do a part of its work.
#pragma once

#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 names it
class App;
}

namespace agpcs {

class GivenOptions {
 public:
  GivenOptions() = default;
  /// Takes what `app` has parsed.
  explicit GivenOptions(const CLI::App& app);

  /// Sets an option, in place of what it was: "--resume", or a positional argument by its name,
  /// "plan". A flag has no values; an option that may be repeated has several.
  void set(const std::string& name, const std::vector<std::string>& values);
  void remove(const std::string& name);
  /// Returns arguments that `parse_arguments` reads as these options: options by their long names,
  /// one argument each, then "--" and the positional arguments.
  std::vector<std::string> arguments() const;

 private:
  struct Given {
    std::string name;
    std::vector<std::string> values;
    bool greedy = false;  // takes arguments that follow it, and a "--" that ends them
  };
  std::vector<Given> given_;  // in the order of --help
};

}  // namespace agpcs
