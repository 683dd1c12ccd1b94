// SPDX-License-Identifier: Apache-2.0
// What `measure_network` finds between processes of this machine over TCP.
// network_figures RANKS [SECONDS [LARGEST-BYTES [OVERLAP-SECONDS]]]: tables on stdout.
#include "runtime/bootstrap/socket.h"
#include "tests/support/builders.h"
#include "tests/support/job_token.h"
#include "tools/profile/network/network.h"

#include <agpcs/bootstrap.h>
#include <agpcs/tcp.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace agpcs {
namespace {

Cluster local_cluster(int ranks) {
  std::string text = "kind cpu fp32=1e11\n";
  for (int i = 0; i < ranks; ++i) text += fmt::format("host h{} cpu 1\n", i);
  return testing::cluster_of(text);
}

/// A product of small matrices, about a millisecond: computing that lives in the caches.
class Product {
 public:
  Product() : a_(kSide * kSide, 0.5F), b_(kSide * kSide, 0.25F), c_(kSide * kSide) {}
  Status run() {
    for (std::size_t i = 0; i < kSide; ++i) {
      for (std::size_t k = 0; k < kSide; ++k) {
        const float factor = a_[i * kSide + k];
        for (std::size_t j = 0; j < kSide; ++j) c_[i * kSide + j] += factor * b_[k * kSide + j];
      }
    }
    a_[0] = c_[0] > 1e30F ? 0.F : 0.5F;  // the result is used
    return {};
  }

 private:
  static constexpr std::size_t kSide = 192;
  std::vector<float> a_, b_, c_;
};

void print_points(const std::string& title, const std::vector<MeasuredMessages>& points) {
  fmt::print("{}\n", title);
  for (const MeasuredMessages& point : points) {
    fmt::print("  {:>9} bytes {:>10.1f} us {:>9.1f} MB/s  spread {:.2f}\n", point.bytes,
               point.time.seconds * 1e6,
               static_cast<double>(point.bytes) / point.time.seconds / 1e6, point.time.spread);
  }
}

void print_figures(const NetworkMeasurements& measured) {
  for (const MeasuredPath& path : measured.paths) {
    print_points(fmt::format("{} to {} over {}", path.from, path.to, fmt::join(path.links, ", ")),
                 path.points);
  }
  for (const MeasuredCollective& collective : measured.collectives) {
    print_points(fmt::format("{} all-reduce over {}", name_of(collective.algorithm),
                             fmt::join(collective.devices, ", ")),
                 collective.points);
  }
}

Result<NetworkMeasurements> measure(const BootstrapOptions& place, NetworkOptions options) {
  AGPCS_TRY(const auto bootstrap, Bootstrap::join(place));
  AGPCS_TRY(const auto transport, connect_tcp(*bootstrap));
  Product product;
  if (options.overlap_seconds > 0) options.compute = [&] { return product.run(); };
  AGPCS_TRY(NetworkMeasurements measured,
            measure_network(local_cluster(place.size), place.rank, *transport, options));
  AGPCS_RETURN_IF_ERROR(bootstrap->barrier("measured", options.limit));
  return measured;
}

int run_rank(const BootstrapOptions& place, const NetworkOptions& options) {
  const auto measured = measure(place, options);
  if (!measured.ok()) {
    fmt::print(stderr, "{}\n", measured.status().message());
    return exit_code(measured.status().code());
  }
  if (place.rank == 0) print_figures(*measured);
  fmt::print(
      "rank {}: message overhead {:.1f} us, computing lost {:.3f} ns a byte, rate of messages "
      "while computing {:.2f}\n",
      place.rank, measured->message_overhead * 1e6,
      measured->overlap.compute_seconds_per_byte * 1e9, measured->overlap.communication_factor);
  return 0;
}

int run_all(int ranks, const NetworkOptions& options) {
  auto listening = listen_at("127.0.0.1");
  AGPCS_CHECK(listening.ok(), "{}", listening.status().message());
  BootstrapOptions place;
  place.size = ranks;
  place.port = port_of(listening->get());
  place.token = kJobToken;
  const int listen_fd = listening->release();
  int failed = 0;
  for (place.rank = 1; place.rank < ranks; ++place.rank) {
    if (fork() != 0) continue;
    close(listen_fd);
    place.name = fmt::format("h{}/0", place.rank);
    const int code = run_rank(place, options);
    std::fflush(stdout);
    _exit(code);
  }
  place.rank = 0;
  place.name = "h0/0";
  place.listen_fd = listen_fd;
  failed = run_rank(place, options);
  for (int status = 0; wait(&status) > 0;) failed |= status;
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  if (argc < 2 || std::atoi(argv[1]) < 1) {
    fmt::print(stderr,
               "usage: network_figures RANKS [SECONDS [LARGEST-BYTES [OVERLAP-SECONDS]]]\n");
    return 2;
  }
  agpcs::NetworkOptions options;
  options.progress = [](const std::string& what) {
    fmt::print("{} ...\n", what);
    std::fflush(stdout);
  };
  if (argc > 2) options.seconds = std::atof(argv[2]);
  if (argc > 3) options.largest = std::atoll(argv[3]);
  if (argc > 4) options.overlap_seconds = std::atof(argv[4]);
  return agpcs::run_all(std::atoi(argv[1]), options);
}
