# SPDX-License-Identifier: Apache-2.0
# Finds ONNX's C++ library with its protobuf messages and defines ONNX::ONNX. ONNX_NAMESPACE and ONNX_ML belong to the
# library's ABI and are not in its headers, so the target carries them.
find_package(Protobuf QUIET)
find_path(ONNX_INCLUDE_DIR onnx/onnx_pb.h)
find_library(ONNX_LIBRARY onnx)
find_library(ONNX_PROTO_LIBRARY onnx_proto)
mark_as_advanced(ONNX_INCLUDE_DIR ONNX_LIBRARY ONNX_PROTO_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ONNX
  REQUIRED_VARS ONNX_LIBRARY ONNX_PROTO_LIBRARY ONNX_INCLUDE_DIR Protobuf_FOUND)

if(ONNX_FOUND AND NOT TARGET ONNX::ONNX)
  add_library(ONNX::ONNX UNKNOWN IMPORTED)
  set_target_properties(ONNX::ONNX PROPERTIES
    IMPORTED_LOCATION "${ONNX_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${ONNX_INCLUDE_DIR}"
    INTERFACE_COMPILE_DEFINITIONS "ONNX_NAMESPACE=onnx;ONNX_ML=1"
    INTERFACE_LINK_LIBRARIES "${ONNX_PROTO_LIBRARY};protobuf::libprotobuf")
endif()
