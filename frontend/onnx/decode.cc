// SPDX-License-Identifier: Apache-2.0
// Decodes bytes into a ModelProto. Errors say what is wrong with the file.
#include "frontend/onnx/model.h"

#include <fmt/format.h>
#include <onnx/defs/parser.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>

namespace agpcs::frontend {
namespace {

struct Magic {
  std::string_view bytes;
  std::string_view what;
};
constexpr Magic kMagics[] = {
    {"\x89PNG", "a PNG image"},
    {"\xFF\xD8\xFF", "a JPEG image"},
    {"PK\x03\x04", "a zip archive (a PyTorch checkpoint?)"},
    {"\x1F\x8B", "gzip data"},
    {"\x7F"
     "ELF",
     "a program"},
    {"\x80\x02", "a Python pickle"},
    {"\x89HDF", "an HDF5 file"},
    {"version https://git-lfs", "a Git LFS pointer"},
};

bool is_text(std::string_view bytes) {
  return std::all_of(
      bytes.begin(), bytes.begin() + std::min<std::size_t>(bytes.size(), 512),
      [](char c) { return c == '\n' || c == '\r' || c == '\t' || (c >= ' ' && c <= '~'); });
}

bool has_magic(std::string_view bytes, const Magic& magic) {
  return bytes.substr(0, magic.bytes.size()) == magic.bytes;
}

Status not_a_model(const std::string& bytes, const std::string& file) {
  for (const Magic& magic : kMagics) {
    if (!has_magic(bytes, magic)) continue;
    return invalid_input(fmt::format("{}: error: not an ONNX model: it is {}", file, magic.what));
  }
  if (is_text(bytes)) {
    return invalid_input(
        fmt::format("{}: error: not an ONNX model: it is text\n"
                    "  hint: text models in ONNX's own syntax are named *.onnxtxt",
                    file));
  }
  constexpr char kIrVersionTag = 0x08;  // a ModelProto starts with field 1, a varint
  if (bytes.front() == kIrVersionTag) {
    return invalid_input(
        fmt::format("{}: error: the model is truncated or damaged: its {} bytes cannot be decoded\n"
                    "  hint: copy or export it again",
                    file, bytes.size()));
  }
  return invalid_input(fmt::format("{}: error: not an ONNX model", file));
}

Result<onnx::ModelProto> decode_binary(const std::string& bytes, const std::string& file) {
  if (bytes.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return invalid_input(
        fmt::format("{}: error: the model has {} bytes, a protobuf message at most 2147483647\n"
                    "  hint: save it with external data",
                    file, bytes.size()));
  }
  onnx::ModelProto proto;
  const bool decoded = proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  // Other data may decode by chance, but only as fields that a model does not have.
  if (!decoded || (!proto.has_graph() && !proto.has_ir_version())) return not_a_model(bytes, file);
  return proto;
}

/// Turns "[ParseError at position (line: 2 column: 15)]\nError context: ...\nmessage" into a
/// diagnostic.
Status parse_error(const std::string& text, const std::string& file, const std::string& message) {
  SourceRange where;
  const std::size_t at = message.find("(line: ");
  if (at != std::string::npos) {
    std::sscanf(message.c_str() + at, "(line: %d column: %d)", &where.line, &where.column);
  }
  std::string what = message.substr(message.find_last_of('\n') + 1);
  while (!what.empty() && (what.back() == '.' || what.back() == ' ')) what.pop_back();
  if (!what.empty() && what[0] >= 'A' && what[0] <= 'Z') what[0] = static_cast<char>(what[0] + 32);
  Diagnostics diag(file, text);
  diag.error(where, what.empty() ? "the text cannot be parsed" : what);
  return diag.status();
}

Result<onnx::ModelProto> decode_text(const std::string& text, const std::string& file) {
  onnx::ModelProto proto;
  onnx::OnnxParser parser(text.c_str());
  try {
    const auto status = parser.Parse(proto);
    if (!status.IsOK()) return parse_error(text, file, status.ErrorMessage());
  } catch (const std::exception&) {  // std::stoll and the like throw inside the parser
    return parse_error(text, file, parser.GetCurrentPos() + "\na number is out of range");
  }
  return proto;
}

}  // namespace

bool is_text_model(std::string_view file) { return file.ends_with(".onnxtxt"); }

InputKind model_input(std::string_view file) {
  InputKind kind = {"model"};
  if (!is_text_model(file)) kind.most_bytes = std::numeric_limits<std::int32_t>::max();
  kind.hint = "larger models keep their weights beside them, as ONNX's external data";
  return kind;
}

Result<onnx::ModelProto> decode_model(const std::string& bytes, const std::string& file) {
  if (bytes.empty()) return invalid_input(fmt::format("{}: error: the file is empty", file));
  return is_text_model(file) ? decode_text(bytes, file) : decode_binary(bytes, file);
}

}  // namespace agpcs::frontend
