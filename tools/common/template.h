// SPDX-License-Identifier: Apache-2.0
// Fills templates of HTML pages, in a subset of Mustache.
#pragma once

#include "tools/common/json.h"

#include <string>
#include <string_view>

namespace agpcs {

/// Returns `text` with its tags replaced by `values`, an object:
///
///     {{key}}                  the value, escaped for HTML
///     {{{key}}}                the value as it is
///     {{#key}} ... {{/key}}    this part for each element of an array; once for another value, and
///                              not at all for null, false or an empty text
///
/// Inside of such a part, keys are those of the element, if it is an object, and then those around
/// it; {{.}} is the element itself. The line of a tag {{#key}} or {{/key}} that stands alone on it
/// leaves nothing. Needs: every key has a value, parts are closed, values outside of parts are
/// texts or numbers (checked).
std::string fill_template(std::string_view text, const Json& values);

}  // namespace agpcs
