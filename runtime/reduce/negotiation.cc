// SPDX-License-Identifier: Apache-2.0
#include "runtime/reduce/negotiation.h"

#include "ir/base/check.h"
#include "ir/plan/reduction_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace agpcs {
namespace {

constexpr char kUncached = 1;

std::size_t bytes_for(std::size_t bits) { return (bits + 7) / 8; }

void pack(const std::vector<char>& bits, char* out) {
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (bits[i] != 0) out[i / 8] = static_cast<char>(out[i / 8] | (1 << (i % 8)));
  }
}

bool bit_at(const char* packed, std::size_t bit) {
  return ((packed[bit / 8] >> (bit % 8)) & 1) != 0;
}

// Lists and answers consist of words. A unit is one word, with the number of its gradients that are
// not as declared in the upper half; two words follow for each of these gradients. An answer that
// begins with kComplaint is a text.
using Word = std::int64_t;
constexpr Word kComplaint = -1;
constexpr std::size_t kComplaintBytes = 512;  // at most, apart from a gradient's name

std::vector<char> bytes_of(const std::vector<Word>& words) {
  std::vector<char> bytes(words.size() * sizeof(Word));
  if (!bytes.empty()) std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

// Returns the whole words of `bytes`.
std::vector<Word> words_of(const std::vector<char>& bytes) {
  std::vector<Word> words(bytes.size() / sizeof(Word));
  if (!words.empty()) std::memcpy(words.data(), bytes.data(), words.size() * sizeof(Word));
  return words;
}

std::string spell(const TensorShape& shape) {
  return fmt::format("{} elements of {}", shape.elements, name_of(shape.type));
}

}  // namespace

Negotiation::Negotiation(const NegotiationSetup& setup)
    : setup_(&setup),
      unit_of_(setup_->shapes.size(), -1),
      shapes_(setup_->shapes),
      cache_(setup_->cached ? setup_->capacity : 0, setup_->units.size()) {
  for (std::size_t u = 0; u < setup_->units.size(); ++u) {
    missing_.push_back(static_cast<int>(setup_->units[u].size()));
    for (const int g : setup_->units[u])
      unit_of_[static_cast<std::size_t>(g)] = static_cast<int>(u);
  }
  std::size_t longest = 0;
  for (const std::string& name : setup_->names) longest = std::max(longest, name.size());
  const std::size_t words = setup_->units.size() + 2 * setup_->shapes.size();
  most_bytes_ = std::max(words * sizeof(Word), longest + kComplaintBytes);
  const ReductionTree tree = reduction_tree(setup_->hosts);
  const ReductionTree::Member& here = tree.members[static_cast<std::size_t>(setup_->member)];
  parent_ = here.parent;
  for (const int child : here.children) {
    if (child >= 0) children_.push_back(child);
  }
}

void Negotiation::submit(int gradient, const TensorShape& shape) {
  AGPCS_CHECK(phase_ == Phase::kIdle, "gradient {} in the middle of a cycle", gradient);
  shapes_[static_cast<std::size_t>(gradient)] = shape;
  const int unit = unit_of_[static_cast<std::size_t>(gradient)];
  if (--missing_[static_cast<std::size_t>(unit)] == 0) pending_.insert(unit);
}

void Negotiation::begin_cycle() {
  AGPCS_CHECK(phase_ == Phase::kIdle, "a cycle within a cycle");
  ++counts_.cycles;
  if (!setup_->cached) return begin_lists();
  bits_ = own_bits();
  step_ = 0;
  phase_ = Phase::kBitsUp;
  if (children_.empty()) bits_are_up();
}

std::vector<Negotiation::Message> Negotiation::take_messages() {
  return std::exchange(messages_, {});
}

std::vector<FusedTensors> Negotiation::take_decided() { return std::exchange(decided_, {}); }

Negotiation::Awaited Negotiation::awaited() const {
  const std::size_t bits = 1 + 2 * bytes_for(cache_.bits());
  switch (phase_) {
    case Phase::kIdle:
      return {};
    case Phase::kBitsUp:
      return {children_[step_], bits};
    case Phase::kBitsDown:
      return {parent_, bits};
    case Phase::kListSize:
      return {static_cast<int>(step_), sizeof(Word)};
    case Phase::kList:
      return {static_cast<int>(step_), size_};
    case Phase::kAnswerSize:
      return {0, sizeof(Word)};
    case Phase::kAnswer:
      return {0, size_};
  }
  return {};
}

