// SPDX-License-Identifier: Apache-2.0
// A recording is text:
//
//     job NAME STEP-SECONDS ELEMENTS RANKS
//     links FROM TO SECONDS-PER-BYTE LATENCY HELD ...   a probe of all links, before the next
//     exchange change RANK SPEED RATE                            from the next exchange on, parts
//     of what was WALL PROCESSOR HELD ALL-REDUCE SEND ...           an exchange: for each rank
//     microseconds a step
//
// It is played as a trainer does it: figures go to the detector, its verdicts and suspicions ask
// for a probe (the next one that was recorded), and LinkWatch says what it shows. A change is named
// rightly if all that is told of it is what was done: the rank whose speed changed and no other,
// and links of the rank whose rate changed and no other; within 20 steps or 4 seconds, whichever is
// longer.
#include "tests/bench/runtime/drift_judge.h"

#include "ir/base/median.h"
#include "runtime/job/link_watch.h"
#include "tests/bench/runtime/bucket_plan.h"
#include "tests/bench/support/mistakes.h"
#include "tests/runtime/job/drift_player.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::int64_t kEvery = 5;  // steps of an exchange
constexpr std::int64_t kSteps = 20;
constexpr double kSeconds = 4;

struct Exchange {
  std::vector<QuantitySeconds> seconds;  // by rank
  std::vector<OwnSeconds> own;
};

/// The machine of a rank has these parts of its speed and of its links' rate.
struct Change {
  std::size_t exchange = 0;  // the first one
  int rank = 0;
  double speed = 1, rate = 1;
};

struct Job {
  std::string name;
  double step_seconds = 0;
  std::int64_t elements = 0;
  int ranks = 0;
  std::vector<Exchange> exchanges;
  std::vector<Change> changes;
  std::map<std::size_t, std::vector<LinkMeasurement>> probes;  // by the exchange that follows
};

[[noreturn]] void end_at(const std::string& path, int line, std::string_view wrong) {
  bench::end_with(fmt::format("{}:{}: error: {}", path, line, wrong));
}

std::vector<LinkMeasurement> read_links(std::istringstream& words) {
  std::vector<LinkMeasurement> links;
  LinkMeasurement link;
  int held = 0;
  while (words >> link.from >> link.to >> link.seconds_per_byte >> link.latency_seconds >> held) {
    link.held = held != 0;
    links.push_back(link);
  }
  return links;
}

Exchange read_exchange(std::istringstream& words, int ranks) {
  constexpr double kMicro = 1e-6;
  Exchange exchange;
  for (int r = 0; r < ranks; ++r) {
    double wall = 0, processor = 0, held = 0, reduce = 0, send = 0;
    words >> wall >> processor >> held >> reduce >> send;
    exchange.seconds.push_back({wall * kMicro, reduce * kMicro, send * kMicro});
    exchange.own.push_back({processor * kMicro, held * kMicro});
  }
  return exchange;
}

std::vector<Job> read_jobs(const std::string& path) {
  bench::need_data(path, "a recording of tests/system/testbed/record_drift.py");
  std::ifstream in(path);
  std::vector<Job> jobs;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "job") {
      Job& job = jobs.emplace_back();
      words >> job.name >> job.step_seconds >> job.elements >> job.ranks;
      if (!words || job.ranks < 2) end_at(path, number, "not a job of two ranks or more");
      continue;
    }
    if (jobs.empty()) end_at(path, number, "no job has begun");
    Job& job = jobs.back();
    if (word == "links") {
      job.probes[job.exchanges.size()] = read_links(words);
    } else if (word == "change") {
      Change change{job.exchanges.size()};
      words >> change.rank >> change.speed >> change.rate;
      if (!words) end_at(path, number, "not a change: RANK SPEED RATE");
      job.changes.push_back(change);
    } else {
      words.clear();
      words.seekg(0);
      job.exchanges.push_back(read_exchange(words, job.ranks));
      if (!words) end_at(path, number, fmt::format("not five figures of {} ranks", job.ranks));
    }
  }
  return jobs;
}

/// What a plan expects: the medians before the first change.
Plan plan_of(const Job& job) {
  const std::size_t end = job.changes.empty() ? job.exchanges.size() : job.changes.front().exchange;
  std::vector<QuantitySeconds> expected(static_cast<std::size_t>(job.ranks));
  for (std::size_t r = 0; r < expected.size(); ++r) {
    for (std::size_t q = 0; q < expected[r].size(); ++q) {
      std::vector<double> values;
      for (std::size_t e = 0; e < end; ++e) values.push_back(job.exchanges[e].seconds[r][q]);
      expected[r][q] = values.empty() ? 0 : median(std::move(values));
    }
  }
  Plan plan = plan_of_buckets(job.ranks, {job.elements / 2, job.elements - job.elements / 2});
  plan.training.statistics_every = kEvery;
  expect_of_ranks(plan, job.step_seconds, expected);
  return plan;
}

/// What is told at once.
struct Told {
  std::size_t exchange = 0;
  std::vector<DriftChange> changes;
  std::vector<LinkChange> links;
};

/// Plays a job as a trainer does.
class Play {
 public:
  Play(const Job& job, const Plan& plan) : job_(job), plan_(plan), detector_(plan), watch_(plan) {}

  std::vector<Told> run() {
    for (std::size_t e = 0; e < job_.exchanges.size(); ++e) exchange(e);
    return std::move(told_);
  }

