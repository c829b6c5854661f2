#!/bin/bash
# Memory: the plan is what a run reports, to the byte; the process really needs about that; it does not grow with the steps; and a
# run that does not fit is refused before its first step, with what would fit.
. tests/faults/run_tools.sh
data text 60
data held 20 11
config=configs/tiny-l.yaml
common="data.train=$scratch/text"

# To the byte, over layouts and precisions.
number=0
while read -r ranks words; do
    number=$((number + 1))
    # shellcheck disable=SC2086
    plan_is_run plan$number "$ranks" $config train.steps=2 $words
done <<'END'
1
2 parallel.zero=0 train.precision=bf16
3 parallel.pipeline=3 memory.recompute=selective
4 parallel.tensor=2 parallel.sequence=false train.micro_batch=2
4 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=interleaved
4 parallel.zero=2 parallel.shard_ranks=2 train.precision=bf16
6 parallel.zero=2 parallel.pipeline=2 train.reduction_order=blocks train.reduction_leaves=3
8 parallel.tensor=2 parallel.pipeline=2 memory.recompute=full train.precision=fp16
4 parallel.zero=3
8 parallel.zero=3 parallel.pipeline=2 parallel.shard_ranks=2 model.tied=true train.precision=bf16
1 checkpoint.every=2
4 parallel.tensor=2 checkpoint.every=2
8 parallel.tensor=2 parallel.pipeline=2 parallel.zero=2 checkpoint.every=2 train.optimizer=sgd
2 checkpoint.every=1 checkpoint.snapshot_mb=1
END

# A model large enough to see in the process: its peak minus that of a tiny one is the plan, within 5 % and 64 MiB.
size='model.hidden=768 model.heads=12 model.kv_heads=12 model.ffn=2048 model.layers=6 train.seq_len=128 train.global_batch=2 train.steps=2 device.threads=1'
# kb FIELD FILE: of rank 0's process.
kb() { sed -n "s/^$1:[[:space:]]*\([0-9]*\) kB/\1/p" "/proc/$(pid_of 0)/$2"; }
# peak RANKS WORD...: VmHWM of rank 0 in bytes, of memory that ranks share only its part, and the plan's bytes of it, as "PEAK PLAN".
peak()
{
    rm -rf "$scratch/peak"
    job 1 plan $config --ranks "$1" train.steps=100000 "${@:2}"
    planned=$(plan_rank_0)
    start "$1" train $config "run.dir=$scratch/peak" "${@:2}" train.steps=100000
    await_step peak 2
    bytes=$((($(kb VmHWM status) - $(kb RssShmem status) + $(kb Pss_Shmem smaps_rollup)) * 1024))
    # shellcheck disable=SC2046
    kill -KILL $(rank_pids)
    await 30
    echo "$bytes ${planned%% *}"
}
for words in '1' '2 parallel.zero=1' '2 parallel.zero=3' '2 parallel.pipeline=2'; do
    what="peak of the process on $words"
    # shellcheck disable=SC2086
    read -r base_peak base_plan <<<"$(peak $words device.threads=1)"
    # shellcheck disable=SC2086
    read -r big_peak big_plan <<<"$(peak $words $size)"
    used=$((big_peak - base_peak)) plan=$((big_plan - base_plan))
    echo "$what: plan $plan, process $used"
    [ $used -le $((plan + plan / 20 + (64 << 20))) ] || fail "$what: $used bytes, planned $plan"
    [ $used -ge $((plan - plan / 4)) ] || fail "$what: $used bytes, planned $plan: the plan counts what is not needed"
done

# A large plan is quick.
what='plan of llama-70b on 1024 ranks'
job 1 plan configs/llama-70b.yaml --ranks 1024
expect 0 '^largest rank '
[ $seconds -lt 10 ] || fail "$what: took $seconds s"

# Refused before the first step: limits of the settings and of the system.
big="$size train.steps=1"
what='memory.limit_gb'
need=$(job 1 plan $config --ranks 2 $big parallel.zero=0 && plan_largest)
fits=$(job 1 plan $config --ranks 2 $big parallel.zero=1 && plan_largest)
[ "$fits" -lt "$need" ] || fail "plan: zero 1 needs $fits bytes, zero 0 $need"
limit=$(awk -v a="$need" -v b="$fits" 'BEGIN { printf "%.3f", (a + b) / 2e9 }')
# shellcheck disable=SC2086
job 2 train $config "run.dir=$scratch/limited" $big parallel.zero=0 memory.limit_gb=$limit
expect 6 "not enough memory on rank 0 (data 0, tensor 0, pipeline 0): the run needs $need bytes, memory.limit_gb is [0-9]* bytes, [0-9]* short; would fit: parallel.zero=1 ($fits bytes)"
for category in parameters gradients optimizer activations communication workspace; do
    grep -q "^  $category  *[0-9]* bytes$" "$scratch/err" || fail "$what: no line for $category"
