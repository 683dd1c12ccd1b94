// SPDX-License-Identifier: Apache-2.0
// Where ranks listen.
#include "runtime/bootstrap/listen_place.h"

#include "runtime/bootstrap/socket.h"
#include "tests/support/ipv6.h"
#include "tests/support/job_token.h"
#include "tests/support/listeners.h"

#include <agpcs/bootstrap.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

namespace agpcs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kElsewhere = "198.51.100.7";  // of documentation: no machine has it

/// "127.0.0.1", or "all: " and the warning, or the error.
std::string place(const std::string& bind, const std::string& rendezvous,
                  std::optional<bool> one_machine = {}) {
  const auto found = place_of_service(bind, rendezvous, one_machine);
  if (!found.ok()) return found.status().message();
  return found->address.empty() ? "all: " + found->warning : found->address;
}

std::string bound(const std::string& bind, const std::string& like = "") {
  const auto found = address_of_bind(bind, like);
  return found.ok() ? *found : found.status().message();
}

TEST(AddressOfBind, TakesInterfacesAndAddresses) {
  EXPECT_EQ(bound("lo"), "127.0.0.1");
  EXPECT_EQ(bound("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(bound("127.0.0.9"), "127.0.0.9") << "lo has all of 127.0.0.0/8";
  EXPECT_EQ(bound("localhost"), "127.0.0.1");
  EXPECT_EQ(bound("0.0.0.0"), "0.0.0.0");
}

TEST(AddressOfBind, TakesTheAddressOfAnInterfaceThatTheJobUses) {
  if (const std::string why = no_ipv6(); !why.empty()) GTEST_SKIP() << why;
  EXPECT_EQ(bound("lo", "::1"), "::1");
  EXPECT_EQ(bound("lo", "fd00::77"), "::1") << "the same kind";
  EXPECT_EQ(bound("lo", kElsewhere), "127.0.0.1") << "the same kind";
  EXPECT_EQ(bound("::1"), "::1");
  EXPECT_EQ(bound("::"), "::");
}

TEST(AddressOfBind, SaysWhatTheMachineHas) {
  for (const std::string bind : {"eth77", kElsewhere, "[::1]", "127.0.0.1:29500"}) {
    const auto found = address_of_bind(bind, "");
    EXPECT_EQ(found.status().code(), StatusCode::kUsage);
    EXPECT_THAT(found.status().message(),
                StartsWith("'" + bind +
                           "' is neither an interface nor an address of this machine, "
                           "which has "));
    EXPECT_THAT(found.status().message(), HasSubstr("lo (127.0.0.1"));
  }
}

TEST(PlaceOfService, IsTheAddressByWhichRanksLookForIt) {
  EXPECT_EQ(place("", "127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(place("", "127.0.0.1", true), "127.0.0.1");
  EXPECT_EQ(place("", "localhost"), "127.0.0.1");
  if (no_ipv6().empty()) {
    EXPECT_EQ(place("", "::1"), "::1");
  }
}

TEST(PlaceOfService, IsWhatBindSays) {
  EXPECT_EQ(place("127.0.0.9", "127.0.0.1"), "127.0.0.9");
  EXPECT_EQ(place("lo", kElsewhere), "127.0.0.1");
  EXPECT_EQ(place("0.0.0.0", "127.0.0.1"), "0.0.0.0");
  EXPECT_THAT(place("eth77", "127.0.0.1"), StartsWith("'eth77' is neither an interface nor"));
}

TEST(PlaceOfService, IsEveryAddressWhereOthersNeedAnotherOne) {
  const std::string begin = "all: rank 0 listens at all addresses of its machine, for ",
                    end = "\n  hint: --bind ADDRESS or --bind INTERFACE says where";
  EXPECT_EQ(place("", kElsewhere), begin + "'198.51.100.7' is no address of it" + end);
  EXPECT_EQ(
      place("", "127.0.0.1", false),
      begin + "'127.0.0.1' is a loopback address there, which no other machine reaches" + end);
  EXPECT_EQ(place("", "localhost", false),
            begin + "'localhost' is 127.0.0.1 there, which no other machine reaches" + end);
  EXPECT_THAT(place("", "no-such-host.invalid"),
              StartsWith(begin + "cannot resolve 'no-such-host.invalid': "));
}

TEST(PlaceOfService, TakesNoBrackets) {
  for (const std::string address : {"[::1]", "[::1]:29500"}) {
    EXPECT_EQ(place("", address),
              "cannot resolve '" + address + "': an IPv6 address stands without brackets here");
  }
}

/// What the service of a job of one rank listens at.
std::string listener_of(const std::string& address, const std::string& bind) {
  BootstrapOptions options;
  options.address = address;
  options.bind = bind;
  options.token = kJobToken;
  std::vector<std::string> warnings;
  options.on_warning = [&](const std::string& line) { warnings.push_back(line); };
  const auto before = listeners_of(getpid());
  const auto joined = Bootstrap::join(options);
  EXPECT_TRUE(joined.ok()) << joined.status().message();
  EXPECT_THAT(warnings, ElementsAre());
  std::string found;
  for (const std::string& at : listeners_of(getpid())) {
    if (before.count(at) == 0) found += at.substr(0, at.find(' ')) + ";";
  }
  return found;
}

TEST(Listeners, AreAtTheAddressOfTheJobAlone) {
  EXPECT_EQ(listener_of("127.0.0.1", ""), "127.0.0.1;");
  EXPECT_EQ(listener_of("localhost", ""), "127.0.0.1;");
  EXPECT_EQ(listener_of("127.0.0.1", "127.0.0.9"), "127.0.0.9;");
  EXPECT_EQ(listener_of("127.0.0.1", "lo"), "127.0.0.1;");
  EXPECT_EQ(listener_of("127.0.0.1", "0.0.0.0"), "0.0.0.0;");
}

TEST(Listeners, OfLoopbackAreNamedWhereRanksAreMissing) {
  BootstrapOptions options;
  options.size = 2;
  options.token = kJobToken;
  options.join_limit = std::chrono::milliseconds(50);
  const std::string missing = "rank 1 of 2 did not join within 50 ms";
  EXPECT_EQ(Bootstrap::join(options).status().message(),
            missing +
                "\n  hint: rank 0 listens at 127.0.0.1, which no other machine reaches: "
                "--bind says where else");
  options.one_machine = true;
  EXPECT_EQ(Bootstrap::join(options).status().message(), missing);
}

TEST(Listeners, AreAtAddressesOfIpv6) {
  if (const std::string why = no_ipv6(); !why.empty()) GTEST_SKIP() << why;
  EXPECT_EQ(listener_of("::1", ""), "::1;");
  EXPECT_EQ(listener_of("127.0.0.1", "::"), "::;") << "the service takes IPv4 there, too";
}

}  // namespace
}  // namespace agpcs
