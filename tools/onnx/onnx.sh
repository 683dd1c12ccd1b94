#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ONNX's C++ library and node tests, both of one pinned release, in a cache outside of the tree.
#
#   tools/onnx/onnx.sh install [--tests]   fetches and builds what the cache lacks (tools/install_deps.sh does this)
#   tools/onnx/onnx.sh prefix              prints the folder of the library, whether it is there or not
#   tools/onnx/onnx.sh node-tests          prints the folder of the node tests, whether it is there or not
#
# The cache is $AGPCS_CACHE; else ${XDG_CACHE_HOME:-~/.cache}/agpcs. A folder in it is complete or not there, and its name
# has a digest of how it was made: of the function below that makes it, of the files that this function uses, of protobuf's
# version and of the machine's kind.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=1.23.2
cache=${AGPCS_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/agpcs}

# Makes a virtual environment ($1) with the packages of a requirements file ($2), each of a pinned version and digest.
environment() {
  local python=/usr/bin/python3
  [ -x "$python" ] || python=python3
  "$python" -m venv "$1"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r "$here/$2"
}

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

digest() {  # of how function $1 makes its folder from the other arguments, files of this folder
  {
    declare -f environment "$1"
    (cd "$here" && sha256sum "${@:2}")
    protoc --version 2>/dev/null || true
    uname -m
  } | sha256sum | cut -c 1-12
}
prefix=$cache/onnx-$version-$(digest build_library build_tools.txt source.txt)
node_tests=$cache/onnx-$version-node-tests-$(digest write_node_tests node_tests.txt write_node_tests.py)

# Makes folder $1 of the cache by function $2, which fills a folder "made" in a temporary folder, and says how long it took.
provide() {
  if [ -d "$1" ]; then
    echo "onnx.sh: $3 is in $1"
    return
  fi
  SECONDS=0
  echo "onnx.sh: $4 $3"
  # In a process of its own, which ends at the first failure; a function called in a condition does not.
  if ! bash "$here/onnx.sh" "$2" "$work" >"$work/log" 2>&1; then
    tail -n 40 "$work/log" >&2
    echo "onnx.sh: error: $3 could not be made; above are the last lines of what was tried" >&2
    return 1
  fi
  mv -T "$work/made" "$1"
  echo "onnx.sh: $3 took $SECONDS s, and is in $1"
}

install() {
  mkdir -p "$cache"
  # One process at a time works here, so what another one left was interrupted.
  exec 9>"$cache/onnx.lock"
  flock 9
  rm -rf "$cache"/onnx.work.*
  work=
  trap 'rm -rf "${work:-}"' EXIT
  trap 'exit 130' INT TERM
  for what in library ${1:+tests}; do
    work=$(mktemp -d "$cache/onnx.work.XXXXXX")
    case "$what" in
      library) provide "$prefix" build_library "ONNX $version" building ;;
      tests) provide "$node_tests" write_node_tests "ONNX $version's node tests" writing ;;
    esac
    rm -rf "$work"
  done
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
