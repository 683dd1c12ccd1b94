// SPDX-License-Identifier: Apache-2.0
// LinkWatch: when a running job probes its links, and which probes tell of a change.
#pragma once

#include <agpcs/drift.h>

#include <vector>

namespace agpcs {

/// The links of one plan. Deterministic, and fed with what all ranks know: all probe at the same
/// step and draw the same conclusion.
///
/// Two probes in a row must find a change (`changed_links`), for one may have met other traffic. A
/// suspicion is confirmed by changes that alter a step by a tenth: links within a busy machine
/// change by factors of their own accord, and mostly it does not matter. Who asks is told of all,
/// for a plan may hardly use what recovers.
/// Probes that find nothing make suspicions wait: twice as many exchanges each time.
/// A link that is slower than when the job began is glanced at more often than all are probed.
class LinkWatch {
 public:
  /// `first`: what links of earlier plans were when the job first probed them.
  explicit LinkWatch(const Plan& plan, std::vector<LinkMeasurement> first = {});
  /// After an exchange: whether to probe before the next step. The first probe of a plan is due at
  /// once; later ones when communication is `suspected` to have changed, when rank 0 `asked`, or to
  /// confirm what the last probe found.
  bool due(bool suspected, bool asked);
  /// A probe's figures. Whether a change is established that was not told yet.
  bool note(std::vector<LinkMeasurement> probed);
  /// Whether the last probe found what another one, as soon as can be, has to confirm.
  bool confirming() const { return confirming_; }
  /// What was told last of the links that are slower than when they were first probed.
  std::vector<LinkMeasurement> slow() const;
  /// Figures of a glance at `slow()`. Whether one seems faster: all are to be probed at once, as
  /// when asked for. Glances in vain count until something is told.
  bool glance(const std::vector<LinkMeasurement>& glanced);
  int glances_in_vain() const { return in_vain_; }
  /// The last probe is told: only what differs from it is, from now on.
  void accept();
  /// Whether what was told last differs from the plan's first probe.
  bool changed() const { return !changed_links(before_, told_).empty(); }
  /// By link: what it was when the job first probed it.
  const std::vector<LinkMeasurement>& first() const { return first_; }
  /// The plan's first probe, and the last one; empty before.
  const std::vector<LinkMeasurement>& before() const { return before_; }
  const std::vector<LinkMeasurement>& now() const { return now_; }

 private:
  static constexpr int kMostPatience = 256;  // exchanges
  bool differs() const;

  std::vector<LinkTraffic> traffic_;
  double step_seconds_ = 0;  // expected
  std::vector<LinkMeasurement> first_, before_, told_, now_;
  bool asked_ = false, confirming_ = false;
  int in_vain_ = 0;              // glances
  int patience_ = 1, rest_ = 0;  // exchanges: that suspicions wait next time; that they still do
};

}  // namespace agpcs
