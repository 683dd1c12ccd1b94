// SPDX-License-Identifier: Apache-2.0
// The bootstrap's service between strangers and ranks that misbehave, over real sockets: whatever
// they send, it answers those who have proved the token in whole frames, closes what they closed,
// and, while none of them knew the token, still admits the job's own rank.
//
// An input is a list of actions: a byte (low 2 bits: which connection; then 3 bits: what it does;
// see `Action`), a byte of length, and that many bytes of content.
#include "runtime/bootstrap/frame.h"
#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/server.h"
#include "runtime/bootstrap/socket.h"
#include "tests/fuzz/fuzz.h"

#include <agpcs/bootstrap.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::size_t kConnections = 4;
constexpr int kRanks = 3;
constexpr int kPatience = 5000;  // milliseconds
constexpr std::string_view kToken = "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f";

enum Action : unsigned {
  kRaw,         // the content as it is
  kHello,       // a proof and a rank's hello: right but for its number, the first byte less '0'
  kWrongHello,  // a hello without a proof, or a second one: its fields are cut at commas
  kSet,         // key and value, cut at a comma
  kGet,
  kFail,
  kOther,  // any frame: kind is the content's first byte, fields are cut at commas
  kClose,  // no more from this end
};

std::vector<std::string> fields_of(std::string_view content) {
  std::vector<std::string> fields;
  while (true) {
    const std::size_t comma = content.find(',');
    fields.emplace_back(content.substr(0, comma));
    if (comma == std::string_view::npos || fields.size() == 9) return fields;
    content.remove_prefix(comma + 1);
  }
}

BootstrapOptions options_of_job() {
  BootstrapOptions options;
  options.size = kRanks;
  options.token = kToken;
  options.identity = "sha256:1";
  options.name = "host/0";
  return options;
}

Frame hello_of(int rank) {
  const BootstrapOptions job = options_of_job();
  return {FrameKind::kHello,
          {kBootstrapMagic, std::to_string(rank), std::to_string(kRanks), job.identity,
           "host/" + std::to_string(rank), "", ""}};
}

/// The bytes that `action` sends.
std::string bytes_of(Action action, std::string_view content) {
  switch (action) {
    case kRaw:
      return std::string(content);
    case kHello:
      return encode(hello_of(content.empty() ? 0 : content[0] - '0'));
    case kWrongHello:
      return encode({FrameKind::kHello, fields_of(content)});
    case kSet:
      return encode({FrameKind::kSet, fields_of(content)});
    case kGet:
      return encode({FrameKind::kGet, {std::string(content)}});
    case kFail:
      return encode({FrameKind::kFail, {std::string(content)}});
    case kOther:
      break;
    case kClose:
      return {};
  }
  if (content.empty()) return {};
  return encode({static_cast<FrameKind>(content[0]), fields_of(content.substr(1))});
}

/// A listening Unix socket of no name in any file system, and connections to it.
class Listener {
 public:
  Listener() : listening_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sun_family = AF_UNIX;
    length_ = sizeof address_.sun_family;  // the kernel picks an abstract name
    fuzz::require(bind(listening_.get(), generic(), length_) == 0, "a socket can be bound");
    length_ = sizeof address_;
    getsockname(listening_.get(), generic(), &length_);
    fuzz::require(listen(listening_.get(), 64) == 0, "a socket can listen");
  }
  Fd take() { return std::move(listening_); }
  Fd connect_one() {
    Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    fuzz::require(connect(fd.get(), generic(), length_) == 0, "the service can be reached");
    return fd;
  }

 private:
  sockaddr* generic() { return reinterpret_cast<sockaddr*>(&address_); }
  sockaddr_un address_ = {};
  socklen_t length_ = 0;
  Fd listening_;
};

/// What a client sees of the service.
class Client {
 public:
  explicit Client(Fd fd) : fd_(std::move(fd)) {}

