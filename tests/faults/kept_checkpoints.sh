#!/bin/bash
# What stays of a run's checkpoints and what is resumed: steps in the order of numbers, multiples of checkpoint.keep_every for good, nothing of
# the user's loaded or removed. And the lines of a resumed run are those of one that never stopped.
. tests/faults/run_tools.sh
data text 60
config=configs/tiny-l.yaml
common="data.train=$scratch/text model.layers=2 train.global_batch=8 device.threads=1"

# Names that are nearly those of checkpoints.
what='names beside the checkpoints'
dir=$scratch/kept/checkpoints
mkdir -p "$dir"
job 2 train $config "run.dir=$scratch/whole" train.steps=20 checkpoint.every=20
expect 0
for name in step-00000004.bak old-step-00000006 step-abc step-00000099.tmp.old step-99; do
    cp -r "$scratch/whole/checkpoints/step-00000020" "$dir/$name"
done
echo mine >"$dir/step-8"
mine=$(cd "$dir" && find . -type f | LC_ALL=C sort | xargs md5sum)
job 2 train $config "run.dir=$scratch/kept" train.steps=12 checkpoint.every=2 checkpoint.keep=2 checkpoint.keep_every=6 parallel.data=2
expect 0 '^done: 12 steps'
! grep -q '^resumed' "$scratch/out" || fail "$what: one of them was resumed"
equal "$what: checkpoints" "$(ls "$dir" | grep -x 'step-[0-9]\{8\}' | tr '\n' ' ')" 'step-00000006 step-00000010 step-00000012 '
rest=$(cd "$dir" && find . -type f -not -path './step-000000??/*' -not -name latest | LC_ALL=C sort | xargs md5sum)
equal "$what: what else is there" "$rest" "$mine"
job 2 train $config "run.dir=$scratch/kept" train.steps=12 checkpoint.every=2 parallel.data=2
expect 0 'resumed from .*/step-00000012, after step 12'

what='a run that has done its steps'
job 2 train $config "run.dir=$scratch/kept" train.steps=12 checkpoint.every=2 parallel.data=2
expect 0 '^done: 12 steps, all before this start: nothing is left to do (train.steps = 12)'

# What a run that begins anew, or earlier, takes from the folder is said first.
what='a run that begins anew beside checkpoints'
job 2 train $config "run.dir=$scratch/kept" train.steps=2 checkpoint.every=2 checkpoint.keep=0 checkpoint.resume=none parallel.data=2
expect 0 '^this command begins anew'
! grep -q '^warning: .*later steps' "$scratch/err" || fail "$what: checkpoint.keep=0 takes nothing"
job 2 train $config "run.dir=$scratch/kept" train.steps=4 checkpoint.every=2 checkpoint.keep_every=6 "checkpoint.resume=$dir/step-00000002" parallel.data=2
expect 0 'resumed from .*/step-00000002, after step 2'
grep -q "^warning: $dir holds 3 checkpoints of later steps, up to 12; this run begins after step 2, and its saves push them out (checkpoint.keep = 3)" "$scratch/err" ||
    { fail "$what: not warned"; cat "$scratch/err"; }

# Nine comes before ten.
what='steps in the order of numbers'
rm -rf "$dir"
job 1 train $config "run.dir=$scratch/kept" train.steps=12 checkpoint.every=1 checkpoint.keep=4
expect 0
equal "$what: checkpoints" "$(ls "$dir" | tr '\n' ' ')" 'latest step-00000009 step-00000010 step-00000011 step-00000012 '

# The first lines after a resume, with each step's and with every third step's.
lines() { sed -n "s/^\\(step [0-9]*\\/9 | loss .*\\) | [0-9.kM]* tok.*/\\1/p" "$1" | awk -v from="$2" '{ split($2, n, "/"); if (n[1] > from) print }'; }
for every in 1 3; do
    what="lines of every $every steps"
    job 2 train $config "run.dir=$scratch/lines$every" train.steps=9 log.every=$every checkpoint.every=5 checkpoint.keep=0
    expect 0
    cp "$scratch/out" "$scratch/straight"
    [ "$(lines "$scratch/straight" 5 | wc -l)" -eq $((every == 1 ? 4 : 2)) ] || { fail "$what: $(lines "$scratch/straight" 5)"; cat "$scratch/out"; }
    rm -r "$scratch/lines$every/checkpoints/step-00000009"
    echo step-00000005 >"$scratch/lines$every/checkpoints/latest"
    job 2 train $config "run.dir=$scratch/lines$every" train.steps=9 log.every=$every checkpoint.every=5
    expect 0 'resumed from .*step-00000005'
    equal "$what" "$(lines "$scratch/out" 0)" "$(lines "$scratch/straight" 5)"
    equal "$what: lines of metrics" "$(metric "lines$every" step | tr '\n' ' ')" '1 2 3 4 5 6 7 8 9 '
done
finish
