#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ONNX's C++ library and node tests, both of one pinned release, in a cache outside of the tree.
#
#   tools/onnx/onnx.sh install [--tests]   fetches and builds what the cache lacks (tools/install_deps.sh does this)
#   tools/onnx/onnx.sh prefix              prints the folder of the library, whether it is there or not
#   tools/onnx/onnx.sh node-tests          prints the folder of the node tests, whether it is there or not
#
# tools/cache.sh has the cache.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=1.23.2
source "$here/../cache.sh"

# The namespace is our own: LibTorch loads another release of this library, which has the usual one. Names of protobuf's
# messages and of their .proto files follow the namespace, so that protobuf's table of them, of which a process has one,
# holds both.
build_library() {  # into $1
  environment "$1/venv" build_tools.txt
  "$1/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
    --no-build-isolation --require-hashes -r "$here/source.txt" -d "$1"
  tar -xzf "$1/onnx-$version.tar.gz" -C "$1"
  export CCACHE_BASEDIR=$1 CCACHE_NOHASHDIR=1  # objects are the same in any folder
  # -O1: it compiles in two thirds of the time of -O3.
  "$1/venv/bin/cmake" -S "$1/onnx-$version" -B "$1/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" \
    -DCMAKE_INSTALL_PREFIX="$1/made" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DPython3_EXECUTABLE="$1/venv/bin/python" -DONNX_NAMESPACE=agpcs_onnx \
    -DONNX_ML=ON -DONNX_USE_PROTOBUF_SHARED_LIBS=ON
  "$1/venv/bin/cmake" --build "$1/build" --parallel "$(nproc)"
  "$1/venv/bin/cmake" --install "$1/build"
}

write_node_tests() {  # into $1
  environment "$1/venv" node_tests.txt
  "$1/venv/bin/python" "$here/write_node_tests.py" "$1/data"
  mv "$1/data/node" "$1/made"
}

prefix=$cache/onnx-$version-$(digest build_library build_tools.txt source.txt)
node_tests=$cache/onnx-$version-node-tests-$(digest write_node_tests node_tests.txt write_node_tests.py)

install() {
  lock onnx
  provide "$prefix" build_library "ONNX $version" building
  [ -z "${1:+tests}" ] || provide "$node_tests" write_node_tests "ONNX $version's node tests" writing
}

case "$*" in
  prefix) echo "$prefix" ;;
  node-tests) echo "$node_tests" ;;
  install) install ;;
  "install --tests") install tests ;;
  "build_library "* | "write_node_tests "*) "$@" ;;  # from provide
  *)
    echo "onnx.sh: error: unknown arguments '$*'" >&2
    echo "  hint: tools/onnx/onnx.sh install [--tests] | prefix | node-tests" >&2
    exit 2
    ;;
esac
