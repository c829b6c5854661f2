#!/bin/bash
# Numbers that go wrong on one rank: all ranks skip the same step and say where; too many in a row end the run with exit 7, and the
# checkpoint is that of the last good step. And `trine verify` sees a rank that computes wrongly.
. tests/faults/run_tools.sh
data text 60
config=configs/tiny-l.yaml
common="data.train=$scratch/text model.layers=2 train.global_batch=8 train.steps=8 train.lr=1e-3 device.threads=1 log.every=1"
per_step=1024 # calls of logf of a rank of data 2: 2 layers x 4 heads x 32 rows x 4 microbatches

# One value, in step 3, on data rank 1 only.
for precision in fp32 bf16 fp16; do
    what="one value on rank 1, $precision"
    genv="-genv LD_PRELOAD $fault -genv TRINE_FAULT 1,logf,$((2 * per_step + 100)),nan"
    job 2 train $config "run.dir=$scratch/$precision" train.precision=$precision
    genv=
    expect 0 'warning: step 3: .* not finite.*skipped on all ranks (1 in a row.*samples 16 to 23'
    equal "$what: skipped" "$(metric $precision skipped | tr '\n' ' ')" '0 0 1 0 0 0 0 0 '
    equal "$what: gradient norm" "$(metric $precision grad_norm 3)" nan
    equal "$what: loss of the last step is a number" "$(metric $precision loss 8 | grep -c '^[0-9.]*$')" 1
    ended $precision done 0
done
equal 'fp16: the scale halves once' "$(metric fp16 loss_scale | tail -1)" "$(($(metric fp16 loss_scale | head -1) / 2))"

# Wrong from step 4 on, on one rank: after max_skips it ends; nothing of it is saved.
what='not finite for too long'
genv="-genv LD_PRELOAD $fault -genv TRINE_FAULT 1,logf,$((3 * per_step + 100)),nans"
job 2 train $config "run.dir=$scratch/long" train.max_skips=3 checkpoint.every=1
genv=
expect 7 'step 6: the gradient was not finite in 3 steps in a row (train.max_skips 3); first in parameter [a-z.0-9_]*, samples 40 to 47'
ended long failed 7
grep -q 'lower train.lr' "$scratch/err" || fail "$what: no hint"
equal "$what: lines" "$(metric long skipped | tr '\n' ' ')" '0 0 0 1 1 '
"$trine" ckpt verify "$scratch/long/checkpoints/$(cat "$scratch/long/checkpoints/latest")" >/dev/null || fail "$what: the checkpoint is damaged"
what='goes on from it'
job 2 train $config "run.dir=$scratch/long" train.max_skips=3
expect 0 'resumed from'
equal "$what: finite again" "$(metric long grad_norm 8 | grep -c '^[0-9.]*$')" 1

# verify: layouts agree; with one rank's arithmetic a little off they do not.
layouts='data=1 data=2 tensor=2 pipeline=2 data=2,zero=0 tensor=2,sequence=false'
common="data.train=$scratch/text model.layers=2 train.global_batch=8 device.threads=1"
what=verify
# shellcheck disable=SC2086
job 2 verify $config $layouts
expect 0
equal "$what: lines" "$(grep -c 'gradient norm' "$scratch/out")" 6
for layout in data=2 pipeline=2 data=2,zero=0; do
    grep -q "^$layout .*bits equal" "$scratch/out" || { fail "$what: $layout: bits differ"; cat "$scratch/out"; }
done
what='verify on a damaged rank'
genv="-genv LD_PRELOAD $fault -genv TRINE_FAULT 1,logf,1,shift"
# shellcheck disable=SC2086
job 2 verify $config $layouts
genv=
expect 7 "a gradient differs from the first layout's by more than 1e-05"
grep -q '^data=2 .*bits differ' "$scratch/out" || fail "$what: not seen in data=2"
what='verify on too few ranks'
job 2 verify $config data=1 data=2,tensor=2
expect 2 'layout data=2,tensor=2 needs 4 ranks, the job has 2; use mpiexec -n 4'
what='verify of a layout that the batch does not fit'
job 2 verify $config data=1 data=3
expect 2 'layout data=3: train.global_batch .* is no multiple of parallel.data 3'
what='verify without layouts'
job 2 verify $config
expect 2 'needs .*layouts'
finish
