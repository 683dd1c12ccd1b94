// SPDX-License-Identifier: Apache-2.0
// What CLI11 finds wrong with a command line, in the words of our commands.
#pragma once

#include <optional>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 names it
class App;
class Option;
class ParseError;
}  // namespace CLI

namespace agpcs {

struct ParseFault {
  std::string option;   ///< as CLI11 names it, "--threads"; "" if the message names none first
  std::string message;  ///< "--threads: '0' is not a whole number from 1 to 1024"
  std::string hint;     ///< "did you mean 'tcp'?"; "" if --help is all that helps
};

/// Says what `error` says of the command line of `app`. Where CLI11 has the words of a program
/// ("--threads: Value 0 not in range 1 to 1024", "--batch: 1 required INT missing"), it has those
/// of a sentence. Other messages stay as they are.
ParseFault parse_fault(const CLI::ParseError& error, const CLI::App& app);

/// Returns what is wrong if `option` is a flag with another value than true, false, 1 or 0. CLI11
/// takes "--json=3" as "--json".
std::optional<ParseFault> untrue_flag(const CLI::Option& option);

}  // namespace agpcs
