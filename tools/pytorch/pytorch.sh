#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyPI's PyTorch, of one pinned release, in a virtual environment of the cache: with its exporter, with the libraries of
# models that samples/zoo exports, with those that samples/pytorch_ddp trains with, and with mypy. Debian's PyTorch is
# older, and stays the one that LibTorch's tests compare with.
#
#   tools/pytorch/pytorch.sh install   downloads what the cache lacks, 3 GB (tools/install_deps.sh --tests does this)
#   tools/pytorch/pytorch.sh prefix    prints the environment's folder, whether it is there or not
#
# Its Python is bin/python; scripts of other packages in bin (torchrun) do not run there: bin/python -m torch.distributed.run.
# tools/cache.sh has the cache. On other machines than those of environment.txt there is none, and what needs it is skipped.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=2.15.0
source "$here/../cache.sh"

make_environment() {  # in $1
  export PIP_NO_CACHE_DIR=1  # another 3 GB
  environment "$1/made" environment.txt
  "$1/made/bin/python" -c "import torch; assert torch.__version__.split('+')[0] == '$version', torch.__version__"
}

prefix=$cache/pytorch-$version-$(digest make_environment environment.txt)

install() {
  local python
  python=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none)
  case "$(uname -m) $python" in
    "x86_64 3.11" | "x86_64 3.13") ;;
    *)
      echo "$script: skipped: PyTorch $version is pinned for Python 3.11 and 3.13 on x86-64, this is $python on $(uname -m)"
      return
      ;;
  esac
  lock pytorch
  provide "$prefix" make_environment "PyTorch $version" "downloading 3 GB, to 6 GB in $cache:"
}

case "$*" in
  prefix) echo "$prefix" ;;
  install) install ;;
  "make_environment "*) "$@" ;;  # from provide
  *)
    echo "pytorch.sh: error: unknown arguments '$*'" >&2
    echo "  hint: tools/pytorch/pytorch.sh install | prefix" >&2
    exit 2
    ;;
esac
