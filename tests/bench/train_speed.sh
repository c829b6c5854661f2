#!/usr/bin/env bash
# Speed of a training step of configs/bench-134m.yaml on this machine, alternating with its rivals so that all meet the same neighbours:
#
#   tests/bench/train_speed.sh [--build DIR] [--python PYTHON] [--rounds N] [--steps N] [--dtypes "fp32 bf16"] [--threads N] [pytorch] [data] [tensor] [pipeline]
#
# pytorch: beside tests/bench/pytorch_rival.py, whose faster mode is found first (needs a Python with torch). data, tensor, pipeline: that layout
# of size 2, on two ranks of half the threads, beside one rank with all. All four where none is named. Prints every result line and, at the end, medians and ratios.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=build python=python3 rounds=5 steps=2 dtypes="fp32 bf16" threads=$(nproc) parts=()
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2 && shift ;;
    --python) python=$2 && shift ;;
    --rounds) rounds=$2 && shift ;;
    --steps) steps=$2 && shift ;;
    --dtypes) dtypes=$2 && shift ;;
    --threads) threads=$2 && shift ;;
    pytorch | data | tensor | pipeline) parts+=("$1") ;;
    *) echo "train_speed.sh: unknown argument $1" >&2 && exit 2 ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=(pytorch data tensor pipeline)
bench=$build/tests/train_bench config=configs/bench-134m.yaml
[ -x "$bench" ] || { echo "train_speed.sh: no $bench; build the target train_bench, or name its folder with --build" >&2 && exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The value of key $1 in the last `result` line of standard input.
value_of() { sed -n "s/^result .*\b$1=\([^ ]*\).*/\1/p" | tail -n 1; }
# The value of key $1 in the JSON line of standard input.
json_of() { sed -n "s/.*\"$1\": \"\{0,1\}\([^\",}]*\).*/\1/p" | tail -n 1; }
median_of() { sort -g "$1" | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.3f", a / b}'; }

# ours NAME RANKS ARGUMENTS...: one run; its tokens per second go to $work/NAME.
ours() {
    local name=$1 ranks=$2 line
    shift 2
    if ! line=$(mpiexec -n "$ranks" "$bench" "$config" --steps "$steps" --warmup 1 device.kind=cpu "$@" | grep ^result); then
        echo "train_speed.sh: $name failed" >&2
        exit 1
    fi
    echo "  $name: $line"
    echo "$line" | value_of tokens_per_s >>"$work/$name"
    echo "$line" | value_of share_of_onednn >>"$work/$name.share"
}

pytorch_part() {
    local dtype=$1 fastest mode rival_dtype line warmup=1
    "$python" tests/bench/pytorch_rival.py --dtype "$dtype" --threads "$threads" --steps 1 --warmup 2 --mode fastest >"$work/fastest"
    fastest=$(tail -n 1 "$work/fastest")
    echo "$dtype: PyTorch's fastest: $fastest"
    mode=$(echo "$fastest" | json_of mode) rival_dtype=$(echo "$fastest" | json_of dtype)
    [ "$mode" = eager ] || warmup=2 # compilation takes the first, its last specialisation the second
    for ((round = 1; round <= rounds; round++)); do
        ours "$dtype-trine" 1 train.precision="$dtype" device.threads="$threads"
        line=$("$python" tests/bench/pytorch_rival.py --dtype "$rival_dtype" --mode "$mode" --threads "$threads" --steps "$steps" --warmup "$warmup" | tail -n 1)
        echo "  $dtype-pytorch: $line"
        echo "$line" | json_of tokens_per_s >>"$work/$dtype-pytorch"
    done
    local a b
    a=$(median_of "$work/$dtype-trine") b=$(median_of "$work/$dtype-pytorch")
    echo "summary $dtype: trine $a tokens/s, pytorch $b tokens/s ($rival_dtype, $mode), ratio $(ratio "$a" "$b"); model FLOP/s over the best oneDNN product's $(median_of "$work/$dtype-trine.share")"
}

# layout DTYPE NAME BATCH MICRO_BATCH SETTING: two ranks beside one of the same batch.
layout() {
    local dtype=$1 name=$2 setting=$5 size
    size="train.global_batch=$3 train.micro_batch=$4"
    for ((round = 1; round <= rounds; round++)); do
        ours "$dtype-one-$name" 1 --no-peak train.precision="$dtype" $size device.threads="$threads"
        ours "$dtype-$name" 2 train.precision="$dtype" $size device.threads=$((threads / 2)) "$setting"
    done
    echo "summary $dtype $name 2: $(ratio "$(median_of "$work/$dtype-$name")" "$(median_of "$work/$dtype-one-$name")") of one rank's tokens/s"
}

# Two microbatches of 4 sequences a step, one of 4, eight of 1.
data_part() { layout "$1" data 8 4 parallel.data=2; }
tensor_part() { layout "$1" tensor 4 4 parallel.tensor=2; }
pipeline_part() { layout "$1" pipeline 8 1 parallel.pipeline=2; }

for dtype in $dtypes; do
    for part in "${parts[@]}"; do
        "${part}_part" "$dtype"
    done
done
