// SPDX-License-Identifier: Apache-2.0
// Looks names up in the catalog.
#include "frontend/cluster/catalog/catalog.h"
#include "ir/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kMostSuggested = 4;

template <typename Entry>
const Entry* find_by_name(const std::vector<Entry>& entries, std::string_view name) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  return found == entries.end() ? nullptr : &*found;
}

template <typename Entry>
std::vector<std::string> names_in(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.name);
  return names;
}

// Returns the letters and digits of `name`, in lower case.
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z') text += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) text += c;
  }
  return text;
}

}  // namespace

const AcceleratorKind* Catalog::find_accelerator(std::string_view name) const {
  return find_by_name(accelerators, name);
}

const NetworkKind* Catalog::find_network(std::string_view name) const {
  return find_by_name(networks, name);
}

const ProtocolKind* Catalog::find_protocols(std::string_view name) const {
  return find_by_name(protocols, name);
}

const CatalogSource* Catalog::find_source(std::string_view name) const {
  return find_by_name(sources, name);
}

std::vector<std::string> Catalog::accelerator_names() const { return names_in(accelerators); }

std::vector<std::string> Catalog::network_names() const { return names_in(networks); }

const Catalog& catalog() {
  static const Catalog kCatalog = [] {
    Result<Catalog> read = parse_catalog(catalog_text(), "catalog.yaml");
    AGPCS_CHECK(read.ok(), "{}", read.status().message());
    return std::move(*read);
  }();
  return kCatalog;
}

bool resembles(std::string_view name, std::string_view word) {
  return plain(name).find(plain(word)) != std::string::npos;
}

std::string did_you_mean_of_catalog(std::string_view word, const std::vector<std::string>& names) {
  const std::string wanted = plain(word);
  if (wanted.empty()) return "";
  std::vector<std::string> like, plain_names;
  for (const std::string& name : names) {
    plain_names.push_back(plain(name));
    if (plain_names.back() == wanted) return fmt::format("did you mean '{}'?", name);
    if (resembles(name, word)) like.push_back(name);
  }
  if (like.empty()) {
    const std::string close = nearest(wanted, plain_names);
    const auto at = std::find(plain_names.begin(), plain_names.end(), close);
    if (!close.empty()) like.push_back(names[static_cast<std::size_t>(at - plain_names.begin())]);
  }
  if (like.empty()) return "";
  if (like.size() > kMostSuggested) {
    return fmt::format("'agpcs-plan kinds {}' lists the {} that it may be", word, like.size());
  }
  return fmt::format("did you mean '{}'?", fmt::join(like, "' or '"));
}

}  // namespace agpcs
