// SPDX-License-Identifier: Apache-2.0
#include "cost_model/flows/text.h"

#include "ir/base/check.h"
#include "ir/base/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::string_view kFormatName = "agpcs-flow-schedule";
constexpr std::string_view kTopologyLine = "topology ";
constexpr int kVersion = 1;
constexpr std::size_t kMostErrors = 10;
constexpr int kMostSubChunks = 1024;

using Out = std::back_insert_iterator<std::string>;

/// Returns the names of the nodes on each route, separated by blanks.
std::vector<std::string> route_texts(const Topology& topology, const FlowSchedule& schedule) {
  std::vector<std::string> texts;
  texts.reserve(schedule.routes.size());
  for (const FlowRoute& route : schedule.routes) {
    std::string text = topology.name_of(route.from);
    for (const int link : route.links) {
      text += ' ';
      text += topology.name_of(topology.links[static_cast<std::size_t>(link)].to);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

struct Word {
  std::string_view text;
  SourceRange where;
};

std::vector<Word> words_of(std::string_view line, int number) {
  std::vector<Word> words;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t begin = line.find_first_not_of(' ', at);
    if (begin == std::string_view::npos) break;
    const std::size_t end = std::min(line.find(' ', begin), line.size());
    const SourceRange where = {number, static_cast<int>(begin) + 1, static_cast<int>(end - begin)};
    words.push_back({line.substr(begin, end - begin), where});
    at = end;
  }
  return words;
}

std::optional<int> integer(std::string_view text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value >= least && value <= most ? std::optional(value) : std::nullopt;
}

/// Calls `f(line, number)` for each line of `text` until it returns false.
template <typename F>
void for_each_line(std::string_view text, F f) {
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (!f(text.substr(0, end), number)) return;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file, const Topology& topology)
      : text_(text), file_(file), topology_(topology) {
    for (int n = 0; n < topology.nodes(); ++n) node_of_.emplace(topology.name_of(n), n);
    links_of_.resize(static_cast<std::size_t>(topology.nodes()));
    for (std::size_t l = 0; l < topology.links.size(); ++l) {
      const Topology::Link& link = topology.links[l];
      links_of_[static_cast<std::size_t>(link.from)].emplace(link.to, static_cast<int>(l));
    }
    schedule_.servers = topology.servers;
  }

  Result<FlowSchedule> read() {
    for_each_line(text_, [&](std::string_view line, int number) {
      if (line.empty() || line[0] == '#') return true;
      read_line(words_of(line, number), number);
      return !diagnostics_ || diagnostics_->error_count() < kMostErrors;
    });
    if (expected_ != Expected::kMessages && !diagnostics_) {
      error({}, "the file ends before its messages", "it begins: agpcs-flow-schedule 1");
    }
    if (diagnostics_) return diagnostics_->status();
    normalize(schedule_);
    return std::move(schedule_);
  }

 private:
  enum class Expected : std::uint8_t { kFormat, kTopology, kSubChunks, kMessages };

  void error(SourceRange where, std::string message, std::string hint = {}) {
    // Copying the source takes time, so it is copied only when there is an error.
    if (!diagnostics_) diagnostics_.emplace(file_, std::string(text_));
    diagnostics_->error(where, std::move(message), std::move(hint));
  }

  void read_line(const std::vector<Word>& words, int number) {
    if (words.empty()) return;
    switch (expected_) {
      case Expected::kFormat:
        expected_ = Expected::kTopology;
        return read_format(words);
      case Expected::kTopology:
        expected_ = Expected::kSubChunks;
        return read_topology(words);
      case Expected::kSubChunks:
        expected_ = Expected::kMessages;
        return read_sub_chunks(words);
      case Expected::kMessages:
        return words[0].text == "round" ? read_round(words) : read_message(words, number);
    }
  }

  void read_format(const std::vector<Word>& words) {
    if (words[0].text != kFormatName || words.size() != 2) {
      return error(words[0].where, "this is no flow schedule",
                   fmt::format("its first line is '{} {}'", kFormatName, kVersion));
    }
    if (integer(words[1].text, kVersion, kVersion)) return;
    error(words[1].where, fmt::format("version '{}' of the format is not known", words[1].text),
          fmt::format("this agpcs reads version {}", kVersion));
  }

  void read_topology(const std::vector<Word>& words) {
    if (words[0].text != "topology" || words.size() < 2) {
      error(words[0].where, fmt::format("'{}' in place of the topology", words[0].text),
            "the second line is 'topology NAME'");
    }
  }

  void read_sub_chunks(const std::vector<Word>& words) {
    const bool known = words[0].text == "sub-chunks" && words.size() == 2;
    const auto count = known ? integer(words[1].text, 1, kMostSubChunks) : std::nullopt;
    if (count) {
      schedule_.sub_chunks = *count;
      return;
    }
    error(words.back().where, fmt::format("'{}' in place of the sub-chunks", words.back().text),
          fmt::format("the third line is 'sub-chunks K', K from 1 to {}", kMostSubChunks));
  }

  void read_round(const std::vector<Word>& words) {
    const auto round =
        words.size() == 2 ? integer(words[1].text, 0, std::numeric_limits<int>::max()) : -1;
    if (!round || *round < 0) {
      return error(words.back().where, fmt::format("'{}' is no round", words.back().text),
                   "a line 'round R' begins one; they count from 0");
    }
    if (*round <= round_) {
      return error(words[1].where, fmt::format("round {} comes after round {}", *round, round_),
                   "rounds ascend");
    }
    round_ = *round;
  }

  void read_message(const std::vector<Word>& words, int number) {
    const bool gather = words[0].text == "gather";
    if (!gather && words[0].text != "reduce") {
      return error(words[0].where, fmt::format("unknown word '{}'", words[0].text),
                   did_you_mean(std::string(words[0].text), {"round", "reduce", "gather"},
                                "a line begins with"));
    }
    if (words.size() < 4) {
      return error({number, 1, 1}, "a message of fewer than two nodes",
                   fmt::format("write {} CHUNK SERVER ... SERVER", words[0].text));
    }
    if (round_ < 0) return error(words[0].where, "a message before the first round", "add round 0");
    const std::optional<int> chunk = read_chunk(words[1]);
    const std::optional<int> route = read_route(words);
    if (!chunk || !route) return;
    (gather ? schedule_.all_gather : schedule_.reduce_scatter).push_back({*chunk, *route, round_});
  }

  /// Reads "s3:1": the owner and the sub-chunk.
  std::optional<int> read_chunk(const Word& word) {
    const std::size_t colon = std::min(word.text.rfind(':'), word.text.size());
    const std::string_view part = word.text.substr(std::min(colon + 1, word.text.size()));
    const std::optional<int> sub = integer(part, 0, schedule_.sub_chunks - 1);
    const auto owner = node_of_.find(word.text.substr(0, colon));
    if (sub && owner != node_of_.end() && topology_.is_server(owner->second)) {
      return owner->second * schedule_.sub_chunks + *sub;
    }
    error(word.where, fmt::format("'{}' is no sub-chunk", word.text),
          fmt::format("write SERVER:SUB-CHUNK, for example {}:{}", topology_.name_of(0),
                      schedule_.sub_chunks - 1));
    return std::nullopt;
  }

  std::optional<int> read_node(const Word& word) {
    const auto found = node_of_.find(word.text);
    if (found != node_of_.end()) return found->second;
    error(word.where, fmt::format("the topology has no node '{}'", word.text),
          did_you_mean(std::string(word.text), topology_.node_names, "nodes").substr(0, 200));
    return std::nullopt;
  }

  std::optional<int> read_route(const std::vector<Word>& words) {
    FlowRoute route;
    std::vector<int> nodes;
    for (std::size_t i = 2; i < words.size(); ++i) {
      const std::optional<int> node = read_node(words[i]);
      if (!node) return std::nullopt;
      const bool end = i == 2 || i + 1 == words.size();
      if (topology_.is_server(*node) != end) {
        error(words[i].where, fmt::format("'{}' is a {}", words[i].text, end ? "switch" : "server"),
              "a message goes from a server to a server, over switches only");
        return std::nullopt;
      }
      if (!nodes.empty()) {
        const auto& links = links_of_[static_cast<std::size_t>(nodes.back())];
        const auto link = links.find(*node);
        if (link == links.end()) {
          error(words[i].where,
                fmt::format("no link leads from {} to {}", words[i - 1].text, words[i].text));
          return std::nullopt;
        }
        route.links.push_back(link->second);
      }
      nodes.push_back(*node);
    }
    route.from = nodes.front();
    route.to = nodes.back();
    const auto next = static_cast<int>(schedule_.routes.size());
    const auto [known, added] = routes_.emplace(std::move(nodes), next);
    if (added) schedule_.routes.push_back(std::move(route));
    return known->second;
  }

  std::string_view text_;
  const std::string& file_;
  const Topology& topology_;
  std::map<std::string_view, int> node_of_;
  std::vector<std::map<int, int>> links_of_;  // by node, then by the node that the link leads to
  std::map<std::vector<int>, int> routes_;    // by their nodes
  FlowSchedule schedule_;
  Expected expected_ = Expected::kFormat;
  int round_ = -1;
  std::optional<Diagnostics> diagnostics_;
};

}  // namespace

