// SPDX-License-Identifier: Apache-2.0
// Attention: products of queries and keys, scaled and masked, their softmax, and the product with
// the values.
#include "ir/graph/fuse/pattern.h"
#include "ir/graph/op_table_rules.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

/// A number that hides a key wherever it takes the place of the score, or is added to it.
constexpr double kHides = -1e9;
/// Scales are rounded to fp32, or to ten digits.
constexpr double kScaleRounding = 1e-6;

/// Which keys a mask hides from which queries, where the file says it.
struct Hidden {
  bool some_row_whole = false;  ///< there is a query from which all keys are hidden
  bool later_ones = false;      ///< from each query exactly the keys that come after it
};

/// Reads a mask of numbers to add, or of keys that are allowed (or are not: `inverted`). Returns
/// nullopt for a mask that is no constant, or has other numbers than 0 and those that hide.
std::optional<Hidden> read_mask(const Tensor& mask, bool inverted) {
  const bool is_bool = mask.type == DType::kBool;
  if (mask.kind != TensorKind::kConstant || mask.frozen || !mask.constant.per_sample.empty() ||
      (!is_bool && mask.type != DType::kFp32) || mask.shape.size() < 2) {
    return std::nullopt;
  }
  const std::int64_t keys = mask.shape.back().fixed, queries = mask.shape.end()[-2].fixed;
  const std::int64_t count = elements_at(mask.shape, 0);
  if (count <= 0 ||
      mask.constant.bytes.size() != size_of(mask.type) * static_cast<std::size_t>(count))
    return std::nullopt;
  Hidden found{false, keys == queries && count == keys * queries};
  bool row_is_whole = true;
  for (std::int64_t i = 0; i < count; ++i) {
    bool hidden = false;
    if (is_bool) {
      hidden = (mask.constant.bytes[static_cast<std::size_t>(i)] == std::byte{0}) != inverted;
    } else {
      float number = 0;
      std::memcpy(&number, &mask.constant.bytes[static_cast<std::size_t>(i) * sizeof number],
                  sizeof number);
      hidden = number <= kHides;
      if (!hidden && number != 0) return std::nullopt;
    }
    const std::int64_t key = i % keys;
    found.later_ones = found.later_ones && hidden == (key > i / keys % queries);
    row_is_whole = (key == 0 || row_is_whole) && hidden;
    if (key == keys - 1) found.some_row_whole = found.some_row_whole || row_is_whole;
  }
  return found;
}

std::vector<std::int64_t> permutation_of(const Op& transpose, std::size_t rank) {
  std::vector<std::int64_t> reversed(rank);
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  return transpose.ints_attribute("perm", std::move(reversed));
}

Shape with_last_swapped(Shape shape) {
  std::swap(shape.back(), shape.end()[-2]);
  return shape;
}

/// Reads the attention whose output is the root.
class AttentionReader {
 public:
  explicit AttentionReader(Trail& trail) : trail_(trail), graph_(trail.graph()) {}

  std::optional<Composite> read() {
    const Op* last = trail_.maker(trail_.root(), "MatMul");
    if (last == nullptr) return std::nullopt;
    values_ = last->inputs[1];
    const std::size_t rank = trail_.output().shape.size();
    if ((rank != 3 && rank != 4) || !read_softmax(last->inputs[0])) return std::nullopt;
    find_keys();
    share_heads();
    if (!fits(rank)) return std::nullopt;
    return composite(rank);
  }

 private:
  const Tensor& tensor(TensorId id) const { return graph_.tensor(id); }
  const Shape& shape(TensorId id) const { return tensor(id).shape; }

  /// Tells whether only the attention reads `id`, and the node that it is a part of makes it.
  bool is_part(TensorId id) const {
    const OpId producer = tensor(id).producer;
    if (producer == kNone || !trail_.has_one_reader(id)) return false;
    const Op &op = graph_.op(producer), &last = graph_.op(tensor(trail_.root()).producer);
    return op.origin == last.origin && op.modules == last.modules;
  }
  void take_part(TensorId id) {
    if (is_part(id)) trail_.take(id);
  }

