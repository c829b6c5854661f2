#!/bin/bash
# SIGKILL while a checkpoint is written: of one rank, of all ranks, of the launcher, at chosen and at random points. Every time all checkpoints that
# are there are whole, the next start goes on from the newest, and what it computes are the bits of a run that nobody killed.
#     SCRIPT path/to/trine mpiexec path/to/libfault.so [KILLS OF EACH KIND, or 3 [SEED]]
each=${4:-3}
RANDOM=${5:-1187}
. tests/faults/run_tools.sh
data text 120
config=configs/tiny-l.yaml
steps=$((each * 24 + 20)) # more than the lives of the run can make
common="data.train=$scratch/text model.layers=2 train.global_batch=8 train.steps=$steps log.every=1000 device.threads=1 parallel.data=4"
checkpoints=$scratch/run/checkpoints
delayed=4000 # microseconds of each call of a save

job 4 train $config "run.dir=$scratch/straight" checkpoint.every=$steps
expect 0
steps_of() { grep '^{"step": [0-9]*, .*}$' "$scratch/$1/metrics.jsonl" | sed 's/^{"step": \([0-9]*\),.*"loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2 \3/'; }
steps_of straight >"$scratch/straight.steps"

# The first checkpoint.
start 4 train $config "run.dir=$scratch/run"
await_step run 1
: >"$scratch/run/ctl/stop"
await 30
expect 75

# saving: until a folder is there that this life of the run writes.
saving()
{
    for _ in $(seq 600); do
        [ -z "$(find "$checkpoints" -maxdepth 1 -name 'step-*.tmp' -newer "$scratch/mark")" ] || return 0
        sleep 0.02
    done
    fail "$what: it never saved"
}

# killed HOW [RANK,CALL,NUMBER]: one life of the run; without a place for a rank to die at, at a random one. Adds to inside when it left
# something unfinished.
inside=0
ignored=
killed()
{
    how=$1
    async=$((lives++ % 2))
    async=$([ $async = 0 ] && echo true || echo false)
    from=$(cat "$checkpoints/latest")
    place=$((RANDOM % 4)),save,$((1 + RANDOM % 180)) pause=$(printf '0.%03d' $((RANDOM % 700)))
    place=${2:-$place}
    what="$how killed, life $lives from $from, async $async"
    action="-1,save,1,sleep$delayed"
    [ "$how" != rank ] || action="$place,kill" what="$what, at $place"
    genv="-genv LD_PRELOAD $fault -genv TRINE_FAULT $action"
    : >"$scratch/mark"
    start 4 train $config "run.dir=$scratch/run" checkpoint.every=2 checkpoint.keep=1 checkpoint.async=$async
    genv=
    if [ "$how" != rank ]; then
        what="$what, $pause s into saving"
        saving
        sleep $pause
    fi
    case $how in
    ranks) kill -KILL $(rank_pids) ;;
    launcher) kill -KILL $launcher ;;
    esac
    await 60
    [ $code -ne 0 ] && [ $code -ne 75 ] || fail "$what: exit code $code"
    gone
    grep -q "^resumed from .*$from, after step" "$scratch/out" || { fail "$what: it did not go on from there"; cat "$scratch/out" "$scratch/err"; }
    [ -z "$ignored" ] || grep -q "^warning: unfinished checkpoints are ignored: .*$ignored" "$scratch/err" ||
        { fail "$what: nothing is said of $ignored"; cat "$scratch/err"; }
    steps_of run >"$scratch/run.steps"
    grep -vxFf "$scratch/straight.steps" "$scratch/run.steps" && fail "$what: steps that differ from the straight run's"
    newest=$(cd "$checkpoints" && ls -d step-* | grep -v tmp | tail -1)
    latest=$(cat "$checkpoints/latest")
    [ -d "$checkpoints/$latest" ] || fail "$what: latest names $latest, which is not there"
    for whole in "$checkpoints"/step-*[0-9]; do
        "$trine" ckpt verify "$whole" --threads 1 >"$scratch/verify" 2>&1 || { fail "$what: ${whole##*/} is damaged"; cat "$scratch/verify"; }
    done
    ignored=$(cd "$checkpoints" && ls -d step-* | sed -n "/^$newest\$/,\$p" | grep -v "^$newest" | tail -1)
    if [ "$latest" != "$newest" ] || ls -d "$checkpoints"/step-*.tmp >/dev/null 2>&1; then
        inside=$((inside + 1))
    fi
    echo "$what: $(ls "$checkpoints" | tr '\n' ' ')"
}

lives=0
# Before a rank's part, in it; no whole manifest, all but the name, all but latest; while the checkpoint before is removed, behind the
# files of one that the last life left.
for place in 1,write,1 1,write,20 0,flush,2 0,rename,1 0,rename,2 0,unlinkat,7; do
    killed rank $place
done
for _ in $(seq "$each"); do
    killed rank
    killed ranks
    killed launcher
done
[ $((2 * inside)) -ge $lives ] || fail "only $inside of $lives kills left something unfinished"

# To the end.
what='the last life'
from=$(cat "$checkpoints/latest")
job 4 train $config "run.dir=$scratch/run" checkpoint.every=$steps
expect 0 "resumed from .*$from"
ended run done 0
steps_of run | cmp -s - "$scratch/straight.steps" || fail "$what: the steps are not the straight run's"
at_end=$(printf 'checkpoints/step-%08d' $steps)
equal "$what: state" "$("$trine" ckpt show --hash "$scratch/run/$at_end")" "$("$trine" ckpt show --hash "$scratch/straight/$at_end")"
[ "$(wc -l <"$scratch/straight.steps")" -eq $steps ] || fail "the straight run has $(wc -l <"$scratch/straight.steps") steps, not $steps"
echo "$lives kills, $inside left something unfinished"
finish
