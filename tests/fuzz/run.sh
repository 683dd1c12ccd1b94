#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzz targets and runs each for a while, as many at a time as there are processors, starting from corpus and
# regressions. What it finds is kept in build/fuzz/findings, what it learned in build/fuzz/grown.
#
#   tests/fuzz/run.sh [SECONDS [TARGET...]]     60 seconds, all targets, going on from what was learned
#   tests/fuzz/run.sh Nx [TARGET...]            N inputs each, the same ones whenever the code is the same
#
# Exit: 0 nothing found (or no libFuzzer here, said in one line), 1 found something, or the build failed.
set -euo pipefail
cd "$(dirname "$0")/../.."

amount=${1:-60}
shift || true

probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$probe/probe.cc"
if ! command -v clang++ >/dev/null; then
  echo "fuzz: skipped: no clang++ here"
  exit 0
elif ! clang++ -fsanitize=fuzzer,address,undefined "$probe/probe.cc" -o "$probe/probe" 2>/dev/null; then
  echo "fuzz: skipped: clang++ has no libFuzzer here (Debian: libclang-rt-14-dev)"
  exit 0
fi

cmake --preset fuzz
cmake --build --preset fuzz --parallel "$(nproc)"

build=$PWD/build/fuzz
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for source in tests/fuzz/*_fuzz.cc; do
    source=$(basename "$source" _fuzz.cc)
    targets+=("$source")
  done
fi
mkdir -p "$build/findings" "$build/grown" "$build/logs"

run_one() {  # $1: target
  local seeds=() words=() folder
  for folder in corpus regressions; do
    [ ! -d "tests/fuzz/$folder/$1" ] || seeds+=("tests/fuzz/$folder/$1")
  done
  [ "$1" != import_onnx ] || seeds+=(tests/frontend/data)  # what PyTorch's exporters write
  [ ! -f "tests/fuzz/$1.dict" ] || words=("-dict=tests/fuzz/$1.dict")
  local learned=$build/grown/$1 limit=("-max_total_time=$amount") fixed=() says="in $amount s"
  if [[ $amount == *x ]]; then
    learned=$build/fresh/$1 limit=("-runs=${amount%x}") says="in all"
    rm -rf "$learned"
    # Addresses are among the values that libFuzzer learns from.
    ! setarch --addr-no-randomize true 2>/dev/null || fixed=(setarch --addr-no-randomize)
  fi
  mkdir -p "$learned"
  # No input of 16 KiB is worth 20 s or a gigabyte: what takes more is a finding.
  local result=0
  "${fixed[@]}" "$build/fuzz/fuzz_$1" "$learned" "${seeds[@]}" "${words[@]}" "${limit[@]}" -seed="${SEED:-1}" \
    -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=1024 -max_len=16384 -print_final_stats=1 \
    -artifact_prefix="$build/findings/$1-" >"$build/logs/$1.log" 2>&1 || result=1
  local runs
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/logs/$1.log")
  if [ $result -eq 0 ]; then
    echo "fuzz: $1: ${runs:-?} inputs $says, nothing found"
  else
    echo "fuzz: $1: FOUND something after ${runs:-?} inputs: $build/logs/$1.log"
    tail -n 40 "$build/logs/$1.log"
  fi
  return $result
}

result=0
running=0
for target in "${targets[@]}"; do
  if [ "$running" -ge "$(nproc)" ]; then
    wait -n || result=1
    running=$((running - 1))
  fi
  run_one "$target" &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  wait -n || result=1
  running=$((running - 1))
done
exit $result
