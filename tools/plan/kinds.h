// SPDX-License-Identifier: Apache-2.0
// `agpcs-plan kinds`: shows the catalog of accelerators and networks.
#pragma once

#include "frontend/cluster/catalog/catalog.h"

#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// The part of a catalog that a name selects.
struct ShownKinds {
  const Catalog& catalog;
  std::vector<const AcceleratorKind*> accelerators;
  std::vector<const NetworkKind*> networks;
};

/// Selects what is called `name`, or else all that resembles it; an empty name selects everything.
/// Errors (kInvalidInput): there is nothing.
Result<ShownKinds> select_kinds(const Catalog& catalog, const std::string& name);

/// Returns tables with at most 100 columns. Of a single entry it returns each figure with its
/// source.
std::string kinds_text(const ShownKinds& kinds);
/// Returns all figures in SI units, each with its source.
std::string kinds_json(const ShownKinds& kinds);
/// Returns docs/reference/kinds.md.
std::string kinds_page(const Catalog& catalog);

}  // namespace agpcs