void Negotiation::deliver(const std::vector<char>& bytes) {
  const Awaited from = awaited();
  AGPCS_CHECK(from.member >= 0 && bytes.size() == from.bytes, "{} bytes in place of {}",
              bytes.size(), from.bytes);
  if (take(bytes)) return;
  failure_ = {StatusCode::kPeerFailed,
              fmt::format("what rank {} says of its gradients cannot be understood",
                          setup_->ranks[static_cast<std::size_t>(from.member)])};
  phase_ = Phase::kIdle;
}

bool Negotiation::take(const std::vector<char>& bytes) {
  switch (phase_) {
    case Phase::kIdle:
      return false;
    case Phase::kBitsUp:
      if (!combine(bytes)) return false;
      if (++step_ == children_.size()) bits_are_up();
      return true;
    case Phase::kBitsDown:
      bits_ = {};
      bits_.ready.assign(cache_.bits(), 1);
      bits_.invalid.assign(cache_.bits(), 0);
      if (!combine(bytes) || !all_pending(bits_.ready)) return false;
      take_bits();
      return true;
    case Phase::kListSize:
    case Phase::kAnswerSize:
      size_ = static_cast<std::size_t>(words_of(bytes).front());
      if (size_ > most_bytes_) return false;
      phase_ = phase_ == Phase::kListSize ? Phase::kList : Phase::kAnswer;
      if (size_ > 0) return true;
      return phase_ == Phase::kList ? take_list({}) : take_answer({});
    case Phase::kList:
      return take_list(bytes);
    case Phase::kAnswer:
      return take_answer(bytes);
  }
  return false;
}

bool Negotiation::all_pending(const std::vector<char>& ready) const {
  for (std::size_t bit = 0; bit < ready.size(); ++bit) {
    if (ready[bit] != 0 && pending_.count(cache_.unit_at(bit)) == 0) return false;
  }
  return true;
}

std::vector<TensorShape> Negotiation::shapes_of(int unit) const {
  std::vector<TensorShape> shapes;
  for (const int g : setup_->units[static_cast<std::size_t>(unit)]) {
    shapes.push_back(shapes_[static_cast<std::size_t>(g)]);
  }
  return shapes;
}

bool Negotiation::is_cached(int unit) const { return cache_.bit_of(unit) >= 0; }

Negotiation::Bits Negotiation::own_bits() const {
  Bits bits;
  bits.ready.assign(cache_.bits(), 0);
  bits.invalid.assign(cache_.bits(), 0);
  for (const int unit : pending_) {
    if (!is_cached(unit)) {
      bits.uncached = true;
      continue;
    }
    const auto bit = static_cast<std::size_t>(cache_.bit_of(unit));
    const bool fits = cache_.shapes_at(bit) == shapes_of(unit);
    (fits ? bits.ready : bits.invalid)[bit] = 1;
    if (!fits) bits.uncached = true;
  }
  return bits;
}

std::vector<char> Negotiation::encode(const Bits& bits) const {
  const std::size_t part = bytes_for(cache_.bits());
  std::vector<char> bytes(1 + 2 * part, 0);
  bytes[0] = bits.uncached ? kUncached : 0;
  pack(bits.ready, bytes.data() + 1);
  pack(bits.invalid, bytes.data() + 1 + part);
  return bytes;
}

bool Negotiation::combine(const std::vector<char>& bytes) {
  const char* ready = bytes.data() + 1;
  const char* invalid = ready + bytes_for(cache_.bits());
  bits_.uncached = bits_.uncached || (bytes[0] & kUncached) != 0;
  for (std::size_t i = 0; i < cache_.bits(); ++i) {
    if (!bit_at(ready, i)) bits_.ready[i] = 0;
    if (!bit_at(invalid, i)) continue;
    if (cache_.unit_at(i) < 0) return false;
    bits_.invalid[i] = 1;
  }
  return true;
}

void Negotiation::bits_are_up() {
  if (parent_ < 0) return take_bits();
  send(parent_, encode(bits_));
  phase_ = Phase::kBitsDown;
}