  bool read_softmax(TensorId weights) {
    if (const Op* dropout = trail_.maker(weights, "Dropout")) {
      if (!is_view(graph_, *dropout)) return false;  // it drops weights
      trail_.take(weights);
      weights = dropout->inputs[0];
    }
    // Rows without an allowed key become 0, as they do in Attention.
    if (const Op* where = trail_.maker(weights, "Where")) {
      const Op* nan = trail_.maker(where->inputs[0], "IsNaN");
      if (nan == nullptr || nan->inputs[0] != where->inputs[2] ||
          trail_.number(where->inputs[1]) != 0) {
        return false;
      }
      trail_.take(weights);
      trail_.take(where->inputs[0]);
      weights = where->inputs[2];
    }
    const Op* softmax = trail_.maker(weights, "Softmax");
    if (softmax == nullptr) return false;
    const auto rank = static_cast<std::int64_t>(shape(weights).size());
    const std::int64_t axis = softmax->int_attribute("axis", softmax->version < 13 ? 1 : -1);
    if (axis != -1 && axis != rank - 1) return false;
    trail_.take(weights);
    scores_ = softmax->inputs[0];
    return read_masked(scores_);
  }

  bool read_masked(TensorId id) {
    if (read_product(id)) return true;
    if (const Op* add = trail_.maker(id, "Add")) {
      for (const std::size_t i : {0, 1}) {
        if (!read_product(add->inputs[i])) continue;
        trail_.take(id);
        return read_bias(add->inputs[1 - i]);
      }
    }
    if (const Op* where = trail_.maker(id, "Where")) {
      for (const std::size_t i : {1, 2}) {
        const std::optional<double> number = trail_.number(where->inputs[3 - i]);
        if (!number || *number > kHides || !read_product(where->inputs[i])) continue;
        trail_.take(id);
        return read_condition(where->inputs[0], i == 2, *number, tensor(id).producer);
      }
    }
    return false;
  }

  bool read_bias(TensorId bias) {
    const std::optional<Hidden> hidden = read_mask(tensor(bias), false);
    causal_ = tensor(bias).type != DType::kBool && hidden && hidden->later_ones;
    if (!causal_) mask_ = bias;
    return true;
  }

  /// Reads a mask of keys that are allowed or, `inverted`, that are not. The score of a hidden key
  /// is `number`: where all keys of a query are hidden, that is no attention, unless it gives no
  /// number at all. `where` may become the operator that inverts the mask.
  bool read_condition(TensorId condition, bool inverted, double number, OpId where) {
    const std::optional<Hidden> hidden = read_mask(tensor(condition), inverted);
    if (hidden ? hidden->some_row_whole : std::isfinite(number)) return false;
    causal_ = hidden && hidden->later_ones;
    if (causal_) return true;
    mask_ = condition;
    if (!inverted) return true;
    if (const Op* inverse = trail_.maker(condition, "Not")) {
      take_part(condition);
      mask_ = inverse->inputs[0];
      return true;
    }
    mask_ = graph_.op(where).outputs[0];
    reused_.push_back({where, "Not", {condition}, {}, shape(condition), DType::kBool});
    return true;
  }

  /// Reads a product of queries and keys, scaled by numbers at any place.
  bool read_product(TensorId id) {
    const std::size_t length = trail_.length();
    scale_ = 1;
    id = unscaled(id);
    const Op* product = trail_.maker(id, "MatMul");
    if (product == nullptr || shape(id) != shape(scores_)) {
      trail_.back_to(length);
      return false;
    }
    trail_.take(id);
    product_ = id;
    queries_ = unscaled(product->inputs[0]);
    keys_ = unscaled(product->inputs[1]);
    return true;
  }

