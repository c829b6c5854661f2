#!/bin/bash
# Asked to stop or to save: by a signal to the launcher or to one rank, by a control file. All ranks do it after the same step, and a
# run that was stopped goes on as if it never had been.
. tests/faults/run_tools.sh
data text 120
config=configs/tiny-l.yaml
steps=80
common="data.train=$scratch/text model.layers=2 train.global_batch=8 train.steps=$steps train.warmup_steps=10 log.every=100 parallel.tensor=2"

# The straight run.
job 4 train $config "run.dir=$scratch/straight" checkpoint.every=$steps
expect 0

# finished RUN: resumes, and compares with the straight run.
finished()
{
    at=$(status "$1" step)
    [ "$at" -lt $steps ] && [ -e "$scratch/$1/checkpoints/step-$(printf %08d "$at")/manifest.json" ] || fail "$what: no checkpoint of step $at"
    equal "$what: latest" "$(cat "$scratch/$1/checkpoints/latest")" "step-$(printf %08d "$at")"
    job 4 train $config "run.dir=$scratch/$1" checkpoint.every=$steps
    expect 0 "after step $at"
    ended "$1" done 0
    for field in step loss grad_norm lr; do
        equal "$what: $field of all steps" "$(metric "$1" $field | tr '\n' ' ')" "$(metric straight $field | tr '\n' ' ')"
    done
    equal "$what: state at the end" "$("$trine" ckpt show --hash "$scratch/$1/checkpoints/step-000000$steps")" \
        "$("$trine" ckpt show --hash "$scratch/straight/checkpoints/step-000000$steps")"
}

# stopped RUN HOW: a running job, stopped in that way.
stopped()
{
    what="stopped by $2"
    start 4 train $config "run.dir=$scratch/$1"
    await_step "$1" 2
    pids="$(pid_of 2) $(pid_of 3)"
    equal "$what: state before" "$(status "$1" state)" running
    case $2 in
    launcher) kill -TERM $launcher ;;
    'rank 2') kill -TERM "${pids% *}" ;;
    interrupt) kill -INT "${pids#* }" ;;
    file) : >"$scratch/$1/ctl/stop" ;;
    esac
    await 30
    [ "$2 $code" != 'launcher 0' ] || code=75 # mpiexec that was signalled loses its ranks' code at times; status.json has it
    expect 75
    ended "$1" stopped 75
    [ ! -e "$scratch/$1/ctl/stop" ] || fail "$what: the control file is still there"
    finished "$1"
}
stopped launcher launcher
stopped rank 'rank 2'
stopped interrupt interrupt
stopped file file

# A folder that a running job writes is not another job's.
what='two jobs in one folder'
start 4 train $config "run.dir=$scratch/shared" train.steps=100000 # for as long as the others need to look
await_step shared 2
job 2 train $config "run.dir=$scratch/shared" parallel.tensor=1
expect 2 'is in use by another job'
what='two jobs, one folder of checkpoints'
job 2 train $config "run.dir=$scratch/other" "checkpoint.dir=$scratch/shared/checkpoints" parallel.tensor=1
expect 2 'checkpoint.dir .* is in use by another job'
kill -TERM "$(pid_of 2)"
await 30
expect 75
ended shared stopped 75
what='checkpoints in the run folder itself'
job 2 train $config "run.dir=$scratch/flat" "checkpoint.dir=$scratch/flat" train.steps=2 train.warmup_steps=0 checkpoint.every=2 parallel.tensor=1
expect 0

# A command that names where it begins would begin there again: what goes on is said, and does.
again()
{
    what="stopped, with $*"
    mkdir -p "$scratch/again/ctl"
    : >"$scratch/again/ctl/stop"
    common="$common run.dir=$scratch/again train.steps=9 train.warmup_steps=0 parallel.tensor=1"
    job 2 train $config "$@"
    expect 75
    newest=$(cat "$scratch/again/checkpoints/latest")
    words=$(sed -n 's/.*; the same command would begin anew, and goes on with //p' "$scratch/out")
    [ -n "$words" ] && grep -q "begins anew whenever it is given; with $words it goes on" "$scratch/out" ||
        { fail "$what: it does not say how it goes on"; cat "$scratch/out"; }
    # shellcheck disable=SC2086
    job 2 train $config "$@" $words
    expect 0 "^resumed from $scratch/again/checkpoints/$newest,"
    grep -q 'anew' "$scratch/out" && fail "$what: it says that it would begin anew"
    rm -rf "$scratch/again"
    common=${common% run.dir=*}
}
for words in "checkpoint.resume=$scratch/flat" checkpoint.resume=none \
    "checkpoint.resume=$scratch/flat checkpoint.weights_only=true"; do
    # shellcheck disable=SC2086
    again $words
done

# Save and go on.
what='saves on request'
start 4 train $config "run.dir=$scratch/saves"
await_step saves 3
kill -USR2 "$(pid_of 2)"
await_step saves $(($(metric saves step | tail -1) + 4))
saved=$(ls -d "$scratch"/saves/checkpoints/step-* | wc -l)
equal "$what: checkpoints after SIGUSR2" "$saved" 1
: >"$scratch/saves/ctl/save"
await 60
expect 0
ended saves done 0
equal "$what: checkpoints after ctl/save" "$(ls -d "$scratch"/saves/checkpoints/step-* | wc -l)" 2
[ ! -e "$scratch/saves/ctl/save" ] || fail "$what: the control file is still there"
equal "$what: losses" "$(metric saves loss | tr '\n' ' ')" "$(metric straight loss | tr '\n' ' ')"

# The second signal ends at once: a rank that is held back cannot finish its step, so only a second one can end the job.
what='second signal'
start 4 train $config "run.dir=$scratch/second" train.steps=100000
await_step second 3
kill -STOP "$(pid_of 1)"
victim=$(pid_of 0)
kill -TERM "$victim"
sleep 1
kill -0 "$victim" 2>/dev/null || fail "$what: the first one ended the rank"
kill -TERM "$victim"
await 20
[ $code -ne 0 ] && [ $code -ne 75 ] || fail "$what: exit code $code"
gone

# A verb that has nothing to save ends at once, by the signal itself.
what='sample, stopped'
common="$common run.dir=$scratch/straight"
: >"$scratch/out" # else the job before is taken for this one's first words
start 2 sample $config --tokens 100000000 parallel.tensor=1
for _ in $(seq 100); do
    [ ! -s "$scratch/out" ] || break
    sleep 0.1
done
kill -TERM "$(pid_of 0)"
await 10
[ $code -ne 0 ] && [ $code -ne 75 ] || fail "$what: exit code $code"
gone
common=${common% *}

# Lines behind the checkpoint are removed when a killed run goes on.
what='killed after the checkpoint'
start 4 train $config "run.dir=$scratch/killed" checkpoint.every=4
await_step killed 11
kill -KILL "$(pid_of 1)"
await 30
[ $code -ne 0 ] || fail "$what: exit code 0"
gone
job 4 train $config "run.dir=$scratch/killed" checkpoint.every=4
expect 0 'resumed from'
equal "$what: steps" "$(metric killed step | tr '\n' ' ')" "$(seq $steps | tr '\n' ' ')"
equal "$what: losses" "$(metric killed loss | tr '\n' ' ')" "$(metric straight loss | tr '\n' ' ')"
finish
