// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/rank.h"

#include "frontend/cluster/file.h"
#include "frontend/cluster/profile_file.h"
#include "runtime/torch/blas.h"
#include "runtime/torch/executor.h"
#include "tools/profile/device.h"
#include "tools/profile/fits.h"
#include "tools/profile/gather.h"
#include "tools/profile/network/network.h"
#include "tools/profile/quick/quick.h"
#include "tools/profile/report.h"
#include "tools/profile/statistics.h"
#include "tools/run/processes/machine.h"
#include "tools/run/processes/slow_products.h"

#include <agpcs/digest.h>
#include <agpcs/loopback.h>
#include <agpcs/version.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <thread>
#include <utility>

namespace agpcs {
namespace {

using std::chrono::milliseconds;

// Usable part of the free memory. The rest is for the allocator and LibTorch's own temporaries.
constexpr double kUsableMemory = 0.8;

constexpr std::chrono::hours kLongestMeasuring{24};

// Returns what a device has to another one of its host; where it is alone there, to one of another
// host.
MemberLink link_of(const Cluster& cluster, DeviceId device) {
  const int host = cluster.devices[static_cast<std::size_t>(device)].host;
  DeviceId other = device;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    if (id == device) continue;
    if (other == device || cluster.devices[static_cast<std::size_t>(id)].host == host) other = id;
  }
  MemberLink figures;
  for (const LinkId id : cluster.route(device, other)) {
    const Link& link = cluster.links[static_cast<std::size_t>(id)];
    const bool first = id == cluster.devices[static_cast<std::size_t>(device)].out;
    figures.bandwidth = first ? link.bandwidth : std::min(figures.bandwidth, link.bandwidth);
    figures.latency = link.latency + (first ? 0 : figures.latency);
  }
  return figures;
}

Result<DeviceOptions> device_options(const ProfileJob& job, const RankPlace& place) {
  const ProfileOptions& options = job.options;
  DeviceOptions device;
  device.device = torch_device(job.options.transport, place);
  device.quick = options.quick;
  device.models = options.files;
  for (const QuickModel& model : kQuickModels) {
    if (options.quick) device.models.emplace_back(model.file);
  }
  device.choices = options;
  device.loss = job.loss;
  device.optimizer = job.optimizer;
  device.samples = options.samples;
  device.seconds = options.seconds;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  device.threads = options.threads > 0 ? options.threads : std::max(1, cores / place.local_size);
  device.teams = options.teams;
  device.link = link_of(job.cluster, place.rank);
  AGPCS_TRY(const Accelerator gpu, accelerator_of(device.device));
  device.gpu = gpu.name;
  const std::int64_t memory =
      gpu.memory_bytes > 0 ? gpu.memory_bytes : free_memory() / place.local_size;
  device.memory_bytes = static_cast<std::int64_t>(kUsableMemory * static_cast<double>(memory));
  const DeviceKind& kind = job.cluster.kind_of(place.rank);
  device.kind = kind.name;
  device.memory_bytes = std::min(device.memory_bytes, kind.memory_bytes);
  return device;
}

// Returns what must be the same for all ranks.
std::string identity_of(const ProfileJob& job) {
  const ProfileOptions& o = job.options;
  std::string text =
      fmt::format("agpcs-profile {}{}\n{}\n{}\n{}\n{} {} {}\n{} {}\n", version(),
                  o.quick ? " --quick" : "", fmt::join(o.files, "\n"), fmt::join(o.samples, ","),
                  fmt::join(o.teams, ","), o.seconds, o.network_seconds, name_of(o.transport),
                  name_of(job.loss.kind), optimizer_name(job.optimizer));
  for (const auto& [name, value] : o.dims) text += fmt::format("{}={}\n", name, value);
  for (const std::string& name : o.freeze) text += fmt::format("freeze {}\n", name);
  for (const std::string& name : o.train) text += fmt::format("train {}\n", name);
  for (const auto& [name, weight] : job.loss.outputs) text += fmt::format("{} {}\n", name, weight);
  text += fmt::format("{} {} {} {} {}\n", job.loss.by_shape, job.loss.ignore_index.value_or(-1),
                      job.loss.label_smoothing, job.loss.class_axis, job.loss.next_token);
  return digest_of(text + print_cluster(job.cluster));
}

// Returns "agpcs", "libtorch", "transport", and "blas" unless it is empty.
NamedTexts software_of(const std::string& transport, const std::string& blas) {
  NamedTexts texts{{"agpcs", std::string(version())},
                   {"libtorch", libtorch_version()},
                   {"transport", transport}};
  if (!blas.empty()) texts.emplace_back("blas", blas);
  return texts;
}

void round_times(std::vector<MeasuredMessages>& points) {
  for (MeasuredMessages& point : points) point.time = rounded(point.time);
}

class ProfileRank {
 public:
  ProfileRank(const ProfileJob& job, const RankPlace& place, Bootstrap& bootstrap, Console console)
      : job_(job),
        place_(place),
        bootstrap_(bootstrap),
        console_(console),
        progress_(console.err, is_terminal(2)),
        limit_(milliseconds_of(job.options.timeout)) {}

  Status run();

 private:
  Status measure_operators();
  Result<std::unique_ptr<Transport>> join_transport();
  Status measure_messages(Transport& transport);
  Status write(std::vector<DeviceProfile> devices);
  void tell(const std::string& what) {
    if (place_.rank == 0) progress_.step(what);
  }

