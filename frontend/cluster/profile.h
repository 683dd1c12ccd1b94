// SPDX-License-Identifier: Apache-2.0
// Reads the `profile` keys of cluster.yaml. They say which measurements the figures of each device
// kind, link and all-reduce algorithm come from.
#pragma once

#include "frontend/cluster/file.h"
#include "frontend/cluster/yaml.h"
#include "ir/base/diagnostics.h"
#include "ir/cluster/cluster.h"

#include <yaml-cpp/yaml.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

class ClusterProfiles {
 public:
  /// The value of a `profile` key: "lab.yaml" or "lab.yaml#entry". `index` is -1 after an error.
  struct Given {
    int index = -1;
    std::string file, entry;
    SourceRange where;
  };

  /// The keys that an interconnect, a nic and a cable have in common.
  struct LinkItem {
    Link like;  ///< its bandwidth is 0 if the file gives none
    std::optional<Given> given = {};
    std::string what = {};
    SourceRange where = {};
    bool failed = false;                              ///< an error in the item has been reported
    bool own_bandwidth = false, own_latency = false;  ///< the file gives them
  };

  /// Paths of profiles are relative to the folder of `cluster_file`. Each profile that is read is
  /// added to `cluster.profiles` once.
  ClusterProfiles(const ReadProfile& read, const std::string& cluster_file, Cluster& cluster,
                  Diagnostics& diagnostics);

  /// Reads the cluster's own key, one file or a list. It serves every item without a key of its
  /// own. If several files have the same entry, the last file wins.
  void read_defaults(const YAML::Node& node);
  /// Reads the network's key. It serves all links without a key of their own, and the collectives.
  void read_network(const YAML::Node& node);

  /// Reads the key of one device kind or link.
  Given read(const YAML::Node& node);
  /// Reads the keys `bandwidth`, `latency` (their defaults are in `like`) and `profile`.
  LinkItem read_link(const YamlMap& map, const Link& like);
  /// Does the same without `profile`.
  static LinkItem read_figures(const YamlMap& map, const Link& like);

  /// Returns the kind's device in the given profile, or in the defaults if none is given. Returns
  /// nullptr if no profile has it, and reports that if a profile was given. Sets the kind's
  /// `profile`, overhead and overlap.
  const DeviceProfile* refer(const std::optional<Given>& given, DeviceKind& kind);

  /// Adds a link like `item.like` with its own name and latency. If the item has a profile, the
  /// measurements are those of link `entry` in it. Otherwise they are those of the link's own name
  /// in the network's profile or the defaults. A link without measurements has what the catalog
  /// knows of a network of its kind: the part of the nominal bandwidth that messages get, unless
  /// the file gives the bandwidth, and the protocols, unless it gives the latency. Reports a link
  /// that has neither measurements nor a bandwidth, once per item.
  LinkId add_link(LinkItem& item, const std::string& name, const std::string& entry,
                  double latency);

  /// Reports that `what` lacks `key`, and that no profile has `measured` either.
  void lacks(const std::string& what, const SourceRange& where, std::string_view key,
             const std::string& measured);

  /// Sets the profile of the collectives, and warns of default profiles that nothing refers to.
  void finish();

 private:
  int load(const std::string& file, const SourceRange& where);
  void refer(LinkItem& item, const std::string& entry, Link& link);
  void refer(int profile, const std::string& entry, Link& link) const;
  void take_costs(const LinkItem& item, Link& link);
  int protocols_of(const std::string& name);
  void warn_of_unused(const Given& file);

  const ReadProfile& read_;
  std::string folder_;
  Cluster& cluster_;
  Diagnostics& diagnostics_;
  std::map<std::string, int> loaded_;  // index by path; -1: the file could not be read
  // For each profile, the links in its paths by name. The value is the best rate of a path over the
  // link, in bytes/s.
  std::vector<std::map<std::string, double>> links_;
  std::vector<Given> defaults_;  // in the order of the file
  std::optional<Given> network_;
};

}  // namespace agpcs
