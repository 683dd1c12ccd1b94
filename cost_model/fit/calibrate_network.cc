// SPDX-License-Identifier: Apache-2.0
#include "cost_model/fit/calibrate_parts.h"
#include "cost_model/network/link_model.h"
#include "ir/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

/// No clock tells latencies below this from 0; their errors are relative to this value.
constexpr double kLeastLatency = 1e-7;
/// If bytes make a message longer by less than this fraction, its latency hides them.
constexpr double kLeastGrowth = 1e-3;
/// Bytes never take less than this fraction of what the links say.
constexpr double kLeastStretch = 0.1;

struct LinkFigures {
  double latency = 0, bandwidth = 0;
};
using FiguresByName = std::map<std::string, LinkFigures, std::less<>>;

std::vector<Observation> observations_of(const MeasuredPath& path) {
  std::vector<Observation> observations;
  for (const MeasuredMessages& m : path.points) {
    observations.push_back({{1, static_cast<double>(m.bytes)}, m.time.seconds});
  }
  return observations;
}

/// Fits one of the two coefficients, with the other known, to a third of the observations sorted by
/// value: the first coefficient to the shortest, the second to the longest.
double fit_end(const std::vector<Observation>& sorted, std::size_t which, double other) {
  const auto third = static_cast<std::ptrdiff_t>((sorted.size() + 2) / 3);
  std::vector<Observation> end(which == 0 ? sorted.begin() : sorted.end() - third,
                               which == 0 ? sorted.begin() + third : sorted.end());
  for (Observation& o : end) {
    o.offset += other * o.terms[1 - which];
    o.terms = {o.terms[which]};
    o.least = 0;
  }
  return fit_robustly(end).coefficients.front();
}

/// Fits the part of the time that comes once a message and the part that grows with the bytes, of
/// observations in terms of both: the second from the longest third, the first from the shortest
/// third. Real networks are not a straight line in between (a rate limit may let a few packets pass
/// unhindered), so one fit to all would be wrong at both ends.
RobustFit fit_messages(std::vector<Observation> observations) {
  weigh_by_time(observations);
  RobustFit fit = fit_robustly(observations);
  std::stable_sort(observations.begin(), observations.end(),
                   [](const Observation& a, const Observation& b) { return a.value < b.value; });
  fit.coefficients[1] = fit_end(observations, 1, fit.coefficients[0]);
  fit.coefficients[0] = fit_end(observations, 0, fit.coefficients[1]);
  return fit;
}

/// Fits latency and bandwidth of a whole path.
Result<LinkFigures> fit_path(const MeasuredPath& path, const std::string& file) {
  const bool sizes = path.points.size() > 1 && path.points.front().bytes < path.points.back().bytes;
  const std::vector<double> line =
      sizes ? fit_messages(observations_of(path)).coefficients : std::vector<double>{0, 0};
  const double growth =
      sizes ? line[1] * static_cast<double>(path.points.back().bytes - path.points.front().bytes)
            : 0;
  if (growth > kLeastGrowth * line[0]) return LinkFigures{line[0], 1 / line[1]};
  return invalid_input(
      fmt::format("{}: error: messages from {} to {} {}, so that no bandwidth follows from them\n"
                  "  hint: measure more and larger sizes",
                  file, path.from, path.to,
                  sizes ? "take as long whatever their size" : "are all of one size"));
}