  const ProfileJob& job_;
  const RankPlace& place_;
  Bootstrap& bootstrap_;
  Console console_;
  Progress progress_;
  const milliseconds limit_;
  DeviceOptions options_;
  LoopbackHub alone_{1};
  MeasuredDevice measured_;
  NetworkMeasurements network_;
};

Status ProfileRank::run() {
  AGPCS_TRY(options_, device_options(job_, place_));
  if (place_.rank == 0 && options_.gpu.empty()) console_.err << warn_of_slow_products();
  AGPCS_TRY(const auto transport, join_transport());
  AGPCS_RETURN_IF_ERROR(measure_operators());
  AGPCS_RETURN_IF_ERROR(measure_messages(*transport));
  AGPCS_TRY(std::vector<DeviceProfile> devices, gather(measured_.profile, *transport, limit_));
  progress_.done();
  if (place_.rank == 0) AGPCS_RETURN_IF_ERROR(write(std::move(devices)));
  // Wait for all, so that no rank closes a connection that another one still reads from.
  return bootstrap_.barrier("profiled", limit_);
}

Result<std::unique_ptr<Transport>> ProfileRank::join_transport() {
  if (place_.size == 1) return alone_.join(0);
  return connect(bootstrap_, job_.options, place_);
}

Status ProfileRank::measure_operators() {
  int round = 0;
  const Meet meet = [&] {
    // A device measures its first numbers of samples however long they take; dead ranks are found
    // by their silence.
    return bootstrap_.barrier(fmt::format("measuring {}", round++), kLongestMeasuring);
  };
  AGPCS_TRY(measured_, profile_device(options_, meet, [&](const auto& what) { tell(what); }));
  if (place_.rank == 0) {
    progress_.done();
    console_.err << job_.warnings << measured_.warnings;
  }
  const std::string transport =
      place_.size == 1 ? "none" : std::string(name_of(job_.options.transport));
  const std::string blas = options_.gpu.empty() ? loaded_blas().name : std::string();
  measured_.profile.software = software_of(transport, blas);
  return {};
}

Status ProfileRank::measure_messages(Transport& transport) {
  if (place_.size == 1) return {};  // a single rank has no messages
  NetworkOptions options;
  options.seconds = job_.options.network_seconds;
  options.limit = limit_;
  AGPCS_TRY(const auto computation, make_computation(options_, measured_));
  options.compute = [&] { return computation->run(); };
  options.progress = [&](const std::string& what) { tell(what); };
  AGPCS_TRY(const auto memory, allocate_on(options_.device, options.largest + 64));
  options.memory = memory->buffer();
  AGPCS_TRY(network_, measure_network(job_.cluster, place_.rank, transport, options));
  const auto digits = [](double figure) { return rounded({figure, 0}).seconds; };
  measured_.profile.overlap = {digits(network_.overlap.compute_seconds_per_byte),
                               digits(network_.overlap.communication_factor)};
  measured_.profile.message_overhead = digits(network_.message_overhead);
  return {};
}

Status ProfileRank::write(std::vector<DeviceProfile> devices) {
  AGPCS_TRY(Profile profile, merge_devices(std::move(devices)));
  profile.paths = network_.paths;
  profile.collectives = network_.collectives;
  for (MeasuredPath& path : profile.paths) round_times(path.points);
  for (MeasuredCollective& collective : profile.collectives) round_times(collective.points);
  seal_profile(profile);
  AGPCS_RETURN_IF_ERROR(verify_profile(profile));
  const std::string& output = job_.options.output;
  AGPCS_RETURN_IF_ERROR(write_file(output, print_profile(profile), console_));
  std::ostream& report = output == "-" ? console_.err : console_.out;
  report << steps_report(measured_.steps) << profile_report(profile)
         << expected_errors_report(profile, job_.cluster);
  const auto fitted = fit_profile(job_.cluster, profile);  // only for the report
  report << (fitted.ok() ? fits_report(fitted->fits) : "\n" + fitted.status().message() + "\n");
  if (output != "-") report << fmt::format("\nwrote {}\n", output);
  return {};
}

}  // namespace

std::vector<std::string> ProfileJob::devices() const {
  std::vector<std::string> names;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) names.push_back(cluster.device_name(id));
  return names;
}

Result<ProfileJob> make_profile_job(const ProfileOptions& options) {
  ProfileJob job{options, Cluster{}, Loss{}, Optimizer{}, ""};
  job.optimizer.momentum = 0.9;
  job.loss.by_shape = true;
  if (options.cluster.empty()) {
    AGPCS_TRY(job.cluster, one_host(options.kind, 1));
  } else {
    AGPCS_TRY(ClusterFile file, read_cluster(options.cluster));
    if (!file.warnings.empty()) job.warnings = file.warnings + "\n";
    job.cluster = std::move(file.cluster);
    if (!options.quick) job.loss = file.training.loss;
    job.optimizer = file.training.optimizer;
  }
  if (options.loss) job.loss = *options.loss;
  if (options.optimizer) job.optimizer = *options.optimizer;
  return job;
}

Status run_profile_rank(const ProfileJob& job, const RankPlace& place, Console console,
                        const LastWord& last_word) {
  const std::vector<std::string> devices = job.devices();
  if (place.size != static_cast<int>(devices.size())) {
    return invalid_input(
        fmt::format("the cluster has {} devices, but {} started {} ranks\n"
                    "  hint: start one rank per device, in the order of the cluster file",
                    devices.size(), place.launcher, place.size));
  }
  const std::string& device = devices[static_cast<std::size_t>(place.rank)];
  return join_job(
      job.options, place, device, identity_of(job), last_word,
      [&](Bootstrap& bootstrap) { return ProfileRank(job, place, bootstrap, console).run(); });
}

}  // namespace agpcs
