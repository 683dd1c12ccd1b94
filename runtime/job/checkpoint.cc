// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/checkpoint.h"

#include "ir/base/diagnostics.h"
#include "ir/base/sha256.h"
#include "ir/plan/lines.h"
#include "ir/plan/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

constexpr std::string_view kMagic = "agpcs-checkpoint ";
constexpr std::array<const char*, 3> kFiles = {kModelFile, kModelDataFile, kOptimizerFile};
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

bool is_digest(std::string_view text) {
  constexpr std::string_view kPrefix = "sha256:";
  if (text.size() != kPrefix.size() + 64 || text.substr(0, kPrefix.size()) != kPrefix) return false;
  text.remove_prefix(kPrefix.size());
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string digest_of_text(std::string_view text) {
  Sha256 sha;
  sha.update(text.data(), text.size());
  return sha.digest();
}

class CheckpointParser {
 public:
  CheckpointParser(std::string_view text, std::string_view file)
      : text_(text), diagnostics_(std::string(file), std::string(text)) {}

  Result<Checkpoint> run() {
    check_first_line();
    if (diagnostics_.ok()) lines_ = split_plan_lines(text_, diagnostics_);
    if (diagnostics_.ok()) check_end();
    if (diagnostics_.ok()) parse();
    if (diagnostics_.ok()) check_items();
    if (diagnostics_.ok() && print_checkpoint(checkpoint_) != text_) {
      diagnostics_.error({}, "it says what it says in other words than it was written in",
                         "was it edited? a manifest is never written by hand");
    }
    if (!diagnostics_.ok()) return diagnostics_.status();
    return std::move(checkpoint_);
  }

 private:
  void check_first_line() {
    const std::string_view first = text_.substr(0, text_.find('\n'));
    if (first.substr(0, kMagic.size()) != kMagic) {
      diagnostics_.error(
          {1, 0, 1}, text_.empty() ? "the file is empty" : "not the manifest of a checkpoint",
          fmt::format("a manifest begins with the line '{}{}'", kMagic, kCheckpointVersion));
    } else if (first.substr(kMagic.size()) != fmt::to_string(kCheckpointVersion)) {
      diagnostics_.error({1, static_cast<int>(kMagic.size()) + 1, 1},
                         fmt::format("version {} of the format, this program knows version {}",
                                     first.substr(kMagic.size()), kCheckpointVersion),
                         "resume with the version of AGPCS that wrote it");
    }
  }

  // Checks the end before all else, so that a damaged file is called damaged even if its lines
  // are wrong.
  void check_end() {
    const PlanLine& last = lines_.back();
    if (last.keyword() != "end" || last.depth > 0) {
      return diagnostics_.error({last.number, 0, 1}, "the last line is not 'end'",
                                "is the file truncated?");
    }
    PlanLineReader line(last, diagnostics_, {"digest"});
    const std::string written(line.value("digest"));
    line.finish();
    if (!line.ok()) return;
    const std::size_t size = static_cast<std::size_t>(last.text.data() - text_.data());
    const std::string found = digest_of_text(text_.substr(0, size));
    if (found == written) return;
    diagnostics_.error({last.number, 0, 1},
                       fmt::format("the digest is {}, the lines before it have {}", written, found),
                       "the file is damaged, or was edited: resume from another checkpoint");
  }

  // Returns the next line, which must begin with `keyword`; nullptr after an error.
  const PlanLine* line(std::string_view keyword) {
    if (!diagnostics_.ok()) return nullptr;
    const PlanLine& at = lines_[next_];  // the last one is 'end'
    if (at.keyword() == keyword && at.depth == 0) {
      ++next_;
      return &at;
    }
    diagnostics_.error({at.number, 1, static_cast<int>(at.text.size())},
                       fmt::format("'{}', where '{}' is expected", at.keyword(), keyword));
    return nullptr;
  }

  void parse() {
    next_ = 1;
    if (const PlanLine* at = line("made-by")) {
      PlanLineReader reader(*at, diagnostics_, {"agpcs"});
      checkpoint_.made_by = reader.name_value("agpcs");
      reader.finish();
    }
    if (const PlanLine* at = line("training")) {
      PlanLineReader reader(*at, diagnostics_, {"step", "batch", "seed"});
      checkpoint_.step = at_least(reader, "step", 0);
      checkpoint_.batch = at_least(reader, "batch", 1);
      checkpoint_.seed = reader.unsigned_value("seed");
      reader.finish();
    }
    if (diagnostics_.ok() && lines_[next_].keyword() == "best") parse_best();
    checkpoint_.model_digest = digest_line("model");
    checkpoint_.plan_digest = digest_line("plan");
    for (const char* name : kFiles) parse_file(name);
    while (diagnostics_.ok() && next_ + 1 < lines_.size()) parse_item();
  }

  void parse_best() {
    const PlanLine* at = line("best");
    if (at == nullptr) return;
    PlanLineReader reader(*at, diagnostics_, {"step", "loss"});
    BestResult best;
    best.step = at_least(reader, "step", 0);
    best.loss = reader.number_value("loss");
    reader.finish();
    checkpoint_.best = best;
  }

  std::string digest_line(std::string_view keyword) {
    const PlanLine* at = line(keyword);
    if (at == nullptr) return {};
    PlanLineReader reader(*at, diagnostics_, {"digest"});
    std::string digest = digest_value(reader);
    reader.finish();
    return digest;
  }

  static std::string digest_value(PlanLineReader& reader) {
    std::string digest(reader.value("digest"));
    if (reader.ok() && !is_digest(digest)) {
      reader.fail(fmt::format("digest is '{}', not sha256: and 64 hexadecimal digits", digest));
    }
    return digest;
  }

  static std::int64_t at_least(PlanLineReader& reader, const char* key, std::int64_t least) {
    const std::int64_t value = reader.integer_value(key);
    if (reader.ok() && value < least) {
      reader.fail(fmt::format("{} is {}, and at least {}", key, value, least));
    }
    return value;
  }

  void parse_file(const char* name) {
    const PlanLine* at = line("file");
    if (at == nullptr) return;
    PlanLineReader reader(*at, diagnostics_, {"bytes", "digest"});
    CheckpointFile file;
    file.name = reader.name("a file");
    if (reader.ok() && file.name != name) {
      reader.fail(fmt::format("file '{}', where '{}' is expected", file.name, name));
    }
    file.bytes = at_least(reader, "bytes", 0);
    file.digest = digest_value(reader);
    reader.finish();
    checkpoint_.files.push_back(std::move(file));
  }

  void parse_item() {
    const PlanLine* at = line("state");
    if (at == nullptr) return;
    PlanLineReader reader(*at, diagnostics_, {"slot", "elements", "file", "offset"});
    CheckpointItem item;
    item.item.tensor = reader.name("a tensor");
    item.item.slot = reader.name_value("slot");
    item.item.elements = at_least(reader, "elements", 0);
    if (reader.ok() && item.item.elements > kMostElements) {
      reader.fail(fmt::format("elements is {}, and at most {}", item.item.elements, kMostElements));
    }
    item.file = reader.name_value("file");
    if (reader.ok() && item.file != kModelDataFile && item.file != kOptimizerFile) {
      reader.fail(fmt::format("state is in '{}', not in {} or {}", item.file, kModelDataFile,
                              kOptimizerFile));
    }
    item.offset = at_least(reader, "offset", 0);
    reader.finish();
    if (!reader.ok()) return;
    checkpoint_.items.push_back(std::move(item));
    line_of_item_.push_back(at->number);
  }

  void check_items() {
    std::map<std::string, std::int64_t> end;  // by file: end of the part used so far
    for (std::size_t i = 0; i < checkpoint_.items.size() && diagnostics_.ok(); ++i) {
      const CheckpointItem& item = checkpoint_.items[i];
      const SourceRange where{line_of_item_[i], 0, 1};
      if (i > 0 && !(key_of(checkpoint_.items[i - 1]) < key_of(item))) {
        diagnostics_.error(where, fmt::format("'{}' of '{}' is out of order, or there twice",
                                              item.item.slot, item.item.tensor));
      }
      const bool of_model = item.file == kModelDataFile;
      const CheckpointFile& file = checkpoint_.files[of_model ? 1 : 2];
      const std::int64_t bytes = item.item.elements * static_cast<std::int64_t>(sizeof(float));
      if (item.offset > file.bytes || bytes > file.bytes - item.offset) {
        diagnostics_.error(where, fmt::format("{} bytes from {} on, but {} has {}", bytes,
                                              item.offset, file.name, file.bytes));
      } else if (item.offset < end[item.file]) {
        diagnostics_.error(where, fmt::format("begins at {}, where the item before it in {} goes "
                                              "on until {}",
                                              item.offset, file.name, end[item.file]));
      } else {
        end[item.file] = item.offset + bytes;  // at most the file's size, so it cannot overflow
      }
    }
  }

  static std::pair<std::string_view, std::string_view> key_of(const CheckpointItem& item) {
    return {item.item.tensor, item.item.slot};
  }

  std::string_view text_;
  Diagnostics diagnostics_;
  std::vector<PlanLine> lines_;
  std::size_t next_ = 0;
  Checkpoint checkpoint_;
  std::vector<int> line_of_item_;
};

}  // namespace

std::string print_checkpoint(const Checkpoint& c) {
  std::string text =
      fmt::format("{}{}\nmade-by agpcs={}\ntraining step={} batch={} seed={}\n", kMagic,
                  kCheckpointVersion, quoted(c.made_by), c.step, c.batch, c.seed);
  if (c.best) text += fmt::format("best step={} loss={}\n", c.best->step, c.best->loss);
  text += fmt::format("model digest={}\nplan digest={}\n", c.model_digest, c.plan_digest);
  for (const CheckpointFile& file : c.files) {
    text += fmt::format("file {} bytes={} digest={}\n", quoted(file.name), file.bytes, file.digest);
  }
  for (const CheckpointItem& item : c.items) {
    text +=
        fmt::format("state {} slot={} elements={} file={} offset={}\n", quoted(item.item.tensor),
                    quoted(item.item.slot), item.item.elements, quoted(item.file), item.offset);
  }
  return text + fmt::format("end digest={}\n", digest_of_text(text));
}

Result<Checkpoint> parse_checkpoint(std::string_view text, std::string_view file) {
  return CheckpointParser(text, file).run();
}

}  // namespace agpcs
