#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs, builds, fuzzes every reader for a minute, and runs every test: of the lean runtime alone, then of everything.
# The last lines are the summary of the tests.
#
#   tools/test.sh [CMAKE-OPTION...]     for instance -DAGPCS_WERROR=ON, as CI does
set -euo pipefail
cd "$(dirname "$0")/.."

tools/install_deps.sh

# One compilation may take a gigabyte (the build itself bounds those that take more).
jobs=$(nproc)
memory_gib=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
[ "$memory_gib" -ge "$jobs" ] || jobs=$((memory_gib > 1 ? memory_gib : 1))

# Objects that both presets have are compiled alike, and once, where there is ccache.
for preset in runtime-only release; do
  cmake --preset "$preset" "$@"
  cmake --build --preset "$preset" --parallel "$jobs"
done
result=0
tests/fuzz/run.sh 60 || result=1
# The tests of the runtime are the same in both presets, and take minutes.
echo "test.sh: tests of preset runtime-only, without those of the runtime, which follow"
ctest --preset runtime-only --parallel "$jobs" --label-exclude '^runtime$' || result=1
echo "test.sh: tests of preset release"
ctest --preset release --parallel "$jobs" || result=1
exit $result
