// SPDX-License-Identifier: Apache-2.0
// A rank's connection to the bootstrap service; rank 0 also runs the service.
#include "runtime/bootstrap/connection.h"
#include "runtime/bootstrap/frame.h"
#include "runtime/bootstrap/listen_place.h"
#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/server.h"
#include "runtime/bootstrap/socket.h"

#include <agpcs/bootstrap.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFarewellLimit{3000};

class BootstrapClient final : public Bootstrap {
 public:
  explicit BootstrapClient(BootstrapOptions options) : options_(std::move(options)) {}
  ~BootstrapClient() override;

  Status start();

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  bool tls() const override { return options_.tls; }
  std::string local_address() const override { return local_address_of(connection_.fd()); }
  std::string key_for(const std::string& purpose) const override {
    return derived_key(options_.token, purpose);
  }
  Status set(const std::string& key, const std::string& value) override;
  Result<std::string> get(const std::string& key, milliseconds limit) override;
  Status barrier(const std::string& name, milliseconds limit) override;
  Result<BootstrapEvent> event(std::int64_t number, milliseconds limit) override;
  Status say(const std::string& text) override;
  void report(const Status& failure) override;
  Status failure() const override;
  Status wait_for_failure(milliseconds limit) override;
  void on_failure(std::function<void(const Status&)> listener) override;

 private:
  Status serve();
  Status connect();
  Result<bool> say_hello(Clock::time_point deadline);
  Result<bool> prove_token(Clock::time_point deadline);
  Status wait_until_ready();
  Status no_answer(milliseconds limit) const;
  void read_loop();
  bool read_some(FrameReader& reader);
  void handle(const Frame& frame);
  void fail(const Status& failure);
  Status send_frame(const Frame& frame);

  BootstrapOptions options_;
  const int exceptions_ = std::uncaught_exceptions();
  std::unique_ptr<BootstrapServer> server_;
  std::string service_address_;  // where this rank looks for it
  int port_ = 0;
  Connection connection_;
  Fd wake_read_, wake_write_;
  std::thread reader_;
  std::string service_name_ = "rank 0";  // only the reader uses it
  std::mutex write_mutex_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false, leaving_ = false;
  std::map<std::string, std::string> values_;
  Status failure_;

  std::mutex listener_mutex_;  // held while the listener runs
  std::function<void(const Status&)> listener_;
};

BootstrapClient::~BootstrapClient() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  // A rank that an exception ends does not leave: it counts as lost.
  if (connection_.is_open() && std::uncaught_exceptions() == exceptions_) {
    [[maybe_unused]] const Status said = send_frame({FrameKind::kBye, {}});
  }
  if (reader_.joinable()) {
    [[maybe_unused]] const auto written = write(wake_write_.get(), "x", 1);
    reader_.join();
  }
  connection_.close();
  if (server_) server_->stop(kFarewellLimit);
}

Status BootstrapClient::start() {
  const std::string weakness = weakness_of(options_.token);
  if (!weakness.empty()) return invalid_input("the job token " + weakness);
  if (options_.rank < 0 || options_.rank >= options_.size) {
    return invalid_input(
        fmt::format("rank {} is not within 0 and {}", options_.rank, options_.size - 1));
  }
  port_ = options_.port;
  service_address_ = options_.address;
  if (options_.rank == 0) AGPCS_RETURN_IF_ERROR(serve());
  AGPCS_RETURN_IF_ERROR(connect());
  return wait_until_ready();
}

Status BootstrapClient::serve() {
  Fd listening(options_.listen_fd);
  if (options_.listen_fd < 0) {
    AGPCS_TRY(const ListenPlace place,
              place_of_service(options_.bind, options_.address, options_.one_machine));
    AGPCS_TRY(listening, listen_at(place.address, options_.port));
    if (!place.warning.empty() && options_.on_warning) options_.on_warning(place.warning);
  }
  port_ = port_of(listening.get());
  const std::string place = local_address_of(listening.get());
  if (!is_every_address(place)) service_address_ = place;
  server_ = std::make_unique<BootstrapServer>(std::move(listening), options_);
  return server_->start();
}

Status BootstrapClient::connect() {
  AGPCS_RETURN_IF_ERROR(make_pipe(wake_read_, wake_write_));
  const auto deadline = Clock::now() + options_.join_limit;
  while (true) {
    AGPCS_TRY(const bool answered, say_hello(deadline));
    if (answered) break;
    if (Clock::now() >= deadline) {
      return {StatusCode::kUnavailable,
              fmt::format("{} closed the connection without an answer: is it rank 0 of this job, "
                          "and of the same AGPCS version?",
                          endpoint(service_address_, port_))};
    }
    // The service may have dropped this connection because of too many strangers.
    pollfd pause{wake_read_.get(), POLLIN, 0};
    poll(&pause, 1, 50);
  }
  reader_ = std::thread([this] { read_loop(); });
  return {};
}

