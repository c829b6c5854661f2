#!/bin/bash
# Disks that fail while a checkpoint is written or read, folders without permission, folders that are not one. A failed save is told once
# by all ranks together and costs nothing but itself; a checkpoint that cannot be read, or is not what it was, is named and passed over.
. tests/faults/run_tools.sh
data text 60
config=$PWD/configs/tiny-l.yaml
common="data.train=$scratch/text model.layers=2 train.global_batch=8 train.steps=8 device.threads=1 log.every=100 parallel.data=2 checkpoint.keep=0"
number=0

# fault RANK,CALL,NUMBER,ACTION: for the jobs that follow.
fault() { genv="-genv LD_PRELOAD $fault -genv TRINE_FAULT $1"; }

what='a sound disk'
job 2 train $config "run.dir=$scratch/sound" checkpoint.every=2
expect 0
sound=$scratch/sound/checkpoints
losses=$(metric sound loss | tr '\n' ' ')
at_end=$("$trine" ckpt show --hash "$sound/step-00000008")

# copied RUN STEP...: a run as it was after the last of these steps, with their checkpoints.
copied()
{
    rm -rf "$scratch/$1"
    mkdir -p "$scratch/$1/checkpoints"
    cp "$scratch/sound/metrics.jsonl" "$scratch/$1"
    for step in "${@:2}"; do
        cp -r "$sound/step-0000000$step" "$scratch/$1/checkpoints"
        echo "step-0000000$step" >"$scratch/$1/checkpoints/latest"
    done
}

# same RUN: it came to the end of the sound one.
same()
{
    equal "$what: losses" "$(metric "$1" loss | tr '\n' ' ')" "$losses"
    equal "$what: state at the end" "$("$trine" ckpt show --hash "$scratch/$1/checkpoints/step-00000008")" "$at_end"
}

# ---- writing ----

for async in true false; do
    what="short writes, async $async"
    rm -rf "$scratch/short"
    fault -1,write,1,short
    job 2 train $config "run.dir=$scratch/short" checkpoint.every=4 checkpoint.async=$async
    genv=
    expect 0
    same short
    for file in step-00000004/shard-00000.bin step-00000004/shard-00001.bin step-00000008/shard-00001.bin; do
        cmp "$sound/$file" "$scratch/short/checkpoints/$file" || fail "$what: $file differs"
    done
    "$trine" ckpt verify "$scratch/short/checkpoints/step-00000008" >"$scratch/verify" 2>&1 || fail "$what: $(cat "$scratch/verify")"
done

# From the checkpoint of step 2 on no save succeeds, in one way or another.
# fails FAULT PATTERN [WORD...]
fails()
{
    async=$((number++ % 2))
    async=$([ $async = 0 ] && echo true || echo false)
    what="$1, async $async"
    copied failing 2
    fault "$1"
    job 2 train $config "run.dir=$scratch/failing" checkpoint.every=3 checkpoint.async=$async
    genv=
    expect 1 "the state after step 8, the job.s last, is not saved: $2; what .*checkpoints holds is older"
    ended failing failed 1
    grep -q "is not saved: $2; what" "$scratch/failing/status.json" || fail "$what: status.json does not say why"
    for step in 3 6 8; do
        grep -q "^warning: the checkpoint of step $step was not saved: $2; earlier checkpoints stay as they are, and training goes on" "$scratch/err" ||
            { fail "$what: the save of step $step is not told"; cat "$scratch/err"; }
    done
    equal "$what: warnings" "$(grep -c '^warning: the checkpoint' "$scratch/err")" 3
    equal "$what: losses" "$(metric failing loss | tr '\n' ' ')" "$losses"
    equal "$what: folder" "$(ls "$scratch/failing/checkpoints" | tr '\n' ' ')" 'latest step-00000002 '
    equal "$what: latest" "$(cat "$scratch/failing/checkpoints/latest")" step-00000002
    diff -r "$sound/step-00000002" "$scratch/failing/checkpoints/step-00000002" || fail "$what: the earlier checkpoint was touched"
}
for _ in 1 2; do # each with and without async: an odd number of calls
    fails 1,write,20,full 'rank 1: .*/step-0000000[368].tmp/shard-00001.bin: writing failed: No space left on device'
    fails 0,write,20,full '.*/step-0000000[368].tmp/shard-00000.bin: writing failed: No space left on device'
    fails 1,fsync,1,eio 'rank 1: .*/shard-00001.bin: flushing to the disk failed: Input/output error'
