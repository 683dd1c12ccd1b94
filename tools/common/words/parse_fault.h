// SPDX-License-Identifier: Apache-2.0
// What CLI11 finds wrong with a command line, in the words of our commands.
#pragma once

#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 names it
class App;
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

}  // namespace agpcs