// Proves the token and says hello. Returns false if the connection ended before the service said
// anything.
Result<bool> BootstrapClient::say_hello(Clock::time_point deadline) {
  auto connected = connect_to(service_address_, port_, deadline);
  if (!connected.ok()) {
    return Status(connected.status().code(),
                  "rank 0 does not answer: " + connected.status().message());
  }
  set_non_blocking(connected->get());
  connection_ = Connection(std::move(*connected));
  const Frame hello{
      FrameKind::kHello,
      {kBootstrapMagic, std::to_string(options_.rank), std::to_string(options_.size),
       options_.identity, options_.name, options_.host, agreed_text(options_.agreed)}};
  if (encode(hello).size() > kMaxHelloBytes) {
    return invalid_input(
        fmt::format("name, host and what ranks agree on have {} bytes, at most {} are allowed",
                    encode(hello).size(), kMaxHelloBytes));
  }
  AGPCS_TRY(const bool proved, prove_token(deadline));
  if (!proved || !send_frame(hello).ok()) return false;
  if (!readable_before(connection_.fd(), deadline)) return no_answer(options_.join_limit);
  char byte = 0;
  return recv(connection_.fd(), &byte, 1, MSG_PEEK) == 1;
}

// Returns false if the connection ended before the service had decided.
Result<bool> BootstrapClient::prove_token(Clock::time_point deadline) {
  AGPCS_TRY(const ProofEnd end,
            prove(connection_, bootstrap_terms(options_), options_.rank, deadline));
  switch (end) {
    case ProofEnd::kProved:
      return true;
    case ProofEnd::kClosed:
      return false;
    case ProofEnd::kLate:  // the socket may listen before rank 0 itself runs
      return no_answer(options_.join_limit);
    case ProofEnd::kRefused:
      return invalid_input(
          "rank 0 refused this rank: the job token is wrong: every rank needs the same "
          "AGPCS_JOB_TOKEN");
    case ProofEnd::kOther:
      return invalid_input("rank 0 refused this rank: " + other_tls(options_.rank, !options_.tls));
    case ProofEnd::kImpostor:
      break;
  }
  return Status(StatusCode::kUnavailable,
                fmt::format("{} does not prove that it knows the job token: it is not rank 0 of "
                            "this job",
                            endpoint(service_address_, port_)));
}

Status BootstrapClient::wait_until_ready() {
  // The service names the missing ranks; the extra time lets it do so.
  const auto limit = options_.join_limit + milliseconds(2000);
  std::unique_lock lock(mutex_);
  const bool told = changed_.wait_for(lock, limit, [&] { return ready_ || !failure_.ok(); });
  return told ? failure_ : no_answer(limit);
}

Status BootstrapClient::no_answer(milliseconds limit) const {
  return {StatusCode::kUnavailable, fmt::format("rank 0 at {} did not answer within {} ms",
                                                endpoint(service_address_, port_), limit.count())};
}

Status BootstrapClient::set(const std::string& key, const std::string& value) {
  if (value.size() > kMaxValueBytes) {
    return invalid_input(fmt::format("bootstrap value '{}' has {} bytes, at most {} are allowed",
                                     key, value.size(), kMaxValueBytes));
  }
  return send_frame({FrameKind::kSet, {key, value}});
}

Result<std::string> BootstrapClient::get(const std::string& key, milliseconds limit) {
  AGPCS_RETURN_IF_ERROR(send_frame({FrameKind::kGet, {key}}));
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return values_.count(key) > 0 || !failure_.ok(); });
  const auto it = values_.find(key);
  if (it != values_.end()) return it->second;
  if (!failure_.ok()) return failure_;
  return Status(StatusCode::kTimeout,
                fmt::format("bootstrap value '{}' was not set within {} ms", key, limit.count()));
}

Status BootstrapClient::barrier(const std::string& name, milliseconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  AGPCS_RETURN_IF_ERROR(set(fmt::format("barrier/{}/{}", name, rank()), ""));
  for (int other = 0; other < size(); ++other) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    auto arrived = get(fmt::format("barrier/{}/{}", name, other), std::max(left, milliseconds(0)));
    if (arrived.ok()) continue;
    if (arrived.status().code() != StatusCode::kTimeout) return arrived.status();
    return {StatusCode::kTimeout,
            fmt::format("rank {} did not reach '{}' within {} ms", other, name, limit.count())};
  }
  return {};
}

Result<BootstrapEvent> BootstrapClient::event(std::int64_t number, milliseconds limit) {
  AGPCS_TRY(const std::string text, get(event_key(number), limit));
  auto event = parse_event(text);
  if (!event) return internal_error(fmt::format("'{}' is no event", text));
  return std::move(*event);
}

