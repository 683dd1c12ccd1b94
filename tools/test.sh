#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs, builds, and runs every test: of the lean runtime alone, then of everything; beside them fuzzes every reader
# with the same inputs whenever the code is the same. The last lines are the summaries of the tests.
#
#   tools/test.sh [CMAKE-OPTION...]     for instance -DAGPCS_WERROR=ON, as CI does
set -euo pipefail
cd "$(dirname "$0")/.."

# What has taken how long, for the last lines. took WHAT: all since it was last called.
times=
began=0
took() {
  times+="${times:+, }$1 $((SECONDS - began)) s"
  began=$SECONDS
}

tools/install_deps.sh --tests
took "installing"

# One compilation may take a gigabyte (the build itself bounds those that take more).
jobs=$(nproc)
memory_gib=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
[ "$memory_gib" -ge "$jobs" ] || jobs=$((memory_gib > 1 ? memory_gib : 1))

# Objects that both presets have are compiled alike, and once, where there is ccache.
for preset in runtime-only release; do
  cmake --preset "$preset" -DAGPCS_BUILD_TESTS=ON "$@"
  cmake --build --preset "$preset" --parallel "$jobs"
  took "building $preset"
done

# Tests that compare measured with predicted times come first, while nothing else runs. Fuzzing has what the others leave
# of the processors, as they wait much. Its job has a process group of its own, which ends with this script.
result=0
logs=$(mktemp -d)
fuzzing=
fuzzing_seconds=120  # that the end waits for it
ran=()
finish() {
  [ -z "$fuzzing" ] || kill -- "-$fuzzing" 2>/dev/null || true
  rm -rf "$logs"
}
trap finish EXIT
trap 'exit 130' INT TERM

run_tests() {  # $1: preset, $2: which tests, in words, then ctest's options
  echo "test.sh: tests of preset $1, $2"
  ctest --preset "$1" --parallel "$jobs" --output-log "$logs/${#ran[@]}" "${@:3}" || result=1
  ran+=("$1, $2")
  took "testing $1 $2"
}
run_tests release "on the testbed" --label-regex '^testbed$'
set -m
nice -n 19 tests/fuzz/run.sh 10000x >"$logs/fuzz" 2>&1 &
fuzzing=$!
set +m
# The tests of the runtime are the same in both presets, and take minutes.
run_tests runtime-only "without those of the runtime, which follow" --label-exclude '^runtime$'
run_tests release "all others" --label-exclude '^testbed$'

# Its build is long: where few processors have left it little, the end does not wait for all of it.
echo "test.sh: waiting for the fuzzing, $fuzzing_seconds s at most"
if timeout "$fuzzing_seconds" tail --pid="$fuzzing" -f /dev/null; then
  wait "$fuzzing" || result=1
else
  kill -- "-$fuzzing" || true
  echo "fuzz: skipped: it did not end within $fuzzing_seconds s after the tests; tests/fuzz/run.sh 10000x does it" >>"$logs/fuzz"
fi
fuzzing=
took "waiting for the fuzzing"
cat "$logs/fuzz"
for i in "${!ran[@]}"; do
  echo "test.sh: tests of preset ${ran[i]}"
  sed -n '/tests passed/,$p' "$logs/$i"
done
echo "test.sh: took $times"
exit $result
