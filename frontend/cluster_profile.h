// SPDX-License-Identifier: Apache-2.0
// The `profile` keys of cluster.yaml: which measurements each device kind, link and all-reduce
// algorithm has its figures from.
#pragma once

#include "frontend/cluster_file.h"
#include "frontend/cluster_yaml.h"
#include "ir/cluster.h"
#include "ir/diagnostics.h"

#include <yaml-cpp/yaml.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

class ClusterProfiles {
 public:
  /// What a `profile` key says: "lab.yaml" or "lab.yaml#entry". `index` is -1 after an error.
  struct Given {
    int index = -1;
    std::string file, entry;
    SourceRange where;
  };

  /// An interconnect, a nic or a cable: the keys that are the same for all three.
  struct LinkItem {
    Link like;  ///< bandwidth 0: not given
    std::optional<Given> given = {};
    std::string what = {};
    SourceRange where = {};
    bool failed = false;  ///< what is wrong was reported
  };

  /// Files are relative to the folder of `cluster_file`. Adds those that it reads to
  /// `cluster.profiles`, each once.
  ClusterProfiles(const ReadProfile& read, const std::string& cluster_file, Cluster& cluster,
                  Diagnostics& diagnostics);

  /// The cluster's own key, one file or a list: for all that have no key of their own. Of what
  /// several files have, the last one is taken.
  void read_defaults(const YAML::Node& node);
  /// The network's key: for all links that have no key of their own, and for the collectives.
  void read_network(const YAML::Node& node);

  /// A key of one kind.
  Given read(const YAML::Node& node);
  /// Keys `bandwidth`, `latency` (which has a default in `like`) and `profile`.
  LinkItem read_link(const YamlMap& map, const Link& like);

  /// The device in the given profile, or, where nothing is given, in the defaults; nullptr when
  /// none has it (reported if it was given). Sets the kind's `profile`, overhead and overlap.
  const DeviceProfile* refer(const std::optional<Given>& given, DeviceKind& kind);

  /// Adds a link like `item.like`, with a name and a latency of its own. Its measurements are those
  /// of link `entry` in the item's profile or, where the item has none, those of its own name in
  /// the network's profile or the defaults. Reports a link that has neither measurements nor a
  /// bandwidth, once an item.
  LinkId add_link(LinkItem& item, const std::string& name, const std::string& entry,
                  double latency);

  /// Reports that `what` lacks `key`, and that no profile has `measured` either.
  void lacks(const std::string& what, const SourceRange& where, std::string_view key,
             const std::string& measured);

  /// Refers the collectives, and warns of default profiles that nothing refers to.
  void finish();

 private:
  int load(const std::string& file, const SourceRange& where);
  void refer(LinkItem& item, const std::string& entry, Link& link);
  void refer(int profile, const std::string& entry, Link& link) const;
  void warn_of_unused(const Given& file);

  const ReadProfile& read_;
  std::string folder_;
  Cluster& cluster_;
  Diagnostics& diagnostics_;
  std::map<std::string, int> loaded_;  // by path; -1: it could not be read
  // By profile: the links in its paths by name, with the best rate, in bytes/s, of a path over
  // them.
  std::vector<std::map<std::string, double>> links_;
  std::vector<Given> defaults_;  // in the order of the file
  std::optional<Given> network_;
};

}  // namespace agpcs