std::vector<std::string> link_names(const Profile& profile) {
  std::vector<std::string> names;
  for (const MeasuredPath& path : profile.paths) {
    names.insert(names.end(), path.links.begin(), path.links.end());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

/// Returns the links' latencies, in the order of `names`, from those of whole paths.
std::vector<double> link_latencies(const Profile& profile, const std::vector<LinkFigures>& paths,
                                   const std::vector<std::string>& names) {
  std::vector<Observation> observations;
  for (std::size_t p = 0; p < paths.size(); ++p) {
    Observation sum;
    sum.terms.resize(names.size());
    for (const std::string& link : profile.paths[p].links) {
      sum.terms[static_cast<std::size_t>(std::lower_bound(names.begin(), names.end(), link) -
                                         names.begin())] += 1;
    }
    sum.least = kLeastLatency;
    sum.value = std::max(paths[p].latency, std::numeric_limits<double>::min());
    observations.push_back(std::move(sum));
  }
  return fit_robustly(observations).coefficients;
}

/// Reports how well the links' figures explain the messages over each path.
void report_paths(const Profile& profile, const FiguresByName& figures, FitLog& log) {
  for (const MeasuredPath& path : profile.paths) {
    LinkFigures whole{0, std::numeric_limits<double>::infinity()};
    for (const std::string& link : path.links) {
      const LinkFigures& of_link = figures.find(link)->second;
      whole.latency += of_link.latency;
      whole.bandwidth = std::min(whole.bandwidth, of_link.bandwidth);
    }
    log.add(profile.file, fmt::format("messages from {} to {}", path.from, path.to),
            observations_of(path), {{whole.latency, 1 / whole.bandwidth}, 0});
  }
}

Result<FiguresByName> link_figures(const Profile& profile, FitLog& log) {
  std::vector<LinkFigures> paths;
  for (const MeasuredPath& path : profile.paths) {
    AGPCS_TRY(const LinkFigures whole, fit_path(path, profile.file));
    paths.push_back(whole);
  }
  const std::vector<std::string> names = link_names(profile);
  FiguresByName figures;
  if (names.empty()) return figures;
  const std::vector<double> latencies = link_latencies(profile, paths, names);
  for (std::size_t i = 0; i < names.size(); ++i) figures[names[i]].latency = latencies[i];
  for (std::size_t p = 0; p < paths.size(); ++p) {
    for (const std::string& link : profile.paths[p].links) {
      double& bandwidth = figures[link].bandwidth;
      bandwidth = std::max(bandwidth, paths[p].bandwidth);
    }
  }
  report_paths(profile, figures, log);
  return figures;
}

/// Returns the measured all-reduces of `algorithm` over devices of the cluster, with the steps and
/// the seconds of bytes that follow from the links.
std::vector<Observation> observations_of(const Cluster& cluster, const Profile& profile,
                                         AllReduce algorithm) {
  std::vector<Observation> observations;
  for (const MeasuredCollective& measured : profile.collectives) {
    if (measured.algorithm != algorithm || measured.devices.size() < 2) continue;
    std::vector<DeviceId> devices;
    for (const std::string& name : measured.devices) devices.push_back(cluster.find_device(name));
    if (std::count(devices.begin(), devices.end(), -1) > 0) continue;
    for (const MeasuredMessages& m : measured.points) {
      Exchange exchange = all_reduce(cluster, devices, algorithm, m.bytes);
      double latency = 0;
      std::int64_t steps = 0;
      for (Phase& phase : exchange) {
        latency += std::exchange(phase.latency, 0);
        steps += phase.steps;
      }
      const double bytes = lone_seconds(cluster, exchange);
      observations.push_back(
          {{static_cast<double>(steps), bytes}, m.time.seconds, latency + kLeastStretch * bytes});
    }
  }
  return observations;
}

Status no_collectives(const Cluster& cluster, const Profile& profile) {
  if (profile.collectives.empty()) {
    return invalid_input(
        fmt::format("{}: error: no all-reduce was measured\n"
                    "  hint: profile the network, too, or do not take it from this file",
                    profile.file));
  }
  return invalid_input(fmt::format(
      "{}: error: no all-reduce was measured over devices of cluster '{}' alone: the first is over "
      "{}, the cluster has {}, ...\n  hint: profile this cluster, or do not take its network from "
      "this file",
      profile.file, cluster.name, fmt::join(profile.collectives.front().devices, ", "),
      cluster.device_name(0)));
}

}  // namespace

Status calibrate_links(Cluster& cluster, FitLog& log) {
  std::map<int, FiguresByName> by_profile;
  for (Link& link : cluster.links) {
    if (!link.profile.given()) continue;
    const Profile& profile = profile_of(cluster, link.profile);
    const auto [known, added] = by_profile.try_emplace(link.profile.profile);
    if (added) {
      AGPCS_TRY(known->second, link_figures(profile, log));
    }
    const auto figures = known->second.find(link.profile.entry);
    AGPCS_CHECK(figures != known->second.end(), "link '{}' refers to '{}', which {} does not have",
                link.name, link.profile.entry, profile.file);
    link.latency = figures->second.latency;
    link.bandwidth = figures->second.bandwidth;
  }
  return {};
}

Status calibrate_collectives(Cluster& cluster, FitLog& log) {
  if (!cluster.collectives_profile.given()) return {};
  const Profile& profile = profile_of(cluster, cluster.collectives_profile);
  cluster.collectives = {};
  std::array<std::optional<CollectiveFit>, kAllReduceCount> fits;
  for (const AllReduce algorithm : kAllReduces) {
    const std::vector<Observation> observations = observations_of(cluster, profile, algorithm);
    if (observations.empty()) continue;
    const RobustFit fit = fit_messages(observations);
    log.add(profile.file, fmt::format("{} all-reduce", name_of(algorithm)), observations, fit);
    fits[static_cast<std::size_t>(algorithm)] =
        CollectiveFit{fit.coefficients[0], kLeastStretch + fit.coefficients[1]};
  }
  // An algorithm without measurements takes the figures of the first that has some.
  const auto known =
      std::find_if(fits.begin(), fits.end(), [](const auto& fit) { return fit.has_value(); });
  if (known == fits.end()) return no_collectives(cluster, profile);
  for (std::size_t i = 0; i < fits.size(); ++i) cluster.collectives[i] = fits[i].value_or(**known);
  return {};
}

}  // namespace agpcs
