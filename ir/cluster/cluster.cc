// SPDX-License-Identifier: Apache-2.0
#include "ir/cluster/cluster.h"

#include "ir/base/check.h"

#include <fmt/format.h>

#include <iterator>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

std::string print_ref(const Cluster& cluster, const ProfileRef& ref) {
  const std::string& digest = cluster.profiles[static_cast<std::size_t>(ref.profile)].digest;
  return ref.entry.empty() ? fmt::format("profile={}", digest)
                           : fmt::format("profile={} entry='{}'", digest, ref.entry);
}

void print_kind(const Cluster& cluster, const DeviceKind& kind, std::string& text) {
  fmt::format_to(Out(text), "kind {} memory={} memory-bandwidth={} launch-overhead={}", kind.name,
                 kind.memory_bytes, kind.memory_bandwidth, kind.launch_overhead);
  for (const auto& [precision, flops] : kind.peak_flops) {
    fmt::format_to(Out(text), " peak-{}={}", name_of(precision), flops);
  }
  for (const auto& [op_class, fraction] : kind.efficiency) {
    fmt::format_to(Out(text), " efficiency-{}={}", op_class, fraction);
  }
  if (const Processors& has = kind.processors; has.count > 0) {
    fmt::format_to(Out(text), " processors={} board-power={} process='{}' memory-type={}",
                   has.count, has.board_power, has.process, has.memory_type);
  }
  if (kind.profile.given()) text += " " + print_ref(cluster, kind.profile);
  if (kind.message_overhead != 0) {
    fmt::format_to(Out(text), " message-overhead={}", kind.message_overhead);
  }
  if (kind.message_compute != 0) {
    fmt::format_to(Out(text), " message-compute={}", kind.message_compute);
  }
  if (const Overlap& overlap = kind.overlap; !overlap.is_none()) {
    fmt::format_to(Out(text), " overlap={},{}", overlap.compute_seconds_per_byte,
                   overlap.communication_factor);
  }
  if (const HostLink& link = kind.host_link; link.given()) {
    fmt::format_to(Out(text), " host-link={},{},{}", link.kind, link.bandwidth, link.latency);
  }
  text += '\n';
}

void print_link(const Cluster& cluster, const Link& link, std::string& text) {
  fmt::format_to(Out(text), "link '{}' kind={} ", link.name, link.kind);
  text += link.profile.given()
              ? print_ref(cluster, link.profile)
              : fmt::format("bandwidth={} latency={}", link.bandwidth, link.latency);
  if (link.protocols >= 0) {
    text += " protocols=" + cluster.protocols[static_cast<std::size_t>(link.protocols)].name;
  }
  text += '\n';
}

void print_protocols(const NetworkProtocols& protocols, std::string& text) {
  fmt::format_to(Out(text), "protocols {} step={} expected={}", protocols.name, protocols.step,
                 protocols.expected);
  constexpr const char* kNames[] = {"ll", "ll128", "simple"};
  for (std::size_t p = 0; p < protocols.of.size(); ++p) {
    const NetworkProtocols::Figures& figures = protocols.of[p];
    if (figures.rate == 0) continue;
    fmt::format_to(Out(text), " {}={},{},{}", kNames[p], figures.start, figures.latency,
                   figures.rate);
  }
  text += '\n';
}

// Prints nothing where all-reduces cost no more than their messages.
void print_collectives(const Cluster& cluster, std::string& text) {
  if (cluster.collectives_profile.given()) {
    fmt::format_to(Out(text), "collectives {}\n", print_ref(cluster, cluster.collectives_profile));
    return;
  }
  for (std::size_t i = 0; i < cluster.collectives.size(); ++i) {
    const CollectiveFit& fit = cluster.collectives[i];
    if (fit.step_overhead == 0 && fit.stretch == 1) continue;
    fmt::format_to(Out(text), "collective {} step-overhead={} stretch={}\n",
                   name_of(static_cast<AllReduce>(i)), fit.step_overhead, fit.stretch);
  }
}

std::string link_names(const Cluster& cluster, const std::vector<LinkId>& route) {
  std::string text;
  for (const LinkId id : route) {
    text += text.empty() ? "" : ", ";
    text += cluster.links[static_cast<std::size_t>(id)].name;
  }
  return text;
}

}  // namespace

std::vector<LinkId> Cluster::route(DeviceId from, DeviceId to) const {
  std::vector<LinkId> links_on_way;
  append_route(from, to, links_on_way);
  return links_on_way;
}

void Cluster::append_route(DeviceId from, DeviceId to, std::vector<LinkId>& links_on_way) const {
  if (from == to) return;
  const Device& a = devices[static_cast<std::size_t>(from)];
  const Device& b = devices[static_cast<std::size_t>(to)];
  links_on_way.push_back(a.out);
  if (a.host != b.host) {
    const std::size_t index =
        static_cast<std::size_t>(a.host) * hosts.size() + static_cast<std::size_t>(b.host);
    const std::vector<LinkId>& between = host_routes[index];
    links_on_way.insert(links_on_way.end(), between.begin(), between.end());
  }
  links_on_way.push_back(b.in);
}

const DeviceKind& Cluster::kind_of(DeviceId device) const {
  return kinds[static_cast<std::size_t>(devices[static_cast<std::size_t>(device)].kind)];
}

