// SPDX-License-Identifier: Apache-2.0
// Imports each model whose path stands on a line of standard input, as its nodes are written.
// Prints a line for each: "accepted", "warned" (its values are not what the file declares), or
// "refused: " and the first line of the reason.
#include "frontend/onnx/import_onnx.h"

#include <cstdio>
#include <iostream>
#include <string>

int main() {
  agpcs::ImportOptions options;
  options.as_written = true;
  std::string path;
  while (std::getline(std::cin, path)) {
    const auto imported = agpcs::import_onnx(path, options);
    std::string line = "accepted";
    if (!imported.ok()) {
      const std::string message = imported.status().message();
      line = "refused: " + message.substr(0, message.find('\n'));
    } else if (imported->warnings.find("the file declares") != std::string::npos) {
      line = "warned";
    }
    std::puts(line.c_str());
    std::fflush(stdout);
  }
}
