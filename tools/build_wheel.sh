#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a wheel of the Python package and the commands agpcs-compile, agpcs-plan, agpcs-allreduce and agpcs-cluster, for every
# CPython from 3.9 on. Everything but PyTorch is in it.
#
#   tools/build_wheel.sh [FOLDER [BUILD]]   writes FOLDER/agpcs-*.whl (default: build/wheel) from the build folder BUILD
#                                           (build/release, which is made if it is not there)
#   tools/build_wheel.sh prefix             prints the folder of the tools that make wheels; tools/cache.sh has the cache
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/cache.sh"

make_tools() { environment "$1/made" python/wheel_tools.txt; }  # in $1

tools=$cache/wheel-tools-$(digest make_tools python/wheel_tools.txt)
case "${1-}" in
  prefix)
    echo "$tools"
    exit
    ;;
  make_tools)  # from provide
    "$@"
    exit
    ;;
  -*)
    echo "build_wheel.sh: error: unknown option '$1'" >&2
    echo "  hint: tools/build_wheel.sh [FOLDER [BUILD]]" >&2
    exit 2
    ;;
esac

cd "$here/.."
to=$(realpath -m "${1:-build/wheel}")
lock wheel-tools
provide "$tools" make_tools "what makes wheels" "installing"
python=$tools/bin/python

build=$(realpath -m --relative-to=. "${2:-build/release}")
[ -n "${2-}" ] || [ -f "$build/CMakeCache.txt" ] || cmake --preset release -DAGPCS_BUILD_TESTS=OFF >/dev/null
cmake --build "$build" --target agpcs_python agpcs-compile agpcs-plan agpcs-allreduce agpcs-cluster

# The parts of the package, as they are in the wheel. Its metadata is that of pyproject.toml. (What git ignores is left out,
# if it is not named.)
parts=$build/wheel
rm -rf "$parts"
for component in python python-commands; do
  cmake --install "$build" --component "$component" --strip --prefix "$parts" >/dev/null
done
package=$(dirname "$(find "$parts" -name _agpcs.py)")
"$python" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w "$parts/raw" . \
  --config-settings=wheel.cmake=false --config-settings=wheel.platlib=true "--config-settings=wheel.packages=$package" "--config-settings=sdist.include=$parts/**"

# The libraries that the wheel needs and a system may lack come into it, under names of its own. So do the licences of all
# that is in it, also of what was compiled in.
PATH=$tools/bin:$PATH "$python" -m auditwheel repair --wheel-dir "$parts/repaired" "$parts"/raw/*.whl >"$parts/log" 2>&1 || {
  cat "$parts/log" >&2
  exit 1
}
"$python" -m wheel unpack --dest "$parts/unpacked" "$parts"/repaired/*.whl >/dev/null
licenses=$(echo "$parts"/unpacked/*/*.dist-info)/licenses
mkdir -p "$licenses"
libraries=$(ldd "$package"/*.so "$package"/bin/* | awk '$1 ~ /^lib/ && $3 ~ /^\// {print $3}' | sort -u)
for library in $libraries; do
  name=$(basename "$library")
  compgen -G "$parts/unpacked/*/agpcs.libs/${name%%.so*}-*" >/dev/null || continue  # every system has it
  file=$(realpath "$library")  # below /usr; dpkg names it as its package does, which may be /lib
  owner=$({ dpkg-query -S "$file" || dpkg-query -S "${file#/usr}" || true; } 2>/dev/null | cut -d : -f 1)
  cp "/usr/share/doc/${owner:?no package has $library}/copyright" "$licenses/$owner"
done
for owner in libcli11-dev libeigen3-dev libxxhash-dev nlohmann-json3-dev; do
  cp "/usr/share/doc/$owner/copyright" "$licenses/$owner"
done
echo "ONNX, by the ONNX Project Contributors, under the Apache License 2.0, whose text is in LICENSE" >"$licenses/onnx"
mkdir -p "$to"
rm -f "$to"/agpcs-*.whl
"$python" -m wheel pack --dest-dir "$to" "$parts"/unpacked/* >/dev/null
wheel=$(echo "$to"/agpcs-*.whl)
echo "build_wheel.sh: $wheel: $(du -h --apparent-size "$wheel" | cut -f 1)"