  /// Sends as much as the service takes: one that has closed takes nothing.
  void say(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto count = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  }
  void finish() { shutdown(fd_.get(), SHUT_WR); }
  /// Proves the token as `rank`, if nothing has been said yet. Afterwards it hears frames.
  bool prove_as(int rank) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatience);
    const auto end = prove(fd_.get(), bootstrap_terms(options_of_job()), rank, deadline);
    return end.ok() && *end == ProofEnd::kProved;
  }

  /// The next frame; nothing once the service has closed.
  std::optional<Frame> hear() {
    while (true) {
      if (auto frame = reader_.next(kMaxFrameBytes)) return frame;
      fuzz::require(!reader_.broken(), "the service answers in whole frames");
      fuzz::require(wait_for_bytes(), "the service answers or closes");
      char buffer[4096];
      const auto count = recv(fd_.get(), buffer, sizeof buffer, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return std::nullopt;
      reader_.append(buffer, static_cast<std::size_t>(count));
    }
  }
  /// Who has not proved the token hears a nonce and a verdict at most.
  void hear_the_end(bool known) {
    if (known) {
      while (hear()) {
      }
      return;
    }
    std::size_t heard = 0;
    char buffer[4096];
    while (true) {
      fuzz::require(wait_for_bytes(), "the service closes those who close");
      const auto count = recv(fd_.get(), buffer, sizeof buffer, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      heard += static_cast<std::size_t>(count);
    }
    fuzz::require(heard <= kNonceBytes + kVerdictBytes, "strangers hear nothing of the job");
  }

 private:
  bool wait_for_bytes() const {
    pollfd readable{fd_.get(), POLLIN, 0};
    int ready = -1;
    do {
      ready = poll(&readable, 1, kPatience);
    } while (ready < 0 && errno == EINTR);  // libFuzzer's alarm
    return ready == 1;
  }

  Fd fd_;
  FrameReader reader_;
};

void run(std::string_view script) {
  Listener listener;
  const BootstrapOptions options = options_of_job();
  BootstrapServer server(listener.take(), options);
  fuzz::require(server.start().ok(), "the service starts");

  std::array<std::optional<Client>, kConnections> clients;
  std::array<bool, kConnections> said{}, known{};
  bool strangers_only = true;
  while (script.size() >= 2) {
    const auto head = static_cast<unsigned char>(script[0]);
    const auto length = static_cast<unsigned char>(script[1]);
    const std::string_view content = script.substr(2, length);
    script.remove_prefix(2 + content.size());
    std::optional<Client>& client = clients[head % kConnections];
    if (!client) client.emplace(listener.connect_one());
    const auto action = static_cast<Action>((head >> 2) & 7);
    const bool first = !std::exchange(said[head % kConnections], true);
    if (action == kHello && first) {
      fuzz::require(client->prove_as(content.empty() ? 0 : content[0] - '0'),
                    "the service lets those in who prove the token");
      known[head % kConnections] = true;
      strangers_only = false;
    }
    client->say(bytes_of(action, content));
    if (action == kClose) client->finish();
  }
  if (strangers_only) {
    Client rank(listener.connect_one());
    fuzz::require(rank.prove_as(1), "strangers keep nobody out");
    rank.say(encode(hello_of(1)));
    const auto answer = rank.hear();
    fuzz::require(answer && answer->kind == FrameKind::kWelcome, "strangers keep nobody out");
    rank.say(encode({FrameKind::kBye, {}}));
  }
  for (std::optional<Client>& client : clients) {
    if (client) client->finish();
  }
  for (std::size_t i = 0; i < kConnections; ++i) {
    if (clients[i]) clients[i]->hear_the_end(known[i]);
  }
  server.stop(std::chrono::milliseconds(kPatience));
}

}  // namespace
}  // namespace agpcs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  agpcs::run(agpcs::fuzz::text_of(data, size));
  return 0;
}
