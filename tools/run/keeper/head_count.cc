// SPDX-License-Identifier: Apache-2.0
#include "tools/run/keeper/head_count.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace agpcs {

HeadCount::HeadCount(int seats)
    : ready_(static_cast<std::size_t>(seats)), gone_(static_cast<std::size_t>(seats), 0) {}

void HeadCount::take(const BootstrapEvent& event) {
  if (event.lost) return take_loss(event.rank, event.text);
  const auto message = parse_keeper_message(event.text);
  if (!message.ok()) {
    if (broken_.ok()) broken_ = message.status();
  } else if (const auto* ready = std::get_if<ReadyReport>(&*message)) {
    ready_[static_cast<std::size_t>(event.rank)] = *ready;
  } else if (const auto* asked = std::get_if<AskedReport>(&*message)) {
    if (signal_ != 0) return;
    signal_ = asked->signal;
    asked_seat_ = event.rank;
  } else if (const auto* ended = std::get_if<EndedReport>(&*message)) {
    if (ended->generation == generation_) take_end(event.rank, ended->end);
  } else if (const auto* broken = std::get_if<BrokenReport>(&*message)) {
    if (broken_.ok()) broken_ = broken->status;
    take_end(event.rank, {RankEnd::Kind::kFailed, broken->status.code(), broken->status.message()});
  }
}

void HeadCount::take_loss(int seat, const std::string& why) {
  gone_[static_cast<std::size_t>(seat)] = 1;
  if (generation_ < 0 && broken_.ok()) broken_ = Status(StatusCode::kPeerFailed, why);
  take_end(seat, {RankEnd::Kind::kKilled, StatusCode::kPeerFailed, "the starter of " + why});
}

// Records a rank's end. Only the first report counts.
void HeadCount::take_end(int seat, RankEnd end) {
  const auto at = std::find(seats_.begin(), seats_.end(), seat);
  if (at == seats_.end()) return;
  auto& known = ends_[static_cast<std::size_t>(at - seats_.begin())];
  if (!known) known = std::move(end);
}

void HeadCount::begin(int generation, std::vector<int> seats) {
  generation_ = generation;
  seats_ = std::move(seats);
  ends_.assign(seats_.size(), std::nullopt);
}

void HeadCount::stop_waiting() {
  for (std::size_t rank = 0; rank < ends_.size(); ++rank) {
    if (ends_[rank]) continue;
    ends_[rank] = RankEnd{RankEnd::Kind::kKilled, StatusCode::kPeerFailed,
                          fmt::format("the starter of rank {} did not end it", rank)};
  }
}

bool HeadCount::all_ready() const {
  return std::all_of(ready_.begin(), ready_.end(),
                     [](const auto& ready) { return ready.has_value(); });
}

bool HeadCount::has_rank(int seat) const {
  return std::find(seats_.begin(), seats_.end(), seat) != seats_.end();
}

bool HeadCount::failing() const {
  return std::any_of(ends_.begin(), ends_.end(),
                     [](const auto& end) { return end && end->failed(); });
}

bool HeadCount::complete() const {
  return std::all_of(ends_.begin(), ends_.end(), [](const auto& end) { return end.has_value(); });
}

std::vector<RankEnd> HeadCount::ends() const {
  std::vector<RankEnd> ends;
  for (const auto& end : ends_) ends.push_back(end.value_or(RankEnd{}));
  return ends;
}

std::vector<int> HeadCount::lost() const {
  std::vector<int> lost = lost_ranks(ends());
  for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
    const bool gone = gone_[static_cast<std::size_t>(seats_[rank])] != 0;
    if (gone && ends_[rank] && ends_[rank]->failed()) lost.push_back(static_cast<int>(rank));
  }
  std::sort(lost.begin(), lost.end());
  lost.erase(std::unique(lost.begin(), lost.end()), lost.end());
  return lost;
}

Status HeadCount::verdict() const {
  const Status status = agpcs::verdict(ends(), signal_);
  return status.ok() ? broken_ : status;
}

}  // namespace agpcs
