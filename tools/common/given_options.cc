// SPDX-License-Identifier: Apache-2.0
#include "tools/common/given_options.h"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace agpcs {
namespace {

bool is_positional(const std::string& name) { return name.rfind("--", 0) != 0; }

}  // namespace

GivenOptions::GivenOptions(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const bool flag = option->get_items_expected_max() == 0;
    const std::string name =
        option->get_positional() ? option->get_single_name() : "--" + option->get_lnames().front();
    given_.push_back({name, flag ? std::vector<std::string>() : option->results(),
                      !flag && option->get_allow_extra_args()});
  }
}

void GivenOptions::set(const std::string& name, const std::vector<std::string>& values) {
  const auto found = std::find_if(given_.begin(), given_.end(),
                                  [&](const Given& given) { return given.name == name; });
  if (found != given_.end()) {
    found->values = values;
  } else {
    given_.push_back({name, values, false});
  }
}

void GivenOptions::remove(const std::string& name) {
  std::erase_if(given_, [&](const Given& given) { return given.name == name; });
}

std::vector<std::string> GivenOptions::arguments() const {
  std::vector<std::string> options, positionals;
  bool greedy = false;  // the last option is
  for (const Given& given : given_) {
    if (is_positional(given.name)) {
      positionals.insert(positionals.end(), given.values.begin(), given.values.end());
      continue;
    }
    if (given.values.empty()) options.push_back(given.name);
    for (const std::string& value : given.values) options.push_back(given.name + "=" + value);
    greedy = given.greedy;
  }
  if (greedy) options.emplace_back("--");
  options.emplace_back("--");
  options.insert(options.end(), positionals.begin(), positionals.end());
  return options;
}

}  // namespace agpcs
