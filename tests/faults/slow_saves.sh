#!/bin/bash
# Checkpoints on a slow disk: one rank's flush takes seconds. Steps go on beside it, `latest` never names what is not whole, and stops, ends and
# numbers that go wrong wait for what is being written.
. tests/faults/run_tools.sh
data text 60
config=configs/tiny-l.yaml
common="data.train=$scratch/text model.layers=2 train.global_batch=8 device.threads=1 log.every=1000 parallel.data=2"

# slow RANK MICROSECONDS: each fsync of that rank, of which a save has one per shard, and rank 0 more.
slow() { genv="-genv LD_PRELOAD $fault -genv TRINE_FAULT $1,fsync,1,sleep$2"; }

# blocked RUN: milliseconds that each step gave to saving.
blocked() { metric "$1" checkpoint; }

# In the background a step never waits for the disk while saves are far enough apart; before the next step each save does.
what='a slow disk'
slow 1 1500000
for async in true false; do
    start 2 train $config "run.dir=$scratch/run-$async" train.steps=100000 checkpoint.async=$async
    await_step run-$async 3
    : >"$scratch/run-$async/ctl/save"
    await_step run-$async 4
    # latest appears only with the whole of it.
    for _ in $(seq 100); do
        [ ! -e "$scratch/run-$async/checkpoints/latest" ] || break
        [ ! -e "$scratch/run-$async/checkpoints/"step-*[0-9] ] || sleep 0.2 # its name comes first, latest at once after it
        sleep 0.05
    done
    latest=$(cat "$scratch/run-$async/checkpoints/latest")
    "$trine" ckpt verify "$scratch/run-$async/checkpoints/$latest" >"$scratch/verify" 2>&1 || fail "$what: $latest: $(cat "$scratch/verify")"
    at=$(metric run-$async step | tail -1)
    await_step run-$async $((at + 2))
    kill -KILL $(rank_pids)
    await 30
    gone
    saved=$((10#${latest#step-}))
    most=$(blocked run-$async | sort -g | tail -1)
    disk=$(sed -n 's/^saved step .* (files [0-9.]* s, \([0-9.]*\) s of it on the disk, commit [0-9.]* s).*/\1/p' "$scratch/run-$async/log.txt")
    awk -v disk="${disk:-0}" 'BEGIN { exit !(disk >= 1.5) }' || fail "$what, async $async: the save says it spent ${disk:-nothing} s on the disk"
    if [ $async = true ]; then
        awk -v most="$most" 'BEGIN { exit !(most < 1000) }' || fail "$what, in the background: a step was blocked for $most ms"
        [ "$at" -gt $((saved + 1)) ] || fail "$what, in the background: saved step $saved when the run was at $at"
        beside=$(sed -n 's/^saved step .* \([0-9]*\) steps beside it took .*/\1/p' "$scratch/run-$async/log.txt")
        [ "${beside:-0}" -ge 2 ] || fail "$what, in the background: ${beside:-no} steps beside the save"
    else
        awk -v most="$most" 'BEGIN { exit !(most > 1400) }' || fail "$what, before the next step: no step was blocked for more than $most ms"
    fi
done

# A stop while a checkpoint is being written waits for it, then saves the last step.
what='stopped while saving'
slow 1 2000000
start 2 train $config "run.dir=$scratch/stopped" train.steps=100000
await_step stopped 2
: >"$scratch/stopped/ctl/save"
await_step stopped 3
sleep 0.2
: >"$scratch/stopped/ctl/stop"
await 60
expect 75 'waiting for the checkpoint of step [0-9]*, which is being written'
last=$(metric stopped step | tail -1)
equal "$what: latest" "$(cat "$scratch/stopped/checkpoints/latest")" "step-$(printf %08d "$last")"
equal "$what: saves" "$(grep -c '^saved step' "$scratch/stopped/log.txt")" 2

# The end of the run waits for a checkpoint that was asked for.
what='the end while saving'
start 2 train $config "run.dir=$scratch/ended" train.steps=600
await_step ended 2
: >"$scratch/ended/ctl/save"
await 120
genv=
expect 0
[ -e "$scratch/ended/checkpoints/latest" ] || fail "$what: nothing was saved"

# Numbers go wrong (a rate that throws the weights away) while the state of before is being written: it is kept.
what='numbers go wrong while saving'
slow 1 2000000
job 2 train $config "run.dir=$scratch/wrong" train.steps=50 train.precision=fp16 train.lr=1e6 train.warmup_steps=0 train.max_skips=2 checkpoint.every=1
genv=
expect 7 'the gradient was not finite in 2 steps in a row'
latest=$(cat "$scratch/wrong/checkpoints/latest")
"$trine" ckpt verify "$scratch/wrong/checkpoints/$latest" >"$scratch/verify" 2>&1 || fail "$what: $latest: $(cat "$scratch/verify")"
[ -z "$(ls -d "$scratch/wrong/checkpoints/"*.tmp 2>/dev/null)" ] || fail "$what: $(ls "$scratch/wrong/checkpoints")"
ended wrong failed 7
finish
