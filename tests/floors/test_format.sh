#!/bin/sh
# Every C file of the tree is as clang-format would write it. Skipped (77) where clang-format is missing; versions differ in
# details, so that only the one of Debian 12 (14) decides.
set -eu
cd "$(dirname "$0")/../.."
command -v clang-format >/dev/null || { echo "clang-format is not installed"; exit 77; }
clang-format --version | grep -q 'version 14\.' || { echo "another clang-format than 14: $(clang-format --version)"; exit 77; }
find base memory io kernels parallel engine tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' | LC_ALL=C sort |
    xargs clang-format --dry-run -Werror
