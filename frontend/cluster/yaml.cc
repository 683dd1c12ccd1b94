// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/yaml.h"

#include "ir/base/read_file.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace agpcs {
namespace {

// yaml-cpp takes 150 times as much memory for small maps.
constexpr std::int64_t kMostBytes = 16 << 20;

SourceRange range_of(const YAML::Mark& mark, std::size_t length) {
  if (mark.is_null()) return {};
  return {mark.line + 1, mark.column + 1, static_cast<int>(std::max<std::size_t>(length, 1))};
}

// Tells whether hardware can have such a figure: a time below an hour; bytes, bandwidths and speeds
// from 1 to 1e24. A figure outside is a mistake and would make times infinite.
bool is_credible(double value, QuantityKind quantity) {
  return quantity == QuantityKind::kSeconds ? value < 3600 : value >= 1 && value <= 1e24;
}

// Tells whether line `number`, counted from 0, is indented by a tab.
bool is_indented_by_tab(const std::string& text, int number) {
  std::istringstream lines(text);
  std::string line;
  for (int i = 0; i <= number; ++i) {
    if (!std::getline(lines, line)) return false;
  }
  const std::size_t tab = line.find('\t');
  return tab != std::string::npos && tab < line.find_first_not_of(" \t");
}

// Reports an error of yaml-cpp. Its messages are sentences of their own: "end of map not found".
void report_syntax(const YAML::Exception& exception, const std::string& text,
                   Diagnostics& diagnostics) {
  const bool tab = !exception.mark.is_null() && is_indented_by_tab(text, exception.mark.line);
  diagnostics.error(range_of(exception.mark, 1), "bad YAML: " + exception.msg,
                    tab ? "the line begins with a tab, and YAML indents by blanks" : "");
}

// Returns the beginning of a text that is longer than a message should be.
std::string shortened(const std::string& text) {
  constexpr std::size_t kMostCharacters = 60;
  if (text.size() <= kMostCharacters) return text;
  std::size_t end = kMostCharacters;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;  // in a character
  return text.substr(0, end) + "...";
}

// Collects where the documents of a text begin.
class DocumentStarts final : public YAML::EventHandler {
 public:
  const std::vector<YAML::Mark>& marks() const { return marks_; }
  void OnDocumentStart(const YAML::Mark& mark) override { marks_.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnAlias(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnScalar(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                const std::string& /*value*/) override {}
  void OnSequenceStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/,
                       YAML::anchor_t /*anchor*/, YAML::EmitterStyle::value /*style*/) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                  YAML::EmitterStyle::value /*style*/) override {}
  void OnMapEnd() override {}

 private:
  std::vector<YAML::Mark> marks_;
};

// Throws if two documents begin at the same place. At a character that cannot begin a value, such
// as a stray ',', yaml-cpp makes empty documents without end, and `YAML::LoadAll` never returns.
// The exception is of the type that yaml-cpp throws for other mistakes.
void check_progress(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  while (parser.HandleNextDocument(starts)) {
    const std::vector<YAML::Mark>& marks = starts.marks();
    const std::size_t count = marks.size();
    if (count > 1 && marks[count - 1].pos == marks[count - 2].pos) {
      throw YAML::ParserException(marks.back(), "nothing can begin like this");
    }
  }
}

}  // namespace

Result<std::string> read_text(const std::string& path, const FileKind& kind) {
  return read_file(path, {kind.noun, kMostBytes});
}

std::optional<YAML::Node> load_yaml(const std::string& text, const FileKind& kind,
                                    Diagnostics& diagnostics) {
  std::vector<YAML::Node> documents;
  try {
    check_progress(text);
    documents = YAML::LoadAll(text);
  } catch (const YAML::Exception& exception) {
    report_syntax(exception, text, diagnostics);
    return std::nullopt;
  }
  std::erase_if(documents, [](const YAML::Node& node) { return node.IsNull(); });
  if (documents.empty()) {
    diagnostics.error({}, "the file is empty", fmt::format("{} has an example", kind.reference));
    return std::nullopt;
  }
  if (documents.size() > 1) {
    diagnostics.error(range_of(documents[1].Mark(), 1),
                      fmt::format("{} YAML documents in one file", documents.size()),
                      fmt::format("a {} has one; remove what follows '---'", kind.noun));
    return std::nullopt;
  }
  return documents.front();
}

SourceRange range_of(const YAML::Node& node) {
  if (!node.IsScalar()) return range_of(node.Mark(), 1);
  const bool quoted = node.Tag() == "!";
  return range_of(node.Mark(), node.Scalar().size() + (quoted ? 2 : 0));
}