std::string Cluster::device_name(DeviceId device) const {
  const Device& d = devices[static_cast<std::size_t>(device)];
  return fmt::format("{}/{}", hosts[static_cast<std::size_t>(d.host)].name, d.index);
}

DeviceId Cluster::find_device(std::string_view wanted) const {
  for (DeviceId id = 0; id < device_count(); ++id) {
    if (device_name(id) == wanted) return id;
  }
  return -1;
}

std::string print_cluster(const Cluster& cluster) {
  std::string text = fmt::format("cluster {} topology={}\n", cluster.name, cluster.topology);
  for (const DeviceKind& kind : cluster.kinds) print_kind(cluster, kind, text);
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    fmt::format_to(Out(text), "device {} kind={}\n", cluster.device_name(id),
                   cluster.kind_of(id).name);
  }
  for (const Host& host : cluster.hosts) {
    if (host.memory_bytes == 0) continue;
    fmt::format_to(Out(text), "host {} memory={}\n", host.name, host.memory_bytes);
  }
  for (const NetworkProtocols& protocols : cluster.protocols) print_protocols(protocols, text);
  for (const Link& link : cluster.links) print_link(cluster, link, text);
  print_collectives(cluster, text);
  const std::size_t hosts = cluster.hosts.size();
  for (std::size_t i = 0; i < cluster.host_routes.size(); ++i) {
    if (cluster.host_routes[i].empty()) continue;
    fmt::format_to(Out(text), "route {} {}: {}\n", cluster.hosts[i / hosts].name,
                   cluster.hosts[i % hosts].name, link_names(cluster, cluster.host_routes[i]));
  }
  return text;
}

namespace {

Status verify_devices(const Cluster& cluster) {
  const auto link_exists = [&](LinkId id) {
    return id >= 0 && id < static_cast<LinkId>(cluster.links.size());
  };
  for (const Device& d : cluster.devices) {
    if (d.host < 0 || d.host >= static_cast<int>(cluster.hosts.size()) || d.kind < 0 ||
        d.kind >= static_cast<int>(cluster.kinds.size()) || !link_exists(d.out) ||
        !link_exists(d.in)) {
      return internal_error(fmt::format("cluster '{}': device with host {}, kind {}, ports {} {}",
                                        cluster.name, d.host, d.kind, d.out, d.in));
    }
  }
  return {};
}

Status verify_profiles(const Cluster& cluster) {
  const auto exists = [&](const ProfileRef& ref) {
    return !ref.given() || ref.profile < static_cast<int>(cluster.profiles.size());
  };
  const auto wrong = [&](const std::string& what, const ProfileRef& ref) {
    return internal_error(fmt::format("cluster '{}': {} refers to '{}' in profile {} of {}",
                                      cluster.name, what, ref.entry, ref.profile,
                                      cluster.profiles.size()));
  };
  for (const DeviceKind& kind : cluster.kinds) {
    const std::string what = fmt::format("kind '{}'", kind.name);
    if (!exists(kind.profile)) return wrong(what, kind.profile);
    if (!kind.profile.given()) continue;
    const auto index = static_cast<std::size_t>(kind.profile.profile);
    if (cluster.profiles[index].find_device(kind.profile.entry) == nullptr) {
      return wrong(what, kind.profile);
    }
  }
  for (const Link& link : cluster.links) {
    if (!exists(link.profile)) return wrong(fmt::format("link '{}'", link.name), link.profile);
  }
  if (!exists(cluster.collectives_profile)) return wrong("it", cluster.collectives_profile);
  return {};
}

Status verify_links(const Cluster& cluster) {
  for (const Link& link : cluster.links) {
    if (!(link.bandwidth > 0) || !(link.latency >= 0)) {
      return internal_error(fmt::format("cluster '{}': link '{}' has bandwidth {} and latency {}",
                                        cluster.name, link.name, link.bandwidth, link.latency));
    }
    if (link.protocols < -1 || link.protocols >= static_cast<int>(cluster.protocols.size())) {
      return internal_error(fmt::format("cluster '{}': link '{}' has protocols {} of {}",
                                        cluster.name, link.name, link.protocols,
                                        cluster.protocols.size()));
    }
  }
  const std::size_t hosts = cluster.hosts.size();
  if (cluster.host_routes.size() != hosts * hosts) {
    return internal_error(fmt::format("cluster '{}': {} host routes for {} hosts", cluster.name,
                                      cluster.host_routes.size(), hosts));
  }
  for (std::size_t i = 0; i < hosts * hosts; ++i) {
    if (i / hosts != i % hosts && cluster.host_routes[i].empty()) {
      return internal_error(fmt::format("cluster '{}': no route from {} to {}", cluster.name,
                                        cluster.hosts[i / hosts].name,
                                        cluster.hosts[i % hosts].name));
    }
  }
  return {};
}

}  // namespace

Status verify_cluster(const Cluster& cluster) {
  if (cluster.devices.empty()) {
    return internal_error(fmt::format("cluster '{}' has no devices", cluster.name));
  }
  AGPCS_RETURN_IF_ERROR(verify_devices(cluster));
  AGPCS_RETURN_IF_ERROR(verify_profiles(cluster));
  return verify_links(cluster);
}

}  // namespace agpcs
