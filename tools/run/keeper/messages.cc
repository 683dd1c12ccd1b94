// SPDX-License-Identifier: Apache-2.0
#include "tools/run/keeper/messages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

// Reads a message. Its name and its fields have a line each; the last field may have several lines.
class Lines {
 public:
  explicit Lines(std::string_view text) : left_(text) {}

  std::string next() {
    const std::size_t end = left_.find('\n');
    ok_ = ok_ && end != std::string_view::npos;
    std::string line(left_.substr(0, end));
    left_.remove_prefix(ok_ ? end + 1 : left_.size());
    return line;
  }
  int number(int most = 1 << 30) { return number_in(next(), most); }
  StatusCode code() { return static_cast<StatusCode>(number(static_cast<int>(kLastCode))); }
  std::vector<int> numbers() {
    std::vector<int> values;
    std::string line = next();
    std::string_view text(line);
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(' '), text.size());
      values.push_back(number_in(text.substr(0, end), 1 << 30));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return values;
  }
  std::string rest() { return std::string(std::exchange(left_, {})); }
  bool ok() const { return ok_ && left_.empty(); }

 private:
  static constexpr StatusCode kLastCode = StatusCode::kInternal;

  int number_in(std::string_view text, int most) {
    int value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    ok_ = ok_ && error == std::errc() && end == text.data() + text.size() && value >= 0 &&
          value <= most;
    return ok_ ? value : 0;
  }

  std::string_view left_;
  bool ok_ = true;
};

struct Writer {
  std::string operator()(const LookOrder& m) const { return "look\n" + m.file; }
  std::string operator()(const StartOrder& m) const {
    return fmt::format("start\n{}\n{}\n{}\n{}\n{}\n{}\n", m.generation, m.address, m.port, m.pieces,
                       m.label, fmt::join(m.seats, " "));
  }
  std::string operator()(const EndOrder& m) const { return fmt::format("end\n{}\n", m.generation); }
  std::string operator()(const StopOrder& m) const { return fmt::format("stop\n{}\n", m.seat); }
  std::string operator()(const FinishOrder& m) const { return with_status("finish", m.status); }
  std::string operator()(const ReadyReport& m) const {
    return fmt::format("ready\n{}\n{}\n", m.address, m.port);
  }
  std::string operator()(const EndedReport& m) const {
    return fmt::format("ended\n{}\n{}\n{}\n{}", m.generation, static_cast<int>(m.end.kind),
                       static_cast<int>(m.end.code), m.end.text);
  }
  std::string operator()(const AskedReport& m) const {
    return fmt::format("asked\n{}\n", m.signal);
  }
  std::string operator()(const BrokenReport& m) const { return with_status("broken", m.status); }

  static std::string with_status(std::string_view name, const Status& status) {
    return fmt::format("{}\n{}\n{}", name, static_cast<int>(status.code()), status.message());
  }
};

Status read_status(Lines& lines) {
  const StatusCode code = lines.code();
  return {code, lines.rest()};
}

StartOrder read_start(Lines& lines) {
  StartOrder start;
  start.generation = lines.number();
  start.address = lines.next();
  start.port = lines.number();
  start.pieces = lines.number();
  start.label = lines.next();
  start.seats = lines.numbers();
  return start;
}

ReadyReport read_ready(Lines& lines) {
  ReadyReport ready;
  ready.address = lines.next();
  ready.port = lines.number();
  return ready;
}

EndedReport read_ended(Lines& lines) {
  EndedReport ended;
  ended.generation = lines.number();
  ended.end.kind =
      static_cast<RankEnd::Kind>(lines.number(static_cast<int>(RankEnd::Kind::kKilledByUs)));
  ended.end.code = lines.code();
  ended.end.text = lines.rest();
  return ended;
}

std::optional<KeeperMessage> read_message(const std::string& name, Lines& lines) {
  if (name == "look") return LookOrder{lines.rest()};
  if (name == "start") return read_start(lines);
  if (name == "end") return EndOrder{lines.number()};
  if (name == "stop") return StopOrder{lines.number()};
  if (name == "finish") return FinishOrder{read_status(lines)};
  if (name == "ready") return read_ready(lines);
  if (name == "ended") return read_ended(lines);
  if (name == "asked") return AskedReport{lines.number()};
  if (name == "broken") return BrokenReport{read_status(lines)};
  return std::nullopt;
}

}  // namespace

std::string text_of(const KeeperMessage& message) { return std::visit(Writer{}, message); }

Result<KeeperMessage> parse_keeper_message(const std::string& text) {
  Lines lines(text);
  const std::string name = lines.next();
  auto message = read_message(name, lines);
  if (message && lines.ok()) return std::move(*message);
  return internal_error(fmt::format("a keeper of this job said '{}'", text.substr(0, 200)));
}

std::string plan_key(int generation, int piece) {
  return fmt::format("plan/{}/{}", generation, piece);
}

}  // namespace agpcs