std::string describe(const YAML::Node& node) {
  if (node.IsScalar()) return fmt::format("'{}'", shortened(node.Scalar()));
  return node.IsMap() ? "a map" : node.IsSequence() ? "a list" : "nothing";
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 100 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

YamlMap::YamlMap(const YAML::Node& node, std::string what, std::vector<std::string> keys,
                 Diagnostics& diagnostics)
    : what_(std::move(what)), where_(agpcs::range_of(node)), diagnostics_(&diagnostics) {
  if (!node.IsMap()) {
    diagnostics.error(where_, fmt::format("{} must be a map, is {}", what_, describe(node)),
                      keys.empty() ? "" : fmt::format("keys: {}", fmt::join(keys, ", ")));
    return;
  }
  for (const auto& entry : node) add(entry.first, entry.second, keys);
}

void YamlMap::add(const YAML::Node& key, const YAML::Node& value,
                  const std::vector<std::string>& keys) {
  const SourceRange where = agpcs::range_of(key);
  if (!key.IsScalar()) {
    diagnostics_->error(where,
                        fmt::format("a key of {} must be a word, is {}", what_, describe(key)));
    return;
  }
  const std::string& name = key.Scalar();
  if (!keys.empty() && std::find(keys.begin(), keys.end(), name) == keys.end()) {
    diagnostics_->error(where, fmt::format("unknown key '{}' in {}", name, what_),
                        did_you_mean(name, keys, "keys"));
    return;
  }
  const auto first = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == name; });
  if (first != entries_.end()) {
    diagnostics_->error(where, fmt::format("key '{}' is twice in {}", name, what_),
                        fmt::format("first in line {}", first->key_node.Mark().line + 1));
    return;
  }
  entries_.push_back({name, key, value});
}

const YAML::Node* YamlMap::find(std::string_view key) const {
  for (const Entry& entry : entries_) {
    if (entry.key == key) return entry.value.IsNull() ? nullptr : &entry.value;
  }
  return nullptr;
}

const YAML::Node* YamlMap::require(std::string_view key) const {
  const YAML::Node* const node = find(key);
  if (node == nullptr) diagnostics_->error(where_, fmt::format("{} lacks '{}'", what_, key));
  return node;
}

bool YamlMap::signed_right(std::string_view key, const YAML::Node& node, double value,
                           Sign sign) const {
  if (value > 0 || (value == 0 && sign == Sign::kNotNegative)) return true;
  diagnostics_->error(agpcs::range_of(node),
                      fmt::format("'{}' of {} must {}, is '{}'", key, what_,
                                  sign == Sign::kPositive ? "be more than zero" : "not be negative",
                                  node.Scalar()));
  return false;
}

std::optional<double> YamlMap::quantity(std::string_view key, QuantityKind quantity,
                                        Sign sign) const {
  const YAML::Node* const node = find(key);
  if (node == nullptr) return std::nullopt;
  if (!node->IsScalar()) {
    diagnostics_->error(agpcs::range_of(*node), fmt::format("'{}' of {} must be a figure, is {}",
                                                            key, what_, describe(*node)));
    return std::nullopt;
  }
  const ParsedQuantity parsed = parse_quantity(node->Scalar(), quantity);
  if (!parsed.error.empty()) {
    diagnostics_->error(agpcs::range_of(*node), parsed.error, parsed.hint);
    return std::nullopt;
  }
  if (!signed_right(key, *node, parsed.value, sign)) return std::nullopt;
  if (!is_credible(parsed.value, quantity)) {
    diagnostics_->error(agpcs::range_of(*node), fmt::format("'{}' of {} is out of range: '{}'", key,
                                                            what_, node->Scalar()));
    return std::nullopt;
  }
  return parsed.value;
}

std::optional<double> YamlMap::number(std::string_view key, Sign sign) const {
  const YAML::Node* const node = find(key);
  if (node == nullptr) return std::nullopt;
  double value = 0;
  if (!node->IsScalar() || !parse_number(node->Scalar(), value)) {
    diagnostics_->error(agpcs::range_of(*node), fmt::format("'{}' of {} must be a number, is {}",
                                                            key, what_, describe(*node)));
    return std::nullopt;
  }
  if (!signed_right(key, *node, value, sign)) return std::nullopt;
  return value;
}

std::optional<bool> YamlMap::flag(std::string_view key) const {
  const YAML::Node* const node = find(key);
  if (node == nullptr) return std::nullopt;
  const std::string text = node->IsScalar() ? node->Scalar() : "";
  if (text == "true" || text == "false") return text == "true";
  diagnostics_->error(agpcs::range_of(*node), fmt::format("'{}' of {} must be true or false, is {}",
                                                          key, what_, describe(*node)));
  return std::nullopt;
}

std::optional<std::int64_t> YamlMap::integer(std::string_view key, std::int64_t least,
                                             std::int64_t most) const {
  const YAML::Node* const node = find(key);
  if (node == nullptr) return std::nullopt;
  const std::string text = node->IsScalar() ? node->Scalar() : "";
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) {
    return value;
  }
  diagnostics_->error(agpcs::range_of(*node),
                      fmt::format("'{}' of {} must be a whole number from {} to {}, is {}", key,
                                  what_, least, most, describe(*node)));
  return std::nullopt;
}

std::optional<std::string> YamlMap::name(std::string_view key) const {
  const YAML::Node* const node = find(key);
  if (node == nullptr) return std::nullopt;
  if (node->IsScalar() && is_name(node->Scalar())) return node->Scalar();
  diagnostics_->error(agpcs::range_of(*node),
                      fmt::format("'{}' of {} must be a name, is {}", key, what_, describe(*node)),
                      "a name has letters, digits, '_', '.' and '-'");
  return std::nullopt;
}

std::optional<std::string> YamlMap::choice(std::string_view key, std::string_view noun,
                                           std::string_view plural,
                                           const std::vector<std::string>& choices) const {
  const YAML::Node* const node = find(key);
  if (node == nullptr) return std::nullopt;
  const std::string text = node->IsScalar() ? node->Scalar() : "";
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return text;
  diagnostics_->error(agpcs::range_of(*node), fmt::format("unknown {} {}", noun, describe(*node)),
                      did_you_mean(text, choices, plural));
  return std::nullopt;
}

}  // namespace agpcs
