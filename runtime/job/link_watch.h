// SPDX-License-Identifier: Apache-2.0
// LinkWatch: decides when a running job probes its links, and which probes show a change.
#pragma once

#include <agpcs/drift.h>

#include <cstddef>
#include <vector>

namespace agpcs {

/// Watches the links of one plan. It is deterministic and gets only what all ranks know, so all
/// ranks probe at the same step and draw the same conclusion.
///
/// An exchange is the moment when ranks share their measurements, every few steps (agpcs/drift.h).
/// A suspicion is an exchange after which communication seems to take longer or shorter.
///
/// Two probes in a row must find a change (`changed_links`), because one may have met other
/// traffic. If a suspicion caused the probes, only changes that alter a step by a tenth count:
/// links within a busy machine change by factors on their own, and mostly that does not matter. If
/// rank 0 asked for the probes, all changes count, because a plan may hardly use a link that
/// recovers. After each probe that finds nothing, the next suspicion waits for twice as many
/// exchanges. A link that is slower than when the job began gets short probes (glances), which come
/// more often than probes of all links.
class LinkWatch {
 public:
  /// `first`: links of earlier plans as the job first probed them.
  explicit LinkWatch(const Plan& plan, std::vector<LinkMeasurement> first = {});
  /// Returns, after an exchange, whether to probe before the next step. The first probe of a plan
  /// is due at once. Later ones are due when communication is `suspected` to have changed, when
  /// rank 0 `asked`, or to confirm what the last probe found.
  bool due(bool suspected, bool asked);
  /// Takes the result of a probe. Returns whether it establishes a new change. A link of which an
  /// end was held back from its processor stays as it was last known; where this was so from the
  /// beginning, its first figure without it is what it was.
  bool note(std::vector<LinkMeasurement> probed);
  /// Returns whether another probe, as soon as possible, has to confirm what the last one found.
  bool confirming() const { return confirming_; }
  /// Returns the last reported figures of the links that are slower than at their first probe.
  std::vector<LinkMeasurement> slow() const;
  /// Returns the link of `slow()` whose turn it is for a glance. They take turns, because links
  /// that are slow together mostly recover together. Needs: there is one.
  LinkMeasurement glance_at() const;
  /// Takes the result of that glance. Returns whether a link seems faster; then all links are to be
  /// probed at once, as after a request. The counter of glances in vain grows with each such
  /// glance, and starts anew when a change is reported.
  bool glance(const std::vector<LinkMeasurement>& glanced);
  int glances_in_vain() const { return in_vain_; }
  /// Makes the last probe the reported state: only differences from it are changes from now on.
  /// Returns whether it differs from what was reported before.
  bool accept();
  /// Notes an exchange. Returns whether, a few exchanges ago at most, a report said that no link is
  /// slower any more than when the job began, while some were before.
  bool returned_lately();
  /// Returns whether the last reported state differs from the plan's first probe.
  bool changed() const { return !changed_links(before_, told_).empty(); }
  /// Returns each link as the job first probed it.
  const std::vector<LinkMeasurement>& first() const { return first_; }
  /// Return the plan's first probe and its last one; empty before there is one.
  const std::vector<LinkMeasurement>& before() const { return before_; }
  const std::vector<LinkMeasurement>& now() const { return now_; }

 private:
  static constexpr int kMostPatience = 256, kLately = 6;  // exchanges
  bool differs() const;

  std::vector<LinkTraffic> traffic_;
  double step_seconds_ = 0;  // the step that the plan expects
  std::vector<LinkMeasurement> first_, before_, told_, now_;
  bool asked_ = false, confirming_ = false;
  int in_vain_ = 0;  // glances since a change was last reported that saw a faster link
  std::size_t glances_ = 0;
  int since_return_ = kLately;  // exchanges
  // Exchanges: how long suspicions wait next time, and how long they still wait.
  int patience_ = 1, rest_ = 0;
};

}  // namespace agpcs
