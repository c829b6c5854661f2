#!/bin/sh
# deps.sh: makes sure that what Trine needs to build, to test and to run its quickstart is installed. This is the one list.
#
# On Debian 12 and its relatives missing packages are installed with apt, as root or through sudo; nothing is printed and nothing
# is downloaded when all are there. On another system that lacks something the list is printed and the exit code is 1.
set -eu

# compiler and build; MPI; matrix products (its CMake files ask for OpenCL); YAML, zstd, JSON, hashes, gzip; tests; a second reader of
# checkpoints (tests); fuzzing (tests); the text of the quickstart
packages="
gcc g++ libc6-dev make cmake ninja-build pkg-config
mpich libmpich-dev
libdnnl-dev ocl-icd-opencl-dev
libyaml-dev libzstd-dev libjansson-dev libxxhash-dev zlib1g-dev
libcmocka-dev
python3-numpy python3-zstandard python3-xxhash
clang libclang-rt-dev libomp-dev
dict-gcide
"

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    missing=
    for tool in cc cmake pkg-config mpicc mpiexec; do
        command -v "$tool" >/dev/null || missing="$missing $tool"
    done
    for module in yaml-0.1 libzstd jansson libxxhash zlib cmocka; do
        pkg-config --exists "$module" 2>/dev/null || missing="$missing $module"
    done
    echo '#include <dnnl.h>' | cc -E - >/dev/null 2>&1 || missing="$missing dnnl"
    [ -z "$missing" ] && exit 0
    echo "error: this system has no apt; missing:$missing" >&2
    echo "Install what these Debian packages hold, then run this again:" $packages >&2
    exit 1
fi

missing=
for package in $packages; do
    case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) in
    installed) ;;
    *) missing="$missing $package" ;;
    esac
done
[ -z "$missing" ] && exit 0

run=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "error: these packages are missing and need root to install; as root run: apt-get install$missing" >&2
        exit 1
    fi
    run=sudo
fi
echo "Installing with apt:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { $run env DEBIAN_FRONTEND=noninteractive apt-get update -q &&
    $run env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "error: apt could not install:$missing" >&2
    exit 1
fi