done
fails 1,write,1,eio 'rank 1: .*/shard-00001.bin: writing failed: Input/output error'
fails 0,save,1,full '.*/step-0000000[368].tmp: cannot make the folder: No space left on device'
fails 0,flush,2,eio '.*/\(step-00000003.tmp/manifest.json\|step-0000000[68].tmp/shard-00000.bin\): flushing to the disk failed: Input/output error'
fails 0,flush,3,eio '.*/\(step-00000003.tmp: flushing the folder\|step-0000000[68].tmp/shard-00000.bin: flushing to the disk\) failed: Input/output error'
fails 0,rename,1,eio '.*/step-0000000[368].tmp: cannot rename to .*/step-0000000[368]: Input/output error'
# Only moving `latest` fails (the second rename of a save), once: the checkpoint is there and counts.
# unmoved STEP END: told once, in words that end so.
unmoved()
{
    grep -q "^warning: the checkpoint of step $1 is saved and whole, but .latest. could not be moved to it, which the next save tries again: .*latest.tmp: cannot rename to .*latest: Input/output error; $2" "$scratch/err" ||
        { fail "$what: not told"; cat "$scratch/err"; }
    equal "$what: warnings" "$(grep -c '^warning: the checkpoint' "$scratch/err")" 1
}
for async in true false; do
    what="latest is not moved, async $async"
    copied unmoved 2
    fault 0,rename,2,glitch
    job 2 train $config "run.dir=$scratch/unmoved" checkpoint.every=4 checkpoint.async=$async
    expect 0 '^saved step 4:'
    unmoved 4 'a resume finds it all the same'
    same unmoved
    equal "$what: folder" "$(ls "$scratch/unmoved/checkpoints" | tr '\n' ' ')" 'latest step-00000002 step-00000004 step-00000008 '
    equal "$what: latest" "$(cat "$scratch/unmoved/checkpoints/latest")" step-00000008
    "$trine" ckpt verify "$scratch/unmoved/checkpoints/step-00000004" >"$scratch/verify" 2>&1 || fail "$what: $(cat "$scratch/verify")"

    what="the last save moves no latest, async $async"
    copied unmoved 2
    job 2 train $config "run.dir=$scratch/unmoved" checkpoint.every=8 checkpoint.keep=1 checkpoint.async=$async
    genv=
    expect 0 '^saved step 8:'
    unmoved 8 'a resume finds it all the same'
    equal "$what: folder" "$(ls "$scratch/unmoved/checkpoints" | tr '\n' ' ')" 'step-00000008 '
    job 2 train $config "run.dir=$scratch/unmoved" train.steps=9
    expect 0 'resumed from .*step-00000008'
done
what='latest is not moved away from one before a step back'
copied unmoved 2
cp -r "$sound/step-00000008" "$scratch/unmoved/checkpoints"
fault 0,rename,2,glitch
job 2 train $config "run.dir=$scratch/unmoved" train.steps=4 checkpoint.every=4 checkpoint.keep=1
genv=
expect 0 '^saved step 4:'
unmoved 4 'until then a resume takes step-00000002 first'
equal "$what: folder" "$(ls "$scratch/unmoved/checkpoints" | tr '\n' ' ')" 'latest step-00000002 step-00000004 '
job 2 train $config "run.dir=$scratch/unmoved" train.steps=4 checkpoint.every=4 checkpoint.keep=1
expect 0 'resumed from .*step-00000002'
equal "$what: folder after the next save" "$(ls "$scratch/unmoved/checkpoints" | tr '\n' ' ')" 'latest step-00000004 '

what='the next start'
job 2 train $config "run.dir=$scratch/failing" checkpoint.every=8
expect 0 'resumed from .*step-00000002'
same failing

# ---- reading ----

what='short reads'
copied reader 4
fault -1,pread,1,short
job 2 train $config "run.dir=$scratch/reader" checkpoint.every=8
genv=
expect 0 'resumed from .*step-00000004'
same reader

# The newest one cannot be read once, by one rank.
for at in 1 3 12; do
    what="read $at fails on rank 1"
    copied reader 2 4
    fault 1,pread,$at,glitch
    job 2 train $config "run.dir=$scratch/reader" checkpoint.every=8
    genv=
    expect 0 'resumed from .*step-00000002'
    grep -q '^warning: the checkpoint .*step-00000004 is passed over: rank 1: .*step-00000004/shard-0000[01].bin: reading at byte [0-9]* failed: Input/output error' "$scratch/err" ||
        { fail "$what: not told"; cat "$scratch/err"; }
    same reader
done
what='no read succeeds'
copied reader 2 4
fault 1,pread,1,eio
job 2 train $config "run.dir=$scratch/reader"
genv=
expect 4 'no checkpoint of .*reader/checkpoints can be loaded .*step-00000002/shard-0000[01].bin: reading at byte [0-9]* failed: Input/output error'

