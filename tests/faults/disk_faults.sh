#!/bin/bash
# Slow and full disks. A save that fails on one rank is told once, the earlier checkpoint stays, training goes on; a slow read is
# hidden by the loader while it can be, and shown as waiting where it cannot.
. tests/faults/run_tools.sh
data text 60
config=configs/tiny-l.yaml
common="data.train=$scratch/text model.layers=2 train.global_batch=8 device.threads=1 log.every=1"

# A limit on file sizes, set on rank 1 while the run is under way: its shard does not fit, until the limit is lifted.
what='full disk'
start 2 train $config "run.dir=$scratch/full" train.steps=100000 log.every=1000000
await_step full 2
: >"$scratch/full/ctl/save"
for _ in $(seq 100); do
    [ ! -e "$scratch/full/checkpoints/latest" ] || break
    sleep 0.1
done
first=$(cat "$scratch/full/checkpoints/latest")
hashes=$("$trine" ckpt show --hash "$scratch/full/checkpoints/$first")
prlimit --pid "$(pid_of 1)" --fsize=100000:unlimited
: >"$scratch/full/ctl/save"
for _ in $(seq 100); do
    ! grep -q '^warning: the checkpoint' "$scratch/err" || break
    sleep 0.1
done
grep -q '^warning: the checkpoint of step [0-9]* was not saved: rank 1: .*checkpoints/step-.*/shard-00001.bin: .*File too large; earlier checkpoints stay as they are, and training goes on' "$scratch/err" ||
    { fail "$what: not told"; cat "$scratch/err"; }
equal "$what: warnings" "$(grep -c '^warning: the checkpoint' "$scratch/err")" 1
equal "$what: latest" "$(cat "$scratch/full/checkpoints/latest")" "$first"
equal "$what: folders" "$(ls "$scratch/full/checkpoints" | tr '\n' ' ')" "latest $first "
equal "$what: hashes of the earlier checkpoint" "$("$trine" ckpt show --hash "$scratch/full/checkpoints/$first")" "$hashes"
await_step full $(($(metric full step | tail -1) + 10))
prlimit --pid "$(pid_of 1)" --fsize=unlimited:unlimited
: >"$scratch/full/ctl/stop"
await 30
expect 75
equal "$what: latest once it is not full" "$(cat "$scratch/full/checkpoints/latest")" "step-$(printf %08d "$(status full step)")"

# Stopped while the disk is full: nothing is lost in silence.
what='stopped with a full disk'
start 2 train $config "run.dir=$scratch/lost" train.steps=100000 log.every=1000000
await_step lost 2
prlimit --pid "$(pid_of 1)" --fsize=100000:unlimited
: >"$scratch/lost/ctl/stop"
await 30
expect 1 'the state after step [0-9]*, the job.s last, is not saved'
ended lost failed 1
gone

# What a start writes takes the place of what was there when it is whole, so that a full disk cannot cut it.
what='config.yaml of another start'
before=$(cat "$scratch/lost/config.yaml")
ln "$scratch/lost/config.yaml" "$scratch/kept"
job 2 train $config "run.dir=$scratch/lost" train.steps=1 train.lr=1
expect 0
equal "$what: the one of before" "$(cat "$scratch/kept")" "$before"
grep -q '^  lr: 1 ' "$scratch/lost/config.yaml" || fail "$what: the new train.lr is not there"

# Slow reads: the loader sleeps twice a sequence. Short against a step: hidden. Long: shown in the metrics and the log.
waits() { metric "$1" feed | awk 'NR > 3 { n++; w += $1 } END { print w / n }'; }
steps_ms() { metric "$1" step_ms | awk 'NR > 3 { n++; w += $1 } END { print w / n }'; }
what='slow reads that can be hidden'
genv="-genv LD_PRELOAD $fault -genv TRINE_FAULT -1,memcpy,1,sleep1000"
job 1 train $config "run.dir=$scratch/hidden" train.steps=15 model.hidden=256 model.ffn=1024 train.seq_len=64
expect 0
awk -v wait="$(waits hidden)" -v step="$(steps_ms hidden)" 'BEGIN { exit !(wait < step / 10) }' ||
    fail "$what: $(waits hidden) ms of steps of $(steps_ms hidden) ms"
what='slow reads that cannot be hidden'
genv="-genv LD_PRELOAD $fault -genv TRINE_FAULT -1,memcpy,1,sleep20000"
job 1 train $config "run.dir=$scratch/shown" train.steps=8
genv=
expect 0
awk -v wait="$(waits shown)" -v step="$(steps_ms shown)" 'BEGIN { exit !(wait > 100 && wait > step / 2 && wait <= step) }' ||
    fail "$what: $(waits shown) ms of steps of $(steps_ms shown) ms"
grep -q '^step 8/8 .*feed [1-9][0-9][0-9]* ms' "$scratch/out" || fail "$what: not in the log"
finish