void Negotiation::take_bits() {
  for (const int child : children_) send(child, encode(bits_));
  for (std::size_t bit = 0; bit < cache_.bits(); ++bit) {
    if (bits_.ready[bit] == 0) continue;
    const int unit = cache_.unit_at(bit);
    cache_.use(bit);
    ++counts_.hits;
    pending_.erase(unit);
    take_unit(unit);
  }
  drop_invalid();
  if (bits_.uncached) return begin_lists();
  end_cycle();
}

// Drops invalid answers on all ranks, so that every rank with such a unit asks the
// coordinator, too.
void Negotiation::drop_invalid() {
  for (std::size_t bit = 0; bit < cache_.bits(); ++bit) {
    if (bits_.invalid[bit] == 0) continue;
    cache_.erase(bit);
    ++counts_.invalidations;
  }
}

void Negotiation::begin_lists() {
  ++counts_.coordinated;
  if (setup_->member != 0) {
    send_list();
    phase_ = Phase::kAnswerSize;
    return;
  }
  complete_.clear();
  step_ = 0;
  for (const int unit : take_uncached()) {
    AGPCS_CHECK(enter(unit, 0, shapes_of(unit)), "unit {} twice", unit);
  }
  next_list();
}

std::vector<int> Negotiation::take_uncached() {
  std::vector<int> taken;
  std::set<int> still;
  for (const int unit : pending_) {
    if (is_cached(unit)) {
      still.insert(unit);
      continue;
    }
    asked_.insert(unit);
    taken.push_back(unit);
  }
  pending_ = std::move(still);
  return taken;
}

void Negotiation::send_list() {
  std::vector<Word> words;
  for (const int unit : take_uncached()) {
    const std::size_t at = words.size();
    words.push_back(unit);
    for (const int gradient : setup_->units[static_cast<std::size_t>(unit)]) {
      const auto g = static_cast<std::size_t>(gradient);
      if (shapes_[g] == setup_->shapes[g]) continue;
      words[at] += Word{1} << 32;
      words.push_back((static_cast<Word>(gradient) << 8) | static_cast<Word>(shapes_[g].type));
      words.push_back(shapes_[g].elements);
    }
  }
  send_sized(0, bytes_of(words));
}

bool Negotiation::take_list(const std::vector<char>& bytes) {
  const std::vector<Word> words = words_of(bytes);
  if (bytes.size() % sizeof(Word) != 0) return false;
  for (std::size_t i = 0; i < words.size();) {
    const auto unit = static_cast<std::size_t>(words[i] & 0xffffffff);
    const Word changes = words[i++] >> 32;
    if (unit >= setup_->units.size()) return false;
    if (changes < 0 || changes > static_cast<Word>((words.size() - i) / 2)) return false;
    const std::vector<int>& gradients = setup_->units[unit];
    std::vector<TensorShape> shapes;
    for (const int g : gradients) shapes.push_back(setup_->shapes[static_cast<std::size_t>(g)]);
    for (const std::size_t end = i + 2 * static_cast<std::size_t>(changes); i < end; i += 2) {
      const auto it = std::find(gradients.begin(), gradients.end(), words[i] >> 8);
      const auto type = static_cast<DType>(words[i] & 0xff);
      if (it == gradients.end() || type > DType::kBool || words[i + 1] < 0) return false;
      shapes[static_cast<std::size_t>(it - gradients.begin())] = {type, words[i + 1]};
    }
    if (!enter(static_cast<int>(unit), static_cast<int>(step_), shapes)) return false;
  }
  next_list();
  return true;
}

bool Negotiation::enter(int unit, int member, const std::vector<TensorShape>& shapes) {
  Entry& entry = table_[unit];
  if (entry.count == 0) {
    entry.from.assign(setup_->ranks.size(), 0);
    entry.first = member;
    entry.shapes = shapes;
  }
  if (entry.shapes != shapes && complaint_.empty()) {
    complaint_ = mismatch(unit, entry, member, shapes);
  }
  if (std::exchange(entry.from[static_cast<std::size_t>(member)], char{1}) != 0) return false;
  if (++entry.count == static_cast<int>(setup_->ranks.size())) complete_.push_back(unit);
  return true;
}

void Negotiation::next_list() {
  if (++step_ == setup_->ranks.size()) return answer();
  phase_ = Phase::kListSize;
}

