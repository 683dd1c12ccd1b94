// SPDX-License-Identifier: Apache-2.0
#include "runtime/link_watch.h"

#include <algorithm>
#include <utility>

namespace agpcs {

bool LinkWatch::due(bool suspected, bool asked) {
  if (rest_ > 0) --rest_;
  return before_.empty() || confirming_ || asked || (suspected && rest_ == 0);
}

bool LinkWatch::note(std::vector<LinkMeasurement> probed) {
  now_ = std::move(probed);
  if (before_.empty()) {
    before_ = told_ = now_;
    return false;
  }
  const bool differs = !changed_links(told_, now_).empty();
  if (differs && confirming_) {
    accept();
    return true;
  }
  confirming_ = differs;
  if (!differs) {
    rest_ = patience_;
    patience_ = std::min(2 * patience_, kMostPatience);
  }
  return false;
}

void LinkWatch::accept() {
  told_ = now_;
  confirming_ = false;
  patience_ = 1;
  rest_ = 0;
}

}  // namespace agpcs
