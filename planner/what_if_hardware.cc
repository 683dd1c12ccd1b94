// SPDX-License-Identifier: Apache-2.0
#include "cost_model/explain/drifted_cluster.h"
#include "ir/base/at.h"
#include "planner/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

namespace agpcs {
namespace {

constexpr double kFaster = 1.1;
constexpr double kTwice = 2;
/// Gains that differ by less than this are alike.
constexpr double kNoBetter = 1e-3;

void launch_for_free(Cluster& cluster) {
  for (DeviceKind& kind : cluster.kinds) {
    change_measured(cluster, kind, [&](OpClass op_class, MeasuredOperator::Point& point) {
      const KindFit::Class& fit = kind.fit.classes[static_cast<std::size_t>(op_class)];
      point.forward.seconds = std::max(0.0, point.forward.seconds - fit.forward.overhead);
      point.backward.seconds = std::max(0.0, point.backward.seconds - fit.backward.overhead);
    });
    kind.launch_overhead = 0;
    for (UpdateFit& fit : kind.fit.updates) fit.per_tensor = 0;
    for (KindFit::Class& fit : kind.fit.classes) fit.forward.overhead = fit.backward.overhead = 0;
  }
}

void run_for_free(Cluster& cluster) {
  for (DeviceKind& kind : cluster.kinds) kind.message_overhead = kind.message_compute = 0;
  for (CollectiveFit& fit : cluster.collectives) fit.step_overhead = 0;
}

class HardwareChanges {
 public:
  HardwareChanges(const Problem& problem, const Plan& plan, const Estimate& estimate)
      : problem_(problem), plan_(plan), estimate_(estimate) {}

  Result<WhatIfs> run() {
    AGPCS_RETURN_IF_ERROR(change_devices());
    AGPCS_RETURN_IF_ERROR(change_links());
    AGPCS_RETURN_IF_ERROR(attempt("latency", "half the latency of all links", [](Cluster& c) {
      for (Link& link : c.links) link.latency /= 2;
    }));
    AGPCS_RETURN_IF_ERROR(
        attempt("launches", "operators launched without overhead", launch_for_free));
    AGPCS_RETURN_IF_ERROR(
        attempt("runtime", "messages without overhead of the runtime", run_for_free));
    std::stable_sort(found_.changes.begin(), found_.changes.end(),
                     [](const WhatIf& a, const WhatIf& b) { return a.gain > b.gain; });
    return std::move(found_);
  }

 private:
  Status attempt(std::string family, std::string change, const std::function<void(Cluster&)>& f) {
    Cluster cluster = problem_.cluster;
    f(cluster);
    AGPCS_TRY(const CostTable costs, CostTable::make(problem_.graph, cluster, problem_.training));
    AGPCS_TRY(const Estimate estimate, simulate(plan_, problem_.graph, cluster, costs));
    ++found_.tried;
    found_.changes.push_back({std::move(family), std::move(change), estimate.step_seconds,
                              1 - estimate.step_seconds / estimate_.step_seconds});
    return {};
  }

  Status change_devices() {
    std::vector<int> used(problem_.cluster.kinds.size());
    for (const DeviceEstimate& device : estimate_.devices) {
      const DeviceId id = problem_.cluster.find_device(device.device);
      ++used[at(problem_.cluster.devices[at(id)].kind)];
    }
    for (std::size_t k = 0; k < used.size(); ++k) {
      if (used[k] == 0) continue;
      const std::string& name = problem_.cluster.kinds[k].name;
      AGPCS_RETURN_IF_ERROR(attempt(
          "kind " + name,
          fmt::format("{}10% faster", used[k] == 1 ? fmt::format("the {} ", name)
                                                   : fmt::format("all {} {} ", used[k], name)),
          [&](Cluster& c) { slow_down(c, c.kinds[k], 1 / kFaster); }));
    }
    return {};
  }

  /// Returns links by what they belong to, as far as the plan uses any of them.
  std::map<std::string, std::vector<LinkId>> used_groups() const {
    const Cluster& cluster = problem_.cluster;
    std::map<LinkId, std::string> owner;  // owners of ports
    for (const Device& device : cluster.devices) {
      const std::string name = "interconnect of " + cluster.hosts[at(device.host)].name;
      owner[device.out] = owner[device.in] = name;
    }
    std::map<std::string, std::vector<LinkId>> groups;
    for (LinkId link = 0; link < static_cast<LinkId>(cluster.links.size()); ++link) {
      const auto port = owner.find(link);
      groups[port != owner.end() ? port->second : name_of_group(link)].push_back(link);
    }
    std::erase_if(groups, [&](const auto& group) {
      return std::all_of(group.second.begin(), group.second.end(),
                         [&](LinkId link) { return estimate_.link_bytes[at(link)] == 0; });
    });
    return groups;
  }

  /// Returns "NIC of a" for "a nic out", "cable a -> b" for "a -> b" and for the way back.
  std::string name_of_group(LinkId link) const {
    const std::string& name = problem_.cluster.links[at(link)].name;
    for (const char* end : {" nic out", " nic in"}) {
      if (name.ends_with(end))
        return "NIC of " + name.substr(0, name.size() - std::string(end).size());
    }
    const std::size_t arrow = name.find(" -> ");
    if (arrow == std::string::npos) return "link " + name;
    std::string a = name.substr(0, arrow), b = name.substr(arrow + 4);
    if (b < a) std::swap(a, b);
    return fmt::format("cable {} - {}", a, b);
  }

  Status change_links() {
    const std::map<std::string, std::vector<LinkId>> groups = used_groups();
    std::map<std::string, std::vector<std::string>> sorts;  // "NIC": the groups of that sort
    for (const auto& [name, links] : groups) {
      sorts[name.substr(0, name.find(' '))].push_back(name);
      AGPCS_RETURN_IF_ERROR(speed_up_links(name, name, {name}, groups));
    }
    for (const auto& [sort, names] : sorts) {
      if (names.size() < 2) continue;
      const std::string what = names.size() == 2 ? fmt::format("both {}s", sort)
                                                 : fmt::format("all {} {}s", names.size(), sort);
      AGPCS_RETURN_IF_ERROR(speed_up_links(sort + "s", what, names, groups));
      drop_last_if_no_better_than(names);
    }
    return {};
  }

  /// Drops the last change, all of a sort twice as fast, if one of them alone gains as much.
  void drop_last_if_no_better_than(const std::vector<std::string>& families) {
    const double gain = found_.changes.back().gain;
    for (const WhatIf& change : found_.changes) {
      const bool one = std::find(families.begin(), families.end(), change.family) != families.end();
      if (!one || change.gain < gain - kNoBetter) continue;
      found_.changes.pop_back();
      return;
    }
  }

  Status speed_up_links(const std::string& family, const std::string& what,
                        const std::vector<std::string>& names,
                        const std::map<std::string, std::vector<LinkId>>& groups) {
    return attempt(family, what + " twice as fast", [&](Cluster& c) {
      for (const std::string& name : names) {
        for (const LinkId link : groups.at(name)) c.links[at(link)].bandwidth *= kTwice;
      }
    });
  }

  const Problem& problem_;
  const Plan& plan_;
  const Estimate& estimate_;
  WhatIfs found_;
};

}  // namespace

Result<WhatIfs> what_if_hardware(const Problem& problem, const Plan& plan,
                                 const Estimate& estimate) {
  return HardwareChanges(problem, plan, estimate).run();
}

}  // namespace agpcs