void Negotiation::answer() {
  std::vector<Word> words(complete_.begin(), complete_.end());
  for (const int unit : complete_) table_.erase(unit);
  if (!complaint_.empty()) words = {kComplaint};
  std::vector<char> bytes = bytes_of(words);
  bytes.insert(bytes.end(), complaint_.begin(), complaint_.end());
  for (int member = 1; member < static_cast<int>(setup_->ranks.size()); ++member) {
    send_sized(member, bytes);
  }
  AGPCS_CHECK(take_answer(bytes), "{} units are complete", complete_.size());
}

bool Negotiation::take_answer(const std::vector<char>& bytes) {
  const std::vector<Word> words = words_of(bytes);
  if (!words.empty() && words.front() == kComplaint) {
    failure_ = invalid_input(std::string(bytes.begin() + sizeof(Word), bytes.end()));
    phase_ = Phase::kIdle;
    return true;
  }
  if (bytes.size() % sizeof(Word) != 0) return false;
  for (const Word unit : words) {
    const int known = static_cast<int>(unit);
    if (known != unit || asked_.erase(known) == 0) return false;
    if (setup_->cached && cache_.put(known, shapes_of(known))) ++counts_.evictions;
    take_unit(known);
  }
  end_cycle();
  return true;
}

void Negotiation::take_unit(int unit) {
  decided_units_.push_back(unit);
  missing_[static_cast<std::size_t>(unit)] =
      static_cast<int>(setup_->units[static_cast<std::size_t>(unit)].size());
}

void Negotiation::end_cycle() {
  std::vector<int> gradients;
  for (const int unit : decided_units_) {
    const std::vector<int>& of = setup_->units[static_cast<std::size_t>(unit)];
    gradients.insert(gradients.end(), of.begin(), of.end());
  }
  decided_units_.clear();
  decided_ = fuse(gradients, shapes_, setup_->fusion_bytes, setup_->alone_bytes);
  phase_ = Phase::kIdle;
}

void Negotiation::send(int member, std::vector<char> bytes) {
  messages_.push_back({member, std::move(bytes)});
}

void Negotiation::send_sized(int member, const std::vector<char>& bytes) {
  send(member, bytes_of({static_cast<Word>(bytes.size())}));
  if (!bytes.empty()) send(member, bytes);
}

std::string Negotiation::mismatch(int unit, const Entry& entry, int member,
                                  const std::vector<TensorShape>& shapes) const {
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (shapes[i] == entry.shapes[i]) continue;
    const int g = setup_->units[static_cast<std::size_t>(unit)][i];
    return fmt::format("gradient '{}' has {} on rank {}, {} on rank {}",
                       setup_->names[static_cast<std::size_t>(g)], spell(entry.shapes[i]),
                       setup_->ranks[static_cast<std::size_t>(entry.first)], spell(shapes[i]),
                       setup_->ranks[static_cast<std::size_t>(member)]);
  }
  return {};
}

std::string Negotiation::state() const {
  std::string text;
  const auto add = [&](const auto& values) {
    for (const auto value : values) text += static_cast<char>('0' + value);
    text += ';';
  };
  add(missing_);
  add(pending_);
  add(asked_);
  if (phase_ != Phase::kIdle) {
    add(std::vector<std::size_t>{static_cast<std::size_t>(phase_), step_, size_});
    add(complete_);
    add(decided_units_);
  }
  if (phase_ == Phase::kBitsUp) {
    add(bits_.ready);
    add(bits_.invalid);
    text += bits_.uncached ? '+' : '-';
  }
  // Only the order of the cache's uses matters.
  std::vector<std::size_t> by_use;
  for (std::size_t bit = 0; bit < cache_.bits(); ++bit) by_use.push_back(bit);
  std::sort(by_use.begin(), by_use.end(),
            [&](std::size_t a, std::size_t b) { return cache_.used_at(a) < cache_.used_at(b); });
  for (const std::size_t bit : by_use) {
    add(std::vector<int>{static_cast<int>(bit), cache_.unit_at(bit)});
  }
  for (const auto& item : table_) {
    if (item.second.count == 0) continue;
    text += static_cast<char>('A' + item.first);
    add(item.second.from);
  }
  return text;
}

}  // namespace agpcs
