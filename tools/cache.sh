# SPDX-License-Identifier: Apache-2.0
# What is downloaded and made once, in a cache outside of the tree; for scripts that source this file. Such a script has a
# folder, $here, in which the files lie that it makes things from.
#
# The cache is $AGPCS_CACHE; else ${XDG_CACHE_HOME:-~/.cache}/agpcs. A folder in it is complete or not there, and its name
# has a digest of how it was made: of the function that makes it, of the files that this function uses, of protobuf's
# version and of the machine's kind.
script=$(basename "$0")
cache=${AGPCS_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/agpcs}

# Makes a virtual environment ($1) with the packages of a requirements file ($2), each of a pinned version and digest.
environment() {
  local python=/usr/bin/python3
  [ -x "$python" ] || python=python3
  "$python" -m venv "$1"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r "$here/$2"
}

digest() {  # of how function $1 makes its folder from the other arguments, files of this folder
  {
    declare -f environment "$1"
    (cd "$here" && sha256sum "${@:2}")
    protoc --version 2>/dev/null || true
    uname -m
  } | sha256sum | cut -c 1-12
}

# Lets one process at a time work under the name $1. What another one left was interrupted.
lock() {
  mkdir -p "$cache"
  locked=$1
  exec 9>"$cache/$locked.lock"
  flock 9
  rm -rf "$cache/$locked".work.*
  work=
  trap 'rm -rf "${work:-}"' EXIT
  trap 'exit 130' INT TERM
}

# Makes folder $1 of the cache by function $2, which fills a folder "made" in a temporary folder ($work), and says how
# long it took. $3 is what it is, $4 what is done to it, as "building".
provide() {
  if [ -d "$1" ]; then
    echo "$script: $3 is in $1"
    return
  fi
  SECONDS=0
  work=$(mktemp -d "$cache/$locked.work.XXXXXX")
  echo "$script: $4 $3"
  # In a process of its own, which ends at the first failure; a function called in a condition does not.
  if ! bash "$here/$script" "$2" "$work" >"$work/log" 2>&1; then
    tail -n 40 "$work/log" >&2
    echo "$script: error: $3 could not be made; above are the last lines of what was tried" >&2
    return 1
  fi
  mv -T "$work/made" "$1"
  rm -rf "$work"
  echo "$script: $3 took $SECONDS s, and is in $1"
}