done
ended limited failed 6
# Each change that it names is enough alone.
while read -r word bytes; do
    # shellcheck disable=SC2086
    job 1 plan $config --ranks 2 $big parallel.zero=0 "$word"
    equal "$what: bytes with $word" "$bytes" "$(plan_largest)"
done <<<"$(sed -n 's/.*would fit: //p' "$scratch/err" | grep -o '[a-z._]*=[a-z0-9]* ([0-9]* bytes' | tr -d '(' | cut -d ' ' -f 1,2)"
[ ! -e "$scratch/limited/metrics.jsonl" ] || fail "$what: it began"
# What it says would fit, does.
# shellcheck disable=SC2086
job 2 train $config "run.dir=$scratch/fitting" $big parallel.zero=1 memory.limit_gb=$limit
expect 0
# Nor does it name a change that would fit the rank that speaks, and not the one that is largest then: the stage with the head.
what='remedy of two stages'
stages='parallel.pipeline=2 model.layers=8 parallel.stages=4,4 model.vocab=2000 train.seq_len=64 train.micro_batch=4 device.threads=1'
# shellcheck disable=SC2086
job 1 plan $config --ranks 2 $stages memory.recompute=full
limit=$(awk '/^[01] / { sum += $NF } END { printf "%.6f", sum / 2e9 }' "$scratch/out")
# shellcheck disable=SC2086
job 2 train $config "run.dir=$scratch/limited" $stages memory.limit_gb=$limit
expect 6 'not enough memory on rank 0 .*would fit: none of zero and recompute'
what='ulimit -v'
# shellcheck disable=SC2086
(ulimit -v $((700 << 10)) && job 2 train $config "run.dir=$scratch/limited" $big model.layers=24; echo $code >"$scratch/code")
code=$(cat "$scratch/code")
expect 6 'what RLIMIT_AS leaves (ulimit -v) is [0-9]* bytes, [0-9]* short; would fit: '

# No growth over steps with evaluations and saves: memory and open files of every rank.
what='growth'
common="data.train=$scratch/text data.valid=$scratch/held"
small='model.layers=2 model.hidden=32 model.heads=2 model.kv_heads=2 model.ffn=64 train.seq_len=16 train.global_batch=4 train.steps=100000 train.eval_every=20 train.eval_batches=2 checkpoint.every=50 log.every=100 device.threads=1'
# shellcheck disable=SC2086
start 2 train $config "run.dir=$scratch/growth" $small
# A save under way holds a few chunks for a moment: the least of some readings counts.
sizes()
{
    for pid in $(rank_pids | sort -n); do
        for _ in $(seq 20); do
            echo "$(sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\) kB/\1/p' /proc/$pid/status) $(ls /proc/$pid/fd | wc -l)"
            sleep 0.05
        done | sort -n | head -1
    done
}
await_step growth 100
before=$(sizes)
await_step growth 300
middle=$(sizes)
await_step growth 500
after=$(sizes)
: >"$scratch/growth/ctl/stop"
await 30
expect 75
equal "$what: ranks" "$(echo "$before" | wc -l) $(echo "$after" | wc -l)" '2 2'
# What grows does so in both halves; once, late on a busy machine, a buffer of a save's may be new.
paste <(echo "$before") <(echo "$middle") <(echo "$after") | while read -r rss files rss_middle files_middle rss_after files_after; do
    echo "growth: $rss kB, $rss_middle kB, $rss_after kB over 200 steps each; $files, $files_middle and $files_after files"
    [ $((rss_middle - rss)) -lt 2048 ] || [ $((rss_after - rss_middle)) -lt 2048 ] ||
        echo "FAILED: $what: $rss kB became $rss_middle and $rss_after kB in 200 steps each"
    [ $files -ge $((files_after - 2)) ] || echo "FAILED: $what: $files open files became $files_after" # the metrics or a save may be open
done >"$scratch/growth.txt"
cat "$scratch/growth.txt"
! grep -q FAILED "$scratch/growth.txt" || failures=$((failures + 1))
finish
