// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/link_watch.h"

#include "runtime/job/drift/expectation.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace agpcs {
namespace {

constexpr double kMatters = 0.1;  // part of a step

const LinkMeasurement* find(const std::vector<LinkMeasurement>& links, int from, int to) {
  const auto found = std::find_if(links.begin(), links.end(), [&](const LinkMeasurement& link) {
    return link.from == from && link.to == to;
  });
  return found == links.end() ? nullptr : &*found;
}

/// Replaces what was measured while an end of the link was held back.
void replace(std::vector<LinkMeasurement>& links, const LinkMeasurement& link) {
  for (LinkMeasurement& other : links) {
    if (other.held && other.from == link.from && other.to == link.to) other = link;
  }
}

}  // namespace

LinkWatch::LinkWatch(const Plan& plan, std::vector<LinkMeasurement> first)
    : traffic_(link_traffic(plan)), step_seconds_(step_seconds(plan)), first_(std::move(first)) {}

bool LinkWatch::differs() const {
  const std::vector<LinkChange> changes = changed_links(told_, now_);
  if (asked_) return !changes.empty();
  return std::any_of(changes.begin(), changes.end(), [&](const LinkChange& change) {
    const LinkMeasurement* was = find(told_, change.from, change.to);
    const LinkMeasurement* is = find(now_, change.from, change.to);
    const auto sent = std::find_if(traffic_.begin(), traffic_.end(), [&](const LinkTraffic& t) {
      return t.from == change.from && t.to == change.to;
    });
    if (was == nullptr || is == nullptr || sent == traffic_.end()) return false;
    const double more = sent->bytes * (is->seconds_per_byte - was->seconds_per_byte) +
                        sent->messages * (is->latency_seconds - was->latency_seconds);
    return std::abs(more) > kMatters * step_seconds_;
  });
}

bool LinkWatch::due(bool suspected, bool asked) {
  if (rest_ > 0) --rest_;
  asked_ = asked || (confirming_ && asked_);
  return before_.empty() || confirming_ || asked || (suspected && rest_ == 0);
}

bool LinkWatch::note(std::vector<LinkMeasurement> probed) {
  for (LinkMeasurement& link : probed) {
    const LinkMeasurement* known = find(now_, link.from, link.to);
    if (known == nullptr) continue;
    if (link.held) {
      link = *known;
    } else if (known->held) {  // the first figure that says something
      for (auto* links : {&first_, &before_, &told_}) replace(*links, link);
    }
  }
  now_ = std::move(probed);
  if (before_.empty()) {
    before_ = told_ = now_;
    std::copy_if(now_.begin(), now_.end(), std::back_inserter(first_),
                 [&](const auto& link) { return find(first_, link.from, link.to) == nullptr; });
    return false;
  }
  const bool changed = differs();
  if (changed && confirming_) {
    accept();
    return true;
  }
  confirming_ = changed;
  if (!changed) {
    rest_ = patience_;
    patience_ = std::min(2 * patience_, kMostPatience);
  }
  return false;
}

std::vector<LinkMeasurement> LinkWatch::slow() const {
  std::vector<LinkMeasurement> slow;
  for (const LinkChange& change : changed_links(first_, told_)) {
    if (change.factor * change.latency_factor > 1)
      slow.push_back(*find(told_, change.from, change.to));
  }
  return slow;
}

LinkMeasurement LinkWatch::glance_at() const {
  const std::vector<LinkMeasurement> links = slow();
  return links[glances_ % links.size()];
}

bool LinkWatch::glance(const std::vector<LinkMeasurement>& glanced) {
  ++glances_;
  if (std::ranges::any_of(glanced, &LinkMeasurement::held)) return false;  // it says nothing
  const std::vector<LinkChange> changes = changed_links(told_, glanced);
  const bool faster = std::any_of(changes.begin(), changes.end(), [](const LinkChange& change) {
    return change.factor * change.latency_factor < 1;
  });
  if (!faster) return false;
  ++in_vain_;
  asked_ = true;
  return true;
}

bool LinkWatch::returned_lately() {
  const bool lately = since_return_ < kLately;
  since_return_ = std::min(since_return_ + 1, kLately);
  return lately;
}

bool LinkWatch::accept() {
  const bool changed = !changed_links(told_, now_).empty();
  const bool some_were_slow = !slow().empty();
  in_vain_ = 0;
  told_ = now_;
  if (some_were_slow && slow().empty()) since_return_ = 0;
  confirming_ = false;
  patience_ = 1;
  rest_ = 0;
  return changed;
}

}  // namespace agpcs
