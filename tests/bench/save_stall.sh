#!/usr/bin/env bash
# What checkpoints cost a run on this machine: 8 CPU ranks train a model of 27 million parameters, saving every few steps, in the background
# and, in turn, before the next step.
#
#   tests/bench/save_stall.sh [--build DIR] [--dir FOLDER] [--ranks N] [--rounds N] [SETTING=VALUE ...]
#
# Prints each save's line and at the end, for each way, the medians of: seconds of a step beside no save, blocked milliseconds of a save and what share of such
# a step they are, and how much longer steps beside a save take. Exits 1 when saves in the background block for more than 2 % of a step.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=build ranks=8 rounds=1 folder=${TMPDIR:-/tmp} settings=()
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2 && shift ;;
    --dir) folder=$2 && shift ;;
    --ranks) ranks=$2 && shift ;;
    --rounds) rounds=$2 && shift ;;
    *=*) settings+=("$1") ;;
    *) echo "save_stall.sh: unknown argument $1" >&2 && exit 2 ;;
    esac
    shift
done
[ -x "$build/trine" ] || { echo "save_stall.sh: no $build/trine; build it, or name its folder with --build" >&2 && exit 2; }
work=$(mktemp -d "$folder/save-stall.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Any tokens do: letters in an order with some structure.
awk 'BEGIN { srand(1); for (d = 0; d < 400; d++) { line = ""; for (i = 0; i < 1500; i++) line = line sprintf("%c", 97 + int(26 * rand() * rand())); print line } }' >"$work/text"
"$build/trine" data build "$work/text" --out "$work/tokens" >/dev/null
cat >"$work/stall.yaml" <<END
model: {preset: llama, layers: 6, hidden: 512, heads: 8, kv_heads: 8, ffn: 1408, vocab: 8192}
data: {train: $work/tokens, tokenizer: bytes}
train: {steps: 15, seq_len: 256, global_batch: 16, micro_batch: 1, precision: fp32}
checkpoint: {every: 5, keep: 2}
END

median() { sort -g | awk '{ v[NR] = $1 } END { print NR == 0 ? "none" : NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
# The last save ends with the run, and is waited for in both ways.
field() { grep '^saved step' "$work/$1" | grep -v '^saved step 15:' | sed -n "s/.*$2.*/\\1/p"; }

for ((round = 1; round <= rounds; round++)); do
    for async in true false; do
        rm -rf "$work/run"
        mpiexec -n "$ranks" "$build/trine" train "$work/stall.yaml" device.kind=cpu "run.dir=$work/run" checkpoint.async=$async "${settings[@]}" >"$work/out"
        grep '^saved step' "$work/out" | tee -a "$work/$async" | sed "s/^/async=$async: /"
        # Steps beside no save: neither the first nor the two after a save.
        sed -n 's/^{"step": \([0-9]*\),.*"step_ms": \([0-9.e+]*\),.*/\1 \2/p' "$work/run/metrics.jsonl" |
            awk '$1 > 1 && ($1 - 1) % 5 > 1 { print $2 / 1000 }' >>"$work/$async.steps"
    done
done

status=0
for async in true false; do
    step=$(median <"$work/$async.steps")
    blocked=$(field $async 'blocked \([0-9.]*\) ms' | median)
    beside=$(field $async 'beside it took \([0-9.]*\) x' | median)
    share=$(awk -v blocked="$blocked" -v step="$step" 'BEGIN { printf "%.2f", blocked / step / 10 }')
    line="async=$async: a step takes $step s; a save blocks for $blocked ms, $share % of it"
    if [ $async = true ]; then
        line="$line; steps beside a save take $beside times as long"
        awk -v share="$share" 'BEGIN { exit !(share <= 2) }' || status=1
    fi
    echo "$line"
done
exit $status
