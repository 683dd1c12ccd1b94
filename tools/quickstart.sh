#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a clone to a planned ResNet-50 and a planned training job on this machine's CPU.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }
run() { printf '\n$ %s\n' "$*"; "$@"; }

say "installing what AGPCS builds with"
tools/install_deps.sh

say "building the commands"
cmake --preset release -DAGPCS_BUILD_TESTS=OFF >/dev/null
cmake --build --preset release --target agpcs-compile agpcs-plan agpcs-run

export PATH="$PWD/build/release/bin:$PATH"
out=build/quickstart
mkdir -p "$out"

say "planning ResNet-50 for four V100 and four RTX 3090"
run agpcs-compile samples/models/resnet50.onnx samples/clusters/v100x4-rtx3090x4.yaml -o "$out/resnet50.plan"
run agpcs-plan check "$out/resnet50.plan"

say "planning a small network for two processes on this machine"
run agpcs-compile samples/models/small_cnn.onnxtxt samples/clusters/local-2.yaml -o "$out/small_cnn.plan"

say "training it by that plan"
run agpcs-run "$out/small_cnn.plan" samples/models/small_cnn.onnxtxt --local --steps 40
