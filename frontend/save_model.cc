// SPDX-License-Identifier: Apache-2.0
#include "frontend/save_model.h"

#include "frontend/onnx/dense.h"
#include "frontend/onnx/model.h"
#include "frontend/onnx/rewrite/functions.h"
#include "frontend/onnx/tensor.h"
#include "ir/base/read_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace agpcs {
namespace {

namespace fs = std::filesystem;
using namespace frontend;  // NOLINT: everything here concerns ONNX files
using onnx::TensorProto;

constexpr int kFreeInitializers = 4;  // first IR version whose initializers need not be inputs

// Returns the name that the imported graph has, except for a number that tells equal names apart.
std::string graph_name(std::string name) {
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte == 0x7F) c = '_';
  }
  return name;
}

int onnx_type_of(DType type) {
  int number = TensorProto::FLOAT;
  while (dtype_of(number) != type) ++number;  // every type has one, below bfloat16's number
  return number;
}

bool is_generator(const onnx::NodeProto& node) {
  return domain_of(node).empty() && node.output_size() == 1 &&
         (node.op_type() == "Constant" || node.op_type() == "ConstantOfShape");
}

// Tells whether the main graph has a stored tensor of each name. The others are in functions, or in
// bodies of control flow.
bool has_all(const onnx::ModelProto& proto, const std::vector<TrainedTensor>& trained) {
  std::unordered_set<std::string> names;
  for (const TensorProto& tensor : proto.graph().initializer())
    names.insert(graph_name(tensor.name()));
  for (const onnx::NodeProto& node : proto.graph().node()) {
    if (is_generator(node)) names.insert(graph_name(node.output(0)));
  }
  return std::all_of(trained.begin(), trained.end(),
                     [&](const TrainedTensor& tensor) { return names.count(tensor.name) != 0; });
}

// Moves what the bodies of control flow store to the main graph, whose values they may read. A name
// that the main graph has already stays where it is.
class Hoister {
 public:
  explicit Hoister(onnx::GraphProto& main) : main_(main) {}

  void run() {
    for (const TensorProto& tensor : main_.initializer()) taken_.insert(tensor.name());
    for (const onnx::ValueInfoProto& input : main_.input()) taken_.insert(input.name());
    for (const onnx::NodeProto& node : main_.node()) {
      taken_.insert(node.output().begin(), node.output().end());
    }
    for (onnx::NodeProto& node : *main_.mutable_node()) visit(node);
    for (onnx::NodeProto& node : *main_.mutable_node()) *nodes_.add_node() = std::move(node);
    main_.mutable_node()->Swap(nodes_.mutable_node());
  }

 private:
  void visit(onnx::NodeProto& node) {
    for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) empty(*attribute.mutable_g());
    }
  }

  void empty(onnx::GraphProto& body) {
    onnx::GraphProto rest;
    for (TensorProto& tensor : *body.mutable_initializer()) {
      const bool moves = taken_.insert(tensor.name()).second;
      *(moves ? main_ : rest).add_initializer() = std::move(tensor);
    }
    for (onnx::NodeProto& node : *body.mutable_node()) {
      visit(node);
      const bool constant = is_generator(node) && node.op_type() == "Constant";
      const bool moves = constant && taken_.insert(node.output(0)).second;
      *(moves ? nodes_ : rest).add_node() = std::move(node);
    }
    body.mutable_initializer()->Swap(rest.mutable_initializer());
    body.mutable_node()->Swap(rest.mutable_node());
  }

  onnx::GraphProto& main_;
  onnx::GraphProto nodes_;  ///< the main graph's nodes, moved ones first
  std::unordered_set<std::string> taken_;
};

class ModelSaver {
 public:
  ModelSaver(onnx::ModelProto proto, std::string file, std::string folder, std::string data_file)
      : proto_(std::move(proto)),
        diag_(std::move(file)),
        folder_(std::move(folder)),
        data_file_(std::move(data_file)) {}

  Result<SavedModel> run(std::vector<TrainedTensor> trained) {
    std::sort(trained.begin(), trained.end(),
              [](const TrainedTensor& a, const TrainedTensor& b) { return a.name < b.name; });
    find_names();
    for (const TrainedTensor& tensor : trained) save(tensor);
    remove_generators();
    visit_external([this](TensorProto& tensor) { copy(tensor); });
    if (!diag_.ok()) return diag_.status();
    if (proto_.ByteSizeLong() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
      diag_.error({}, fmt::format("without its weights the model has {} bytes, a protobuf message "
                                  "at most {}",
                                  proto_.ByteSizeLong(), std::numeric_limits<int>::max()));
      return diag_.status();
    }
    saved_.model = proto_.SerializeAsString();
    return std::move(saved_);
  }

