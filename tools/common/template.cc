// SPDX-License-Identifier: Apache-2.0
#include "tools/common/template.h"

#include "ir/base/check.h"
#include "tools/common/svg.h"

#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

/// "{{#key}}": its sort is '#', '/', '{' or ' ', and `begin` and `end` are its place in the text.
struct Tag {
  char sort = ' ';
  std::string_view key;
  std::size_t begin = std::string_view::npos, end = std::string_view::npos;
};

class Filler {
 public:
  Filler(std::string_view text, const Json& values) : text_(text), scopes_{&values} {}

  /// Fills from `at` on, up to the tag that closes `part`, and returns where that tag ends.
  std::size_t fill(std::size_t at, std::string_view part, std::string& out) {
    for (;;) {
      const Tag tag = next_tag(at);
      out += text_.substr(at, tag.begin - at);
      at = tag.end;
      if (tag.begin == text_.size()) {
        AGPCS_CHECK(part.empty(), "the template does not close '{}'", part);
        return at;
      }
      if (tag.sort == '/') {
        AGPCS_CHECK(tag.key == part, "the template closes '{}' inside of '{}'", tag.key, part);
        return at;
      }
      if (tag.sort == '#') {
        at = repeat(tag, out);
      } else {
        const std::string value = text_of(value_of(tag.key));
        out += tag.sort == '{' ? value : html_text(value);
      }
    }
  }

 private:
  /// Returns the first tag from `at` on; one at the text's end if there is none.
  Tag next_tag(std::size_t at) const {
    Tag tag;
    tag.begin = text_.find("{{", at);
    if (tag.begin == std::string_view::npos) return {' ', "", text_.size(), text_.size()};
    const std::size_t sort = tag.begin + 2;
    const char c = sort < text_.size() ? text_[sort] : ' ';
    const bool marked = c == '#' || c == '/' || c == '{';
    const std::string_view close = c == '{' ? "}}}" : "}}";
    const std::size_t key = sort + (marked ? 1 : 0), key_end = text_.find(close, key);
    AGPCS_CHECK(key_end != std::string_view::npos, "a tag of the template has no end");
    tag.sort = marked ? c : ' ';
    tag.key = text_.substr(key, key_end - key);
    tag.end = key_end + close.size();
    const bool parts = c == '#' || c == '/';
    const bool first = tag.begin == 0 || text_[tag.begin - 1] == '\n';
    if (parts && first && tag.end < text_.size() && text_[tag.end] == '\n') ++tag.end;
    return tag;
  }

  const Json& value_of(std::string_view key) const {
    if (key == ".") return *scopes_.back();
    const std::string name(key);
    for (std::size_t i = scopes_.size(); i-- > 0;) {
      const auto value = scopes_[i]->find(name);
      if (value != scopes_[i]->end()) return *value;
    }
    AGPCS_CHECK(false, "the template's '{}' has no value", name);
    return *scopes_.front();
  }

  static std::string text_of(const Json& value) {
    AGPCS_CHECK(value.is_string() || value.is_number(), "a value of the template is {}",
                json_line(value));
    return value.is_string() ? value.get<std::string>() : json_line(value);
  }

  /// Fills the part that begins with `tag` for each element of its value, and returns where the
  /// part ends.
  std::size_t repeat(const Tag& tag, std::string& out) {
    const Json& value = value_of(tag.key);
    std::vector<const Json*> elements;
    if (value.is_array()) {
      for (const Json& element : value) elements.push_back(&element);
    } else if (!value.is_null() && value != Json(false) && value != Json("")) {
      elements.push_back(&value);
    }
    if (elements.empty()) return skip(tag);
    std::size_t end = tag.end;
    for (const Json* element : elements) {
      scopes_.push_back(element);
      end = fill(tag.end, tag.key, out);
      scopes_.pop_back();
    }
    return end;
  }

  /// Returns where the part that begins with `tag` ends.
  std::size_t skip(const Tag& tag) const {
    std::size_t at = tag.end;
    for (std::size_t depth = 1; depth > 0;) {
      const Tag next = next_tag(at);
      AGPCS_CHECK(next.begin < text_.size(), "the template does not close '{}'", tag.key);
      depth += next.sort == '#' ? 1 : 0;
      depth -= next.sort == '/' ? 1 : 0;
      at = next.end;
    }
    return at;
  }

  std::string_view text_;
  std::vector<const Json*> scopes_;  // innermost last
};

}  // namespace

std::string fill_template(std::string_view text, const Json& values) {
  std::string out;
  Filler(text, values).fill(0, "", out);
  return out;
}

}  // namespace agpcs