  TensorId unscaled(TensorId id) {
    while (is_part(id)) {
      const Op* mul = trail_.maker(id, "Mul");
      const Op* div = trail_.maker(id, "Div");
      std::optional<std::pair<TensorId, double>> factors;
      if (mul != nullptr) factors = trail_.with_number(*mul);
      if (div != nullptr) {
        const std::optional<double> divisor = trail_.number(div->inputs[1]);
        if (divisor) factors = std::pair(div->inputs[0], 1 / *divisor);
      }
      if (!factors || shape(factors->first) != shape(id)) return id;
      trail_.take(id);
      scale_ *= factors->second;
      id = factors->first;
    }
    return id;
  }

  /// Turns the second factor of the product, whose last axes are head size and keys. Where no
  /// tensor has these axes the other way round, the product becomes the operator that turns them.
  void find_keys() {
    const TensorId turned = keys_;
    const std::size_t rank = shape(turned).size();
    if (const TensorId keys = keys_of_reshaped(turned); keys != kNone) {
      keys_ = keys;
      return;
    }
    const Op* transpose = trail_.maker(turned, "Transpose");
    std::vector<std::int64_t> perm(rank);
    std::iota(perm.begin(), perm.end(), 0);
    const std::vector<std::int64_t> same = perm;
    TensorId source = turned;
    if (transpose != nullptr) {
      perm = permutation_of(*transpose, rank);
      source = transpose->inputs[0];
      take_part(turned);
    }
    if (rank < 2 || perm.size() != rank) return;
    std::swap(perm[rank - 1], perm[rank - 2]);
    if (perm == same) {
      keys_ = unscaled(source);
      return;
    }
    keys_ = product_;
    reused_.push_back({tensor(product_).producer,
                       "Transpose",
                       {source},
                       {{"perm", perm}},
                       with_last_swapped(shape(turned)),
                       tensor(turned).type});
  }

  /// Returns the keys where PyTorch's exporter turned them with batch and heads as one axis.
  TensorId keys_of_reshaped(TensorId turned) {
    const Op* apart = trail_.maker(turned, "Reshape");
    const Op* transpose = apart == nullptr ? nullptr : trail_.maker(apart->inputs[0], "Transpose");
    const Op* joined =
        transpose == nullptr ? nullptr : trail_.maker(transpose->inputs[0], "Reshape");
    if (joined == nullptr || !is_part(turned) || !is_part(apart->inputs[0]) ||
        !is_part(transpose->inputs[0])) {
      return kNone;
    }
    const TensorId keys = joined->inputs[0];
    const Shape &of_keys = shape(keys), &inside = shape(transpose->inputs[0]);
    if (inside.size() != 3 || of_keys.size() < 3 || shape(turned) != with_last_swapped(of_keys) ||
        !std::equal(inside.end() - 2, inside.end(), of_keys.end() - 2) ||
        permutation_of(*transpose, 3) != std::vector<std::int64_t>{0, 2, 1}) {
      return kNone;
    }
    for (const TensorId id : {turned, apart->inputs[0], transpose->inputs[0]}) trail_.take(id);
    return keys;
  }

  /// Takes keys and values before each of their heads was repeated for a group of queries.
  void share_heads() {
    const std::size_t length = trail_.length();
    const TensorId keys = unrepeated(keys_), values = unrepeated(values_);
    if (keys == kNone || values == kNone || shape(keys)[1] != shape(values)[1]) {
      trail_.back_to(length);
      return;
    }
    keys_ = keys;
    values_ = values;
  }

  TensorId unrepeated(TensorId id) {
    const Op* joined = trail_.maker(id, "Reshape");
    const Op* expand = joined == nullptr ? nullptr : trail_.maker(joined->inputs[0], "Expand");
    if (expand == nullptr || !is_part(id) || !is_part(joined->inputs[0])) return kNone;
    const TensorId one = expand->inputs[0];
    const Op* apart = trail_.maker(one, "Unsqueeze");
    if (apart == nullptr) apart = trail_.maker(one, "Reshape");
    if (apart == nullptr || !is_part(one)) return kNone;
    const TensorId heads = apart->inputs[0];
    const Shape &few = shape(heads), &many = shape(joined->inputs[0]);
    if (few.size() != 4 || many.size() != 5 || shape(id).size() != 4) return kNone;
    const Extent groups = many[2];
    const bool repeated =
        few[1].per_sample == 0 && groups.per_sample == 0 &&
        shape(one) == Shape{few[0], few[1], {1, 0}, few[2], few[3]} &&
        many == Shape{few[0], few[1], groups, few[2], few[3]} &&
        shape(id) == Shape{few[0], {few[1].fixed * groups.fixed, 0}, few[2], few[3]};
    if (!repeated) return kNone;
    for (const TensorId part : {id, joined->inputs[0], one}) trail_.take(part);
    return heads;
  }