 private:
  static constexpr int kAmbiguous = -1;
  struct Place {
    int initializer = 0, generator = kAmbiguous;  // index of one of the two; both -1: ambiguous
  };

  onnx::GraphProto& graph() { return *proto_.mutable_graph(); }

  void find_names() {
    const auto add = [this](const std::string& name, Place place) {
      const auto [at, added] = places_.emplace(graph_name(name), place);
      if (!added) at->second = {kAmbiguous, kAmbiguous};
    };
    for (int i = 0; i < graph().initializer_size(); ++i) {
      add(graph().initializer(i).name(), {i, kAmbiguous});
    }
    for (int i = 0; i < graph().node_size(); ++i) {
      const onnx::NodeProto& node = graph().node(i);
      if (is_generator(node)) add(node.output(0), {kAmbiguous, i});
      for (const std::string& input : node.input()) used_.insert(input);
    }
    for (const onnx::ValueInfoProto& output : graph().output()) used_.insert(output.name());
  }

  void error(const std::string& tensor, std::string message, std::string hint = {}) {
    diag_.error_at(fmt::format("tensor '{}'", tensor), std::move(message), std::move(hint));
  }

  void save(const TrainedTensor& tensor) {
    const auto found = places_.find(tensor.name);
    if (found == places_.end()) {
      return error(tensor.name, "it was trained, and is not in the model",
                   "give the model that the plan was made for");
    }
    const Place place = found->second;
    if (place.initializer < 0 && place.generator < 0) {
      return error(tensor.name, "two tensors of the model have this name, but for blanks",
                   "rename one of them");
    }
    TensorProto* saved = nullptr;
    if (place.initializer >= 0) {
      saved = graph().mutable_initializer(place.initializer);
      if (!fits(tensor, *saved)) return;
    } else {
      generators_.push_back(place.generator);
      saved = add_initializer(tensor, graph().node(place.generator).output(0));
    }
    point_to(*saved, place_of(tensor));
  }

  bool fits(const TrainedTensor& tensor, const TensorProto& stored) {
    const std::vector<std::int64_t> dims(stored.dims().begin(), stored.dims().end());
    if (dtype_of(stored.data_type()) == tensor.type && dims == tensor.dims) return true;
    error(tensor.name, fmt::format("it was trained as {} [{}], the model has {} [{}]",
                                   name_of(tensor.type), fmt::join(tensor.dims, ","),
                                   onnx_type_name(stored.data_type()), fmt::join(dims, ",")));
    return false;
  }

  TensorProto* add_initializer(const TrainedTensor& tensor, const std::string& name) {
    TensorProto* added = graph().add_initializer();
    added->set_name(name);
    added->set_data_type(onnx_type_of(tensor.type));
    for (const std::int64_t dim : tensor.dims) added->add_dims(dim);
    if (proto_.ir_version() >= kFreeInitializers) return added;
    onnx::ValueInfoProto* input = graph().add_input();
    input->set_name(name);
    auto* type = input->mutable_type()->mutable_tensor_type();
    type->set_elem_type(added->data_type());
    for (const std::int64_t dim : tensor.dims) type->mutable_shape()->add_dim()->set_dim_value(dim);
    return added;
  }

  SavedTensor place_of(const TrainedTensor& tensor) {
    const std::int64_t elements = element_count(tensor.dims).value_or(0);
    const auto size = static_cast<std::int64_t>(size_of(tensor.type));
    return add_place({tensor.name, tensor.type, 0, elements * size, "", 0});
  }

  SavedTensor add_place(SavedTensor place) {
    constexpr std::int64_t kPage = 4096, kLine = 64;
    const std::int64_t multiple = place.bytes >= kPage ? kPage : kLine;
    place.offset = (end_ + multiple - 1) / multiple * multiple;
    end_ = place.offset + place.bytes;
    saved_.tensors.push_back(place);
    return place;
  }

  void point_to(TensorProto& tensor, const SavedTensor& place) {
    TensorProto stub;
    stub.set_name(tensor.name());
    stub.set_data_type(tensor.data_type());
    *stub.mutable_dims() = tensor.dims();
    if (tensor.has_doc_string()) stub.set_doc_string(tensor.doc_string());
    stub.set_data_location(TensorProto::EXTERNAL);
    for (const auto& [key, value] :
         {std::pair("location", data_file_), std::pair("offset", std::to_string(place.offset)),
          std::pair("length", std::to_string(place.bytes))}) {
      onnx::StringStringEntryProto* entry = stub.add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    }
    tensor = std::move(stub);
    moved_.insert(&tensor);
  }

