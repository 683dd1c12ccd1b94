#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails on a C++ source that clang-format would change. $1: the clang-format to use.
set -euo pipefail
cd "$(dirname "$0")/../.."
find cmake ir frontend cost_model codegen planner runtime tools tests samples \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print0 |
  xargs -0 "${1:-clang-format}" --dry-run -Werror
