#!/bin/sh
# run.sh: builds what runs on a GPU, tests it against the CPU device, and measures it. For a machine with a GPU and no network.
#
#     tests/device/pack.sh                      where Trine's packages are installed: makes build-pack/
#     tests/device/run.sh [--build-only] [--parts "NAME ..."]
#
# The machine has the CUDA toolkit, a C and a C++ compiler, CMake 3.25, ninja or make. Of the libraries (MPICH, oneDNN, libyaml, zstd,
# jansson, xxhash, zlib, cmocka) those in build-pack/ are taken when it was carried along, otherwise the system's. Everything is built in
# build-device/, logs are build-device/PART.log, or in $OUT where that names a folder. Parts, each with a time limit of its own; one that fails does
# not stop the next:
#
#     build        the programs below, for this GPU only (without one, for compute capability 9.0)
#     parity       every operation against the CPU device
#     golden       models G and L against the golden files, on the GPU
#     ranks        2 and 4 ranks that share the GPU (TRINE_SHARE_GPU), over NCCL: layouts against one rank
#     operations   each operation's time against its floor
#     training     tokens per second and MFU of 124M, and of 1.3B- and 7B-shaped stacks of few layers, bf16
#     pytorch      the same models in PyTorch (torch.compile), where python3 has it with CUDA
#
# All together stay below eight minutes. The last line is the verdict; the exit code is 0 when parts ran and none failed, and 77 without a
# GPU. MFU is of $TRINE_PEAK_TFLOPS, by default 989, an H200's dense bf16; model FLOP are those of docs/performance.md.
set -u
cd "$(dirname "$0")/../.."
root=$PWD build=$PWD/build-device pack=$PWD/build-device/pack logs=${OUT:-$PWD/build-device}
known="build parity golden ranks operations training pytorch"
peak=${TRINE_PEAK_TFLOPS:-989} build_only= parts=$known
usage() {
    echo 'usage: tests/device/run.sh [--build-only] [--parts "NAME ..."]' >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --build-only) build_only=yes parts=build; shift ;;
    --parts) [ $# -gt 1 ] || usage; parts=$2; shift 2 ;;
    *) usage ;;
    esac
done

for name in $parts; do
    case " $known " in
    *" $name "*) ;;
    *)
        echo "error: no part $name; there are: $known" >&2
        exit 2
        ;;
    esac
done

gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
if [ -z "$gpu" ] && [ -z "$build_only" ]; then
    echo "no GPU: nvidia-smi finds none, so nothing was built, tested or measured (--build-only builds)"
    exit 77
fi
export TRINE_CUDA_ARCH="${capability:-90}"
echo "GPU: ${gpu:-none}; $(nproc) cores; $(date -u)"
mkdir -p "$build" "$logs"

# ---- parts ----

passed=0 failed=0 skipped=0
# part NAME SECONDS: runs part_NAME in a process of its own; exit code 77 is skipped. What it prints after "result:" is shown.
part() {
    case " $parts " in *" $1 "*) ;; *) return 0 ;; esac
    begin=$(date +%s)
    timeout -k 5 "$2" sh "$root/tests/device/run_part.sh" "$1" "$build" "$pack" "$peak" >"$logs/$1.log" 2>&1
    code=$?
    seconds=$(($(date +%s) - begin))
    sed -n 's/^result: //p' "$logs/$1.log"
    case $code in
    0) passed=$((passed + 1)); echo "== $1: passed, $seconds s" ;;
    77) skipped=$((skipped + 1)); echo "== $1: skipped, $(tail -n 1 "$logs/$1.log")" ;;
    *)
        failed=$((failed + 1))
        tail -n 12 "$logs/$1.log"
        case $code in 124 | 137) echo "stopped at its limit of $2 s" ;; esac
        echo "== $1: FAILED, $seconds s, all of it in $logs/$1.log"
        ;;
    esac
}
part build 120
part parity 50
part golden 30
part ranks 80
part operations 35
part training 45
part pytorch 100

[ $((passed + failed)) != 0 ] || failed=1
verdict=good
[ "$failed" = 0 ] || verdict=bad
echo "verdict: $verdict, $passed parts passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