  // Adds Constants whose only use was as a shape of the removed generators.
  void add_their_shapes() {
    std::unordered_map<std::string, int> uses;
    for (const onnx::NodeProto& node : graph().node()) {
      for (const std::string& input : node.input()) ++uses[input];
    }
    for (const onnx::ValueInfoProto& output : graph().output()) ++uses[output.name()];
    for (const int generator : generators_) {
      for (const std::string& input : graph().node(generator).input()) --uses[input];
    }
    std::unordered_set<std::string> shapes;
    for (const int generator : generators_) {
      for (const std::string& input : graph().node(generator).input()) {
        if (uses[input] == 0) shapes.insert(input);
      }
    }
    for (int i = 0; i < graph().node_size(); ++i) {
      const onnx::NodeProto& node = graph().node(i);
      if (is_generator(node) && shapes.count(node.output(0)) != 0) generators_.push_back(i);
    }
  }

  void remove_generators() {
    add_their_shapes();
    std::sort(generators_.begin(), generators_.end());
    int kept = 0, at = 0;
    for (const int generator : generators_) {
      for (; at < generator; ++at) graph().mutable_node()->SwapElements(kept++, at);
      ++at;
    }
    if (generators_.empty()) return;
    for (; at < graph().node_size(); ++at) graph().mutable_node()->SwapElements(kept++, at);
    graph().mutable_node()->DeleteSubrange(kept, graph().node_size() - kept);
  }

  template <typename F>
  void visit_external(const F& visit) {
    const auto visit_one = [&](TensorProto& tensor) {
      if (is_external(tensor) && moved_.count(&tensor) == 0) visit(tensor);
    };
    for (TensorProto& tensor : *graph().mutable_initializer()) visit_one(tensor);
    for (onnx::NodeProto& node : *graph().mutable_node()) {
      for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
        if (attribute.has_t()) visit_one(*attribute.mutable_t());
        for (TensorProto& tensor : *attribute.mutable_tensors()) visit_one(tensor);
      }
    }
  }

  // Moves the value of a tensor that is not trained from the original model's file.
  void copy(TensorProto& tensor) {
    const auto data = external_data_of(tensor, folder_);
    if (!data.ok()) return error(tensor.name(), data.status().message());
    const fs::path source = fs::path(folder_) / data->location;
    const auto file = InputFile::open(source.string(), kExternalDataNoun);
    if (!file.ok() || file->size() < data->offset + data->length) {
      if (used_.count(tensor.name()) == 0) return;  // unused: the original lacks it, too
      return error(tensor.name(), fmt::format("its value is in '{}', which {}", source.string(),
                                              file.ok() ? "is too short" : "cannot be read"));
    }
    const DType type = dtype_of(tensor.data_type()).value_or(DType::kUint8);
    point_to(tensor,
             add_place({tensor.name(), type, 0, data->length, source.string(), data->offset}));
  }

  onnx::ModelProto proto_;
  Diagnostics diag_;
  std::string folder_, data_file_;
  std::unordered_map<std::string, Place> places_;  // by the name in the graph
  std::unordered_set<std::string> used_;
  std::unordered_set<const TensorProto*> moved_;
  std::vector<int> generators_;  // nodes to remove
  std::int64_t end_ = 0;
  SavedModel saved_;
};

}  // namespace

Result<SavedModel> lay_out_model(const std::string& path, std::vector<TrainedTensor> trained,
                                 const std::string& data_file) {
  AGPCS_TRY(std::string bytes, read_file(path, model_input(path)));
  const fs::path parent = fs::path(path).parent_path();
  try {
    AGPCS_TRY(onnx::ModelProto proto, decode_model(bytes, path));
    std::string().swap(bytes);
    if (!has_all(proto, trained)) AGPCS_RETURN_IF_ERROR(inline_functions(proto, path));
    if (!has_all(proto, trained)) Hoister(*proto.mutable_graph()).run();
    return ModelSaver(std::move(proto), path, parent.empty() ? "." : parent.string(), data_file)
        .run(std::move(trained));
  } catch (const std::exception& e) {  // ONNX's library and protobuf throw
    return invalid_input(fmt::format("{}: error: ONNX's library refuses it: {}", path, e.what()));
  }
}

}  // namespace agpcs
