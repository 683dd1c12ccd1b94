#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs on a machine with an NVIDIA GPU everything that CUDA and NCCL have here, and reports it (docs/design/gpu.md).
#
#   tests/gpu/run.sh [--report FOLDER] [--from FOLDER] [--budget MINUTES] [--again PART]... [--rehearse] [PART...]
#   tests/gpu/run.sh --prepare FOLDER      on a machine with network: what the other one lacks
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if ! command -v python3 >/dev/null; then
  echo "run.sh: error: no python3 on the PATH" >&2
  echo "  hint: any Python from 3.9 will do; it needs its standard library only" >&2
  exit 1
fi
exec python3 "$here/main.py" "$@"