std::string print_flow_schedule(const Topology& topology, const FlowSchedule& schedule) {
  const std::vector<std::string> routes = route_texts(topology, schedule);
  std::string text = fmt::format("{} {}\ntopology {}\nsub-chunks {}\n", kFormatName, kVersion,
                                 topology.name, schedule.sub_chunks);
  auto reduce = schedule.reduce_scatter.begin(), gather = schedule.all_gather.begin();
  std::int32_t round = -1;
  const auto add = [&](const Workload& w, std::string_view word) {
    if (w.round != round) fmt::format_to(Out(text), "round {}\n", round = w.round);
    fmt::format_to(Out(text), "  {} {}:{} {}\n", word, topology.name_of(schedule.owner_of(w.chunk)),
                   w.chunk % schedule.sub_chunks, routes[static_cast<std::size_t>(w.route)]);
  };
  while (reduce != schedule.reduce_scatter.end() || gather != schedule.all_gather.end()) {
    const bool is_gather = reduce == schedule.reduce_scatter.end() ||
                           (gather != schedule.all_gather.end() && gather->round < reduce->round);
    is_gather ? add(*gather++, "gather") : add(*reduce++, "reduce");
  }
  return text;
}

Result<FlowSchedule> parse_flow_schedule(std::string_view text, const std::string& file,
                                         const Topology& topology) {
  return Reader(text, file, topology).read();
}

Result<std::string> topology_of_flow_schedule(std::string_view text, const std::string& file) {
  std::string name;
  for_each_line(text, [&](std::string_view line, int) {
    if (line.substr(0, kTopologyLine.size()) == kTopologyLine) {
      name = line.substr(kTopologyLine.size());
    }
    return name.empty() && line.substr(0, 5) != "round";
  });
  if (!name.empty()) return name;
  return invalid_input(
      fmt::format("{}: error: no line 'topology NAME'\n  hint: a flow schedule "
                  "begins with '{} {}'",
                  file, kFormatName, kVersion));
}

}  // namespace agpcs
