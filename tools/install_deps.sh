#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what AGPCS builds with: Debian's packages and, beside them, ONNX's library, which it builds once (tools/onnx).
# Says so in a line each when everything is there already. Nothing else in AGPCS downloads.
# CUDA and NCCL are optional and not installed here: the build uses them where it finds them.
#
#   tools/install_deps.sh [--tests]     --tests: also what the tests, the benchmarks and the Python package need; of this,
#                                       PyPI's PyTorch takes minutes and 6 GB once (tools/pytorch)
set -euo pipefail

packages=(
  cmake ninja-build ccache g++
  libfmt-dev libxxhash-dev libyaml-cpp-dev libcli11-dev libeigen3-dev libmetis-dev nlohmann-json3-dev
  libpugixml-dev libssl-dev
  libprotobuf-dev protobuf-compiler python3 python3-venv  # what ONNX is built with
  libtorch-dev libgloo-dev
  libgoogle-perftools-dev  # tcmalloc, by which commands allocate; with glibc ranks take up to 1.5 times what lives
  libopenblas0-openmp  # what LibTorch multiplies by; without it that is the reference BLAS, 25 times as slow
)
packages_of_tests=(
  clang-format
  libgtest-dev libgmock-dev libbenchmark-dev libsimgrid-dev cadical
  python3-torch python3-onnx python3-numpy python3-jsonschema
  binutils     # nm: tests/system/wheel
  clang libclang-rt-14-dev  # libFuzzer: tests/fuzz
  openmpi-bin  # tests/system/faults/launchers.py
  locales      # tests/system/locale makes one with decimal commas
)
onnx=(install)
case "${1-}" in
  "") ;;
  --tests)
    onnx+=(--tests)
    packages+=("${packages_of_tests[@]}")
    ;;
  *)
    echo "install_deps.sh: error: unknown option '$1'" >&2
    echo "  hint: tools/install_deps.sh [--tests]" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install_deps.sh: error: this is not a Debian system; install these packages' equivalents yourself:" >&2
  printf '  %s\n' "${packages[@]}" >&2
  echo "  then build ONNX: tools/onnx/onnx.sh ${onnx[*]}" >&2
  [ ${#onnx[@]} -eq 1 ] || echo "  and fetch PyTorch for the tests: tools/pytorch/pytorch.sh install" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install_deps.sh: all ${#packages[@]} packages are installed"
else
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "install_deps.sh: error: run as root, or install sudo; missing: ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "install_deps.sh: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

"$(dirname "$0")/onnx/onnx.sh" "${onnx[@]}"
if [ "${1-}" = --tests ]; then
  "$(dirname "$0")/pytorch/pytorch.sh" install ||
    echo "install_deps.sh: warning: tests with PyPI's PyTorch will be skipped" >&2
fi