 private:
  void exchange(std::size_t e) {
    const Exchange& of = job_.exchanges[e];
    std::vector<RankStatistics> shared;
    for (std::size_t r = 0; r < of.seconds.size(); ++r) {
      shared.push_back(shared_by(plan_, static_cast<int>(r), of.seconds[r], of.own[r]));
    }
    const auto step = static_cast<std::int64_t>(e + 1) * kEvery - 1;
    auto changes = detector_.add(step, shared);
    const bool due = watch_.due(detector_.suspects_links(), false);
    pending_.insert(pending_.end(), changes.begin(), changes.end());
    wanted_ = wanted_ || due || !pending_.empty();
    const auto probed = job_.probes.find(e + 1);
    if (pending_.empty()) tell_at_ = e;
    if (changes.size() == pending_.size()) tell_at_ = e;  // the first verdict since the last probe
    if (!wanted_ || probed == job_.probes.end()) return;
    wanted_ = false;
    probe(probed->second);
  }

  void probe(const std::vector<LinkMeasurement>& probed) {
    const std::vector<LinkMeasurement> before = said_.empty() ? probed : said_;
    const bool established = watch_.note(probed);
    if (said_.empty()) said_ = probed;
    if (!established && pending_.empty()) return;
    const bool changed = pending_.empty() || watch_.accept();
    if (changed) detector_.learn_communication_anew();
    told_.push_back({tell_at_, pending_, changed_links(before, watch_.now())});
    said_ = watch_.now();
    pending_.clear();
  }

  const Job& job_;
  const Plan& plan_;
  DriftDetector detector_;
  LinkWatch watch_;
  std::vector<LinkMeasurement> said_;
  std::vector<DriftChange> pending_;
  std::size_t tell_at_ = 0;
  bool wanted_ = false;
  std::vector<Told> told_;
};

struct Counts {
  int changes = 0, named = 0, in_time = 0;
  std::vector<double> steps;
};

std::string kind_of(const Change& before, const Change& now) {
  const bool speed = now.speed != before.speed, rate = now.rate != before.rate;
  const bool back = now.speed >= before.speed && now.rate >= before.rate;
  return std::string(speed && rate ? "both" : speed ? "a rank" : "a link") + (back ? ", back" : "");
}

/// Judges what is told between a change and the next one.
void judge(const Job& job, const Change& before, const Change& now, std::size_t end,
           const std::vector<Told>& all, Counts& counts) {
  std::set<int> ranks;
  bool right_links = true, links = false, communication = false;
  std::size_t first = 0;
  for (const Told& told : all) {
    if (told.exchange < now.exchange || told.exchange >= end) continue;
    if (first == 0) first = told.exchange;
    for (const DriftChange& change : told.changes) {
      if (change.quantity == Quantity::kCompute) {
        ranks.insert(change.rank);
      } else {
        communication = true;
      }
    }
    for (const LinkChange& link : told.links) {
      links = true;
      right_links = right_links && (link.from == now.rank || link.to == now.rank);
    }
  }
  const bool speed = now.speed != before.speed, rate = now.rate != before.rate;
  const bool named = first > 0 && ranks == (speed ? std::set<int>{now.rank} : std::set<int>()) &&
                     (rate ? links && right_links : !links && !communication);
  const auto steps = static_cast<double>((first + 1 - now.exchange) * kEvery);
  ++counts.changes;
  counts.named += named;
  counts.in_time +=
      named && steps <= std::max<double>(kSteps, std::ceil(kSeconds / job.step_seconds));
  if (named) counts.steps.push_back(steps);
}

void judge(const Job& job) {
  const Plan plan = plan_of(job);
  const std::vector<Told> told = Play(job, plan).run();
  const std::size_t quiet =
      job.changes.empty() ? job.exchanges.size() : job.changes.front().exchange;
  const auto false_alarms = std::count_if(told.begin(), told.end(), [&](const Told& of) {
    return of.exchange < quiet && !(of.changes.empty() && of.links.empty());
  });
  std::cout << fmt::format("{}: steps of {:.0f} ms; false alarms in {} quiet steps: {}\n", job.name,
                           1e3 * job.step_seconds, quiet * kEvery, false_alarms);
  for (const Told& of : told) {
    if (of.exchange >= quiet) break;
    for (const DriftChange& change : of.changes)
      std::cout << "  " << describe(plan, change) << "\n";
    for (const LinkChange& link : of.links) std::cout << "  " << describe(plan, link) << "\n";
  }
  std::map<std::string, Counts> kinds;
  Change before;
  for (std::size_t c = 0; c < job.changes.size(); ++c) {
    const Change& now = job.changes[c];
    if (now.rank != before.rank) before = {0, now.rank};
    const std::size_t end =
        c + 1 < job.changes.size() ? job.changes[c + 1].exchange : job.exchanges.size();
    judge(job, before, now, end, told, kinds[kind_of(before, now)]);
    before = now;
  }
  for (auto& [kind, counts] : kinds) {
    std::cout << fmt::format("  {:<14}{:>4} changes, named rightly {:>4}, in time {:>4}", kind,
                             counts.changes, counts.named, counts.in_time);
    if (!counts.steps.empty())
      std::cout << fmt::format(", after {:.0f} steps", median(counts.steps));
    std::cout << "\n";
  }
}

}  // namespace

void judge_drift(const std::string& path) {
  const std::vector<Job> jobs = read_jobs(path);
  if (jobs.empty()) bench::end_with(path + ": error: it has no job");
  for (const Job& job : jobs) judge(job);
}

}  // namespace agpcs
