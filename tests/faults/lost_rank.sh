#!/bin/bash
# A rank that dies or hangs, anywhere in a step or in a save: the job ends soon, with an exit code other than 0, without a process
# left, and the last checkpoint can be resumed. What a rank that hangs kept the others waiting for is told by each of them.
. tests/faults/run_tools.sh
data text 40
config=configs/tiny-l.yaml
common="data.train=$scratch/text model.layers=2 train.global_batch=8 train.steps=1000 log.every=1000 device.threads=1 checkpoint.every=5 checkpoint.async=false run.dir=$scratch/run"
per_step=1024 # calls of logf of one rank: 2 layers x 4 heads x 32 rows x 4 microbatches of data 2; less with tensor 2

# dies HOW CALL NUMBER WORD...: rank 1 of 4 in that way, at that call, after the checkpoint of step 5 and before long.
dies()
{
    what="$1 in $2, ${*:4}"
    rm -rf "$scratch/run"
    genv="-genv LD_PRELOAD $fault -genv TRINE_FAULT 1,$2,$3,$1"
    start 4 train $config "${@:4}"
    await 60
    genv=
    [ $code -ne 0 ] && [ $code -ne 75 ] || fail "$what: exit code $code"
    [ "$(status run state)" != done ] && [ "$(status run state)" != stopped ] || fail "$what: status.json says $(status run state)"
    gone
    last=$(metric run step | tail -1)
    [ "${last:-0}" -ge 5 ] && [ "$last" -lt 40 ] || fail "$what: it ended after step ${last:-0}, not where it was meant to"
    latest=$(cat "$scratch/run/checkpoints/latest")
    "$trine" ckpt verify "$scratch/run/checkpoints/$latest" >"$scratch/verify" 2>&1 || fail "$what: $latest is damaged: $(cat "$scratch/verify")"
}
dies kill logf $((10 * per_step)) parallel.data=2 parallel.pipeline=2
dies segv logf $((10 * per_step)) parallel.data=4
dies exit logf $((5 * per_step)) parallel.data=2 parallel.tensor=2
dies kill MPI_Isend 700 parallel.data=2 parallel.tensor=2 parallel.inside=mpi # in an all-gather
dies exit MPI_Isend 250 parallel.data=4 parallel.inside=mpi
dies segv MPI_Isend 400 parallel.pipeline=4 parallel.inside=mpi model.layers=4 # to the next stage
for how in kill segv exit; do
    for async in false true; do # between the steps, and on the writer's thread
        dies $how fsync 2 parallel.data=4 checkpoint.async=$async
        equal "$what: steps saved" "$(ls "$scratch/run/checkpoints" | grep -c '^step-[0-9]*$')" 1
    done
done

# What was left behind does not trouble the next start: it takes the whole checkpoint and says what it ignores.
what='start after a death in a save'
job 4 train $config train.steps=12
expect 0 'resumed from .*step-00000005'
grep -q 'warning: unfinished checkpoints are ignored: .*step-00000010' "$scratch/err" || { fail "$what: not told"; cat "$scratch/err"; }
ended run done 0

# Rank 3 stops: all others say what they wait for, one says the error, exit 8.
for words in 'parallel.data=2 parallel.tensor=2' 'parallel.pipeline=4 model.layers=4' 'parallel.data=4 parallel.inside=mpi'; do
    what="rank 3 hangs, $words"
    rm -rf "$scratch/run"
    # shellcheck disable=SC2086
    start 4 train $config $words parallel.timeout_s=4
    await_step run 2
    kill -STOP "$(pid_of 3)"
    await 40
    expect 8 'timed out after [0-9.]* s in '
    equal "$what: ranks that say what they wait for" "$(grep -c '^warning: .*timed out after ' "$scratch/err")" 3
    grep -q 'world rank 3)$' "$scratch/err" || { fail "$what: rank 3 is not named"; cat "$scratch/err"; }
    ended run failed 8
    gone
done
# MPI does not come to its end: what was done is done, what was wrong is said, and the ranks go.
# unfinalised CODE PATTERN WORD...
unfinalised()
{
    what="MPI_Finalize hangs, ${*:3}"
    rm -rf "$scratch/run"
    genv="-genv LD_PRELOAD $fault -genv TRINE_FAULT -1,MPI_Finalize,1,sleep100000000"
    job 2 train $config parallel.timeout_s=4 "${@:3}"
    genv=
    expect "$1" "$2"
    grep -q '^warning: MPI_Finalize does not return' "$scratch/err" || { fail "$what: not told"; cat "$scratch/err"; }
    [ $seconds -lt 60 ] || fail "$what: took $seconds s"
    gone
}
unfinalised 0 'done: 3 steps' train.steps=3
ended run done 0
unfinalised 2 'tensor' parallel.tensor=3
finish