// A rank's error may be longer than a frame; its beginning is enough.
Status BootstrapClient::say(const std::string& text) {
  return send_frame({FrameKind::kFail, {text.substr(0, kMaxValueBytes)}});
}

void BootstrapClient::report(const Status& failure) {
  [[maybe_unused]] const Status sent = say(failure.message());
}

Status BootstrapClient::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Status BootstrapClient::wait_for_failure(milliseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return !failure_.ok(); });
  return failure_;
}

void BootstrapClient::on_failure(std::function<void(const Status&)> listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
  const Status known = failure();
  if (listener_ && !known.ok()) std::exchange(listener_, nullptr)(known);
}

void BootstrapClient::read_loop() {
  FrameReader reader;
  const milliseconds tick = std::max(options_.stall_limit / 4, milliseconds(1));
  auto heard = Clock::now(), pinged = heard;
  while (true) {
    pollfd fds[2] = {{connection_.fd(), POLLIN, 0}, {wake_read_.get(), POLLIN, 0}};
    poll(fds, 2, static_cast<int>(tick.count()));
    const auto now = Clock::now();
    if (fds[1].revents != 0) return;  // leaving
    if (fds[0].revents != 0) {
      heard = now;
      if (!read_some(reader)) {
        return fail(
            {StatusCode::kPeerFailed, service_name_ + " went away: its connection was lost"});
      }
    } else if (now - heard > options_.stall_limit) {
      return fail({StatusCode::kPeerFailed,
                   fmt::format("{} stalled: not heard from for {} ms", service_name_,
                               std::chrono::duration_cast<milliseconds>(now - heard).count())});
    }
    if (now - pinged >= tick) {
      pinged = now;
      [[maybe_unused]] const Status sent = send_frame({FrameKind::kPing, {}});
    }
  }
}

// Reads what has arrived. Returns false once the connection is unusable.
bool BootstrapClient::read_some(FrameReader& reader) {
  char buffer[16384];
  do {
    const auto count = connection_.read(buffer, sizeof buffer);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    reader.append(buffer, static_cast<std::size_t>(count));
    while (const auto frame = reader.next(kMaxFrameBytes)) handle(*frame);
  } while (connection_.has_unread() && !reader.broken());
  return !reader.broken();
}

void BootstrapClient::handle(const Frame& frame) {
  const std::size_t fields = frame.fields.size();
  if (frame.kind == FrameKind::kRefused && fields == 1) {
    fail(invalid_input("rank 0 refused this rank: " + frame.fields[0]));
  } else if (frame.kind == FrameKind::kFailed && fields == 1) {
    fail({StatusCode::kPeerFailed, frame.fields[0]});
  } else if (frame.kind == FrameKind::kWelcome && fields == 1) {
    service_name_ = frame.fields[0];
  } else if (frame.kind == FrameKind::kReady || (frame.kind == FrameKind::kValue && fields == 2)) {
    const std::lock_guard lock(mutex_);
    if (frame.kind == FrameKind::kReady) {
      ready_ = true;
    } else {
      values_[frame.fields[0]] = frame.fields[1];
    }
    changed_.notify_all();
  }
}

void BootstrapClient::fail(const Status& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (leaving_ || !failure_.ok()) return;
    failure_ = failure;
    changed_.notify_all();
  }
  const std::lock_guard lock(listener_mutex_);
  if (listener_) std::exchange(listener_, nullptr)(failure);
}

Status BootstrapClient::send_frame(const Frame& frame) {
  const std::string bytes = encode(frame);
  const auto deadline = Clock::now() + options_.stall_limit;
  const std::lock_guard lock(write_mutex_);
  for (std::size_t at = 0;;) {
    const auto count = connection_.write(bytes.data() + at, bytes.size() - at);
    const int error = count < 0 ? errno : EAGAIN;
    if (count > 0) at += static_cast<std::size_t>(count);
    if (at == bytes.size() && connection_.flush()) return {};
    if (count > 0) continue;
    pollfd writable{connection_.fd(), POLLOUT, 0};
    if ((error != EAGAIN && error != EINTR) || Clock::now() > deadline ||
        poll(&writable, 1, static_cast<int>(options_.stall_limit.count())) <= 0) {
      const Status known = failure();
      return known.ok() ? Status(StatusCode::kPeerFailed, "the connection to rank 0 was lost")
                        : known;
    }
  }
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> Bootstrap::join(const BootstrapOptions& options) {
  auto client = std::make_unique<BootstrapClient>(options);
  AGPCS_RETURN_IF_ERROR(client->start());
  return std::unique_ptr<Bootstrap>(std::move(client));
}

}  // namespace agpcs