  /// Tells whether extents and types are those of an attention in which nothing is broadcast but
  /// the mask. A product with a parameter is a layer.
  bool fits(std::size_t rank) const {
    const Shape& q = shape(queries_);
    const Shape k = shape_of_keys(), &v = shape(values_);
    for (const Shape* of : {&q, &k, &v}) {
      if (of->size() != rank || !depends_on_batch(*of) || of->front() != q.front()) return false;
    }
    const std::size_t length = rank - 2, size = rank - 1;
    if (k[length] != v[length] || q[size] != k[size]) return false;
    if (rank == 4 && (k[1] != v[1] || k[1].per_sample != 0 || k[1].fixed < 1 ||
                      q[1].per_sample != 0 || q[1].fixed % k[1].fixed != 0)) {
      return false;
    }
    Shape out = q;
    out[size] = v[size];
    Shape scores = q;
    scores[size] = k[length];
    const DType type = tensor(queries_).type;
    return shape(scores_) == scores && trail_.output().shape == out && type == DType::kFp32 &&
           tensor(scores_).type == type && tensor(values_).type == type &&
           trail_.output().type == type && mask_fits(scores);
  }

  Shape shape_of_keys() const { return keys_ == product_ ? reused_.back().shape : shape(keys_); }

  bool mask_fits(const Shape& scores) const {
    if (mask_ == kNone) return true;
    const bool inverted = !reused_.empty() && reused_.front().type == "Not";
    const Shape& mask = inverted ? reused_.front().shape : shape(mask_);
    const DType type = inverted ? DType::kBool : tensor(mask_).type;
    if (type != DType::kBool && type != DType::kFp32) return false;
    if (mask.size() < 2 || mask.size() > scores.size() || mask.back() != scores.back())
      return false;
    for (std::size_t i = 2; i <= mask.size(); ++i) {
      const Extent extent = mask.end()[-static_cast<std::ptrdiff_t>(i)];
      const bool is_batch_of_one_head = scores.size() == 3 && i == 3;
      if (extent != Extent{1, 0} &&
          (is_batch_of_one_head || extent != scores.end()[-static_cast<std::ptrdiff_t>(i)])) {
        return false;
      }
    }
    return true;
  }

  Composite composite(std::size_t rank) const {
    std::map<std::string, Attribute> attributes;
    const auto size = static_cast<double>(shape(queries_).back().fixed);
    if (std::abs(scale_ * std::sqrt(size) - 1) > kScaleRounding) attributes["scale"] = scale_;
    if (causal_) attributes["is_causal"] = std::int64_t{1};
    if (rank == 3) attributes["q_num_heads"] = attributes["kv_num_heads"] = std::int64_t{1};
    std::vector<TensorId> inputs = {queries_, keys_, values_};
    if (mask_ != kNone) inputs.push_back(mask_);
    Composite found = trail_.found(std::move(inputs), std::move(attributes));
    found.reused = reused_;
    return found;
  }

  Trail& trail_;
  const Graph& graph_;
  TensorId scores_ = kNone;  ///< what the softmax reads
  TensorId product_ = kNone, queries_ = kNone, keys_ = kNone, values_ = kNone, mask_ = kNone;
  double scale_ = 1;
  bool causal_ = false;
  std::vector<Reused> reused_;
};

}  // namespace

std::optional<Composite> find_attention(Trail trail) { return AttentionReader(trail).read(); }

}  // namespace agpcs
