#!/usr/bin/env bash
# large_model.sh TRAIN_BENCH MPIEXEC: configs/bench-0.7b.yaml trains three steps on 8 ranks; its loss falls and all ranks together
# stay within 24 GiB. Skipped (77) where that much memory is not free.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench=$1 mpiexec=$2

free_gib=$(awk '/^MemAvailable/ {printf "%d", $2 / 1048576}' /proc/meminfo)
if [ "$free_gib" -lt 21 ]; then
    echo "skipped: $free_gib GiB of memory are free, 21 are needed"
    exit 77
fi
output=$(mktemp)
trap 'rm -f "$output"' EXIT
"$mpiexec" -n 8 "$bench" configs/bench-0.7b.yaml --steps 3 --warmup 0 device.kind=cpu | tee "$output"
awk '
    /^step/ { loss[++steps] = $0; sub(/.*loss /, "", loss[steps]); sub(/;.*/, "", loss[steps]) }
    /^result/ { for (i = 2; i <= NF; i++) { split($i, pair, "="); value[pair[1]] = pair[2] } }
    function fail(message) { print "failed: " message; failed = 1 }
    END {
        if (steps != 3) fail(steps + 0 " steps instead of 3")
        if (!(value["parameters"] >= 7e8)) fail("only " value["parameters"] " parameters")
        if (!(loss[3] < loss[1])) fail("the loss went from " loss[1] " to " loss[3])
        if (!(value["resident_gib"] > 0 && value["resident_gib"] < 24)) fail(value["resident_gib"] " GiB were resident")
        exit failed
    }' "$output"