# passed_over PATTERN: a run with checkpoints of steps 2 and 4, of which the second was made unusable, goes on from the first; named,
# the second is refused, and the first offered.
passed_over()
{
    job 2 train $config "run.dir=$scratch/none" "checkpoint.resume=$scratch/reader/checkpoints/step-00000004"
    expect 4 "$1.*; the newest good one beside it is .*reader/checkpoints/step-00000002\$"
    job 2 train $config "run.dir=$scratch/reader" checkpoint.every=8
    expect 0 'resumed from .*step-00000002'
    grep -q "^warning: .*$1" "$scratch/err" || { fail "$what: '$1' is not told"; cat "$scratch/err"; }
    same reader
}
what="another run's manifest"
job 2 train $config "run.dir=$scratch/other" checkpoint.every=4 train.seed=2 train.steps=4 checkpoint.level=0
expect 0
job 2 train $config "run.dir=$scratch/other2" checkpoint.every=4 train.seed=3 train.steps=4 checkpoint.level=0
expect 0
copied reader 2
cp -r "$scratch/other/checkpoints/step-00000004" "$scratch/reader/checkpoints"
cp "$scratch/other2/checkpoints/step-00000004/manifest.json" "$scratch/reader/checkpoints/step-00000004" # files of the same sizes
echo step-00000004 >"$scratch/reader/checkpoints/latest"
passed_over "step-00000004/shard-00000.bin: .*another checkpoint's"
what='two files exchanged'
copied reader 2 4
mv "$scratch/reader/checkpoints/step-00000004/shard-00000.bin" "$scratch/aside"
mv "$scratch/reader/checkpoints/step-00000004/shard-00001.bin" "$scratch/reader/checkpoints/step-00000004/shard-00000.bin"
mv "$scratch/aside" "$scratch/reader/checkpoints/step-00000004/shard-00001.bin"
passed_over 'step-00000004/shard-00000.bin: .*manifest'
what='a file cut short'
copied reader 2 4
truncate -s -100 "$scratch/reader/checkpoints/step-00000004/shard-00001.bin"
passed_over 'step-00000004/shard-00001.bin: damaged: .* may have been cut short'
what='no manifest'
copied reader 2 4
rm "$scratch/reader/checkpoints/step-00000004/manifest.json"
passed_over 'step-00000004'

# ---- one folder for all ranks ----

what='a folder that is not the same one for all ranks'
mkdir "$scratch/node0" "$scratch/node1"
# shellcheck disable=SC2086
timeout -k 5 60 "$mpiexec" -n 1 -wdir "$scratch/node0" "$trine" train $config run.dir=here $common : \
    -n 1 -wdir "$scratch/node1" "$trine" train $config run.dir=here $common </dev/null >"$scratch/out" 2>"$scratch/err"
code=$?
expect 2 'checkpoint.dir here/checkpoints: rank 1 on .* does not see what rank 0 writes there'
[ ! -e "$scratch/node0/here/metrics.jsonl" ] || fail "$what: it trained"
equal "$what: files left in the folder" "$(ls "$scratch/node0/here/checkpoints")" ''
equal 'files left of looking whether the folder is shared' "$(ls "$sound" | grep -v '^step-\|^latest$')" ''

# ---- permissions ----

# The super-user may do everything: as somebody else, who owns a folder of the scratch folder.
chmod 755 "$scratch"
mkdir "$scratch/own"
if [ "$(id -u)" = 0 ]; then
    printf '#!/bin/sh\ncd "%s" && exec setpriv --reuid=65534 --regid=65534 --clear-groups "%s" "$@"\n' "$scratch/own" "$mpiexec" >"$scratch/mpiexec"
    chmod 755 "$scratch/mpiexec"
    if ! setpriv --reuid=65534 --regid=65534 --clear-groups true; then
        echo 'not tested: permissions, the super-user of this machine cannot become somebody else'
        finish
    fi
    cp "$trine" "$scratch/trine"
    cp "$config" "$scratch/config.yaml"
    chown 65534:65534 "$scratch/own"
    trine=$scratch/trine mpiexec=$scratch/mpiexec config=$scratch/config.yaml
fi
own=$scratch/own

what='a folder of checkpoints that may not be written'
mkdir -p "$own/shut/checkpoints"
chown -R --reference="$own" "$own/shut"
chmod 555 "$own/shut/checkpoints"
job 2 train $config "run.dir=$own/shut"
expect 1 'checkpoint.dir: cannot write in .*shut/checkpoints: Permission denied'
[ ! -e "$own/shut/metrics.jsonl" ] || fail "$what: it trained"
what='a run folder that may not be made'
mkdir "$scratch/closed"
chmod 555 "$scratch/closed"
job 2 train $config "run.dir=$scratch/closed/run"
expect 1 'closed/run: cannot make the folder: Permission denied'

what='a folder that may not be written any more'
start 2 train $config "run.dir=$own/later" train.steps=100000 checkpoint.keep=1
await_step own/later 2
chmod 555 "$own/later/checkpoints"
touch "$own/later/ctl/save"
for _ in $(seq 100); do
    ! grep -q '^warning: the checkpoint' "$scratch/err" || break
    sleep 0.1
done
grep -q '^warning: the checkpoint of step [0-9]* was not saved: .*checkpoints/step-[0-9]*.tmp: cannot make the folder: Permission denied' "$scratch/err" ||
    { fail "$what: not told"; cat "$scratch/err"; }
chmod 755 "$own/later/checkpoints"
touch "$own/later/ctl/stop"
await 30
expect 75
saved=$(cat "$own/later/checkpoints/latest")
equal "$what: latest once it may" "$saved" "step-$(printf %08d "$(status own/later step)")"

what='a file that may not be read'
chmod 000 "$own/later/checkpoints/$saved/shard-00001.bin"
job 2 train $config "run.dir=$own/later" train.steps=100000
expect 4 "$saved/shard-00001.bin: cannot open the file of the checkpoint: Permission denied"
finish
