#!/bin/sh
# build.sh [TARGET]: installs what is missing (deps.sh), configures and builds in build/; TARGET is `trine` or `all` (default).
# Quiet unless something fails; seconds when nothing changed. TRINE_PRESET names another preset of CMakePresets.json that builds
# in build/ (ci: warnings are errors).
set -eu
cd "$(dirname "$0")/.."
target=${1:-all}

./launch/deps.sh
mkdir -p build
generator=
[ -f build/CMakeCache.txt ] || ! command -v ninja >/dev/null || generator="-G Ninja"
start=$(date +%s)
[ -f build/CMakeCache.txt ] || echo "Building in build/ (a minute or two on 2 cores, several with CUDA; progress in build/build.log)"
if ! cmake --preset "${TRINE_PRESET:-release}" $generator >build/configure.log 2>&1; then
    cat build/configure.log
    echo "error: CMake could not configure the build (its output is above and in build/configure.log)" >&2
    exit 1
fi
if ! cmake --build build --target "$target" --parallel "$(nproc)" >build/build.log 2>&1; then
    grep -v '^\[[0-9]*/[0-9]*\] [BL]' build/build.log | head -n 100
    echo "error: the build failed (all of its output is in build/build.log)" >&2
    exit 1
fi
echo "Built in build/ in $(($(date +%s) - start)) s; CUDA: $(sed -n 's/^--   CUDA  *//p' build/configure.log)"
