#!/bin/sh
# The command line itself: verbs, help, versions, exit codes, one error line; every file of configs/
# resolves; the reference in docs/ is what the program says.
# usage, from the source folder: test_cli.sh path/to/trine
trine=$1
failures=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

# expect CODE PATTERN ARGS...: exit code, and a pattern in stdout (code 0) or in a single "error: " line on stderr.
expect()
{
    code=$1
    pattern=$2
    shift 2
    "$trine" "$@" >"$scratch/out" 2>"$scratch/err"
    got=$?
    where=out
    [ "$code" -eq 0 ] || where=err
    if [ $got -ne "$code" ]; then
        echo "trine $*: exit code $got, expected $code"
        failures=$((failures + 1))
    elif ! grep -q -e "$pattern" "$scratch/$where"; then
        echo "trine $*: '$pattern' is not in:"
        cat "$scratch/$where"
        failures=$((failures + 1))
    elif [ "$code" -ne 0 ] && [ "$(grep -c '^error: ' "$scratch/err")" -ne 1 ]; then
        echo "trine $*: expected one error line:"
        cat "$scratch/err"
        failures=$((failures + 1))
    fi
}

expect 0 '^usage: trine VERB' --help
expect 0 '^  config ' --help
expect 0 '^usage: trine config' config --help
expect 0 '^usage: trine config' config configs/tiny-g.yaml --help
expect 0 '^usage: trine config' help config
expect 0 '^trine [0-9]' --version
expect 0 '^device cpu .* oneDNN [0-9]' --version
expect 0 '^MPI ' --version
expect 0 '^zstd [0-9]' --version
expect 0 '^device cuda: ' --version
expect 2 'needs a verb'
expect 2 'did you mean trine config' confgi
expect 2 'trine --help' quux
expect 2 'not in this version' report
expect 2 'not in this version' doctor
expect 2 'unknown option --foo' config --foo
expect 2 '--ranks needs a value' config --ranks
expect 2 'whole number' config --ranks=many configs/tiny-g.yaml
expect 2 'cannot open.*none.yaml' config none.yaml
expect 2 'did you mean train.steps' config configs/tiny-g.yaml train.stesp=4
if ! "$trine" plan configs/tiny-g.yaml log.trace=2,19-21 2>&1 | grep -q '^warning: log.trace = 2,19-21 names steps after .*train.steps = 20' ||
    "$trine" plan configs/tiny-g.yaml log.trace=2,19-20 2>&1 | grep -q '^warning: '; then
    echo "trine plan: steps of log.trace that never come are not warned about, or others are"
    failures=$((failures + 1))
fi
expect 2 'section.key=value' config configs/tiny-g.yaml configs/tiny-l.yaml
expect 2 'multiple of 4' config --ranks 6 configs/quickstart.yaml
expect 0 '^  data: 2 # resolved' config --ranks=8 configs/quickstart.yaml
expect 0 '^  steps: 7 # command line' config configs/tiny-g.yaml train.steps=7
expect 0 '^# global batch ' config configs/tiny-g.yaml
expect 0 '^  layers: 4 # configs/tiny-g.yaml:6' config configs/tiny-g.yaml
for file in configs/*.yaml; do
    expect 0 '^  preset: ' config "$file"
done
for ranks in 64 512 1024 2048; do
    expect 0 '^  tensor: 8 ' config --ranks $ranks configs/llama-70b.yaml
done
expect 0 '^  data: 32 ' config --ranks 1024 configs/llama-70b.yaml parallel.pipeline=4
expect 0 '^  data: 64 ' config --ranks 1024 configs/llama-8b.yaml parallel.pipeline=4

printf '0F0,0F1,0B0,0W0,0B1,0W1\n1F0,1B0,1W0,1F1,1B1,1W1\n' >"$scratch/good"
printf '0F0,0B0,0W0,0F1,0B1,0W1\n1F0,1F1,1B0,1W0,1B1,1W1\n' >"$scratch/bad"
expect 0 '2 stages x 1 chunk in a loop, 2 microbatches.*no deadlock' plan --check-schedule "$scratch/good"
expect 0 '^idle share 33.33 %' plan --check-schedule "$scratch/good" --draw "$scratch/good.svg"
# A device that cannot be written stays: a copy of it, which only root can make and open.
if cp -a /dev/full "$scratch/full" 2>/dev/null && (: >"$scratch/full") 2>/dev/null; then
    expect 1 'full: cannot be written: No space left' plan --check-schedule "$scratch/good" --draw "$scratch/full"
    [ -c "$scratch/full" ] || { echo 'trine plan --draw removed a device'; failures=$((failures + 1)); }
fi
expect 2 'bad: schedule deadlocks: rank 0 at 0B0 waits for the send of 1B0 .* rank 1 stands at 1F1' \
    plan --check-schedule "$scratch/bad"
expect 2 'none.*cannot be read' plan --check-schedule "$scratch/none"
printf '0F0,0B0,0W0\n\0rest\n' >"$scratch/zero"
expect 2 'zero: byte 12 is zero; expected text' plan --check-schedule "$scratch/zero"
expect 2 '/dev/zero: byte 0 is zero' plan --check-schedule /dev/zero
printf '0F0,0B0\n' >"$scratch/whole_backward"
expect 2 '0W0 is missing; B is the input gradient alone' plan --check-schedule "$scratch/whole_backward"
printf '# mine\n\n0F0, 0B0, 0W0\n' >"$scratch/least"
expect 0 '1 stage x 1 chunk in a loop, 1 microbatch, ' plan --check-schedule "$scratch/least"
expect 2 'needs a configuration file' plan --draw configs/llama-8b.yaml
expect 2 'attention on GPUs takes heads of up to 256 features' plan configs/tiny-l.yaml device.kind=cuda model.head_dim=264
expect 0 '^largest rank ' plan configs/tiny-l.yaml device.kind=cpu model.head_dim=264
expect 2 'only GPUs have TF32, and device.kind=cpu computes on the CPU' plan configs/tiny-g.yaml train.tf32=true device.kind=cpu
expect 0 '[0-9] tokens' data build README.md --out "$scratch/tokens"
expect 2 'only GPUs have TF32, and device.kind=cpu computes on the CPU' train configs/tiny-g.yaml train.tf32=true device.kind=cpu \
    data.train="$scratch/tokens" run.dir="$scratch/run"

# Does it fit, and what would? What is named, does.
sharded='parallel.tensor=1 parallel.pipeline=1 parallel.zero=3'
# shellcheck disable=SC2086
{
    expect 0 '^fits memory.limit_gb: [0-9]* bytes to spare' plan --ranks 64 configs/llama-8b.yaml $sharded memory.limit_gb=60
    expect 6 'not enough memory: rank 0 needs [0-9]* bytes.*would fit: parallel.shard_ranks=64 ([0-9]* bytes)' \
        plan --ranks 64 configs/llama-8b.yaml $sharded parallel.shard_ranks=8 memory.limit_gb=45
    expect 0 'zero 3 in groups of 8, on cpu$' plan --ranks 64 configs/llama-8b.yaml $sharded parallel.shard_ranks=8
    expect 0 '^fits ' plan --ranks 64 configs/llama-8b.yaml $sharded parallel.shard_ranks=64 memory.limit_gb=45
    expect 6 'would fit: parallel.zero=3 with memory.recompute=full' plan --ranks 64 configs/llama-8b.yaml $sharded \
        parallel.zero=1 memory.limit_gb=20
    expect 0 '^fits ' plan --ranks 64 configs/llama-8b.yaml $sharded memory.recompute=full memory.limit_gb=20
}
# GPUs are planned for without one, by a build that has the device.
if "$trine" --version | grep -q '^device cuda: in this build$'; then
    expect 0 ', on cuda$' plan configs/tiny-g.yaml device.kind=cuda
    expect 0 "^snapshot is memory of the host.*not in the total" plan configs/tiny-g.yaml device.kind=cuda checkpoint.every=1
else
    expect 6 'this build of trine has no CUDA device: .*-DTRINE_CUDA=ON' plan configs/tiny-g.yaml device.kind=cuda
fi
expect 0 ', on cpu$' plan configs/tiny-g.yaml checkpoint.every=1 device.kind=cpu
if grep -q '^snapshot is' "$scratch/out"; then
    echo 'trine plan: the snapshot of a CPU is said not to be in the total'
    failures=$((failures + 1))
fi
expect 6 'none of zero and recompute, alone or together' plan configs/llama-70b.yaml memory.limit_gb=1
expect 0 'pipeline 8, interleaved with 5 chunks a stage, zero 1' plan configs/llama-70b.yaml
expect 0 '^3F0,4F0,3F1' plan --schedule --draw "$scratch/plan.svg" configs/llama-8b.yaml parallel.pipeline=4 \
    parallel.schedule=zb-v parallel.data=1 train.global_batch=8 train.micro_batch=1
tail -n 4 "$scratch/out" >"$scratch/zb-v"
expect 0 '4 stages x 2 chunks in a V, 8 microbatches' plan --check-schedule "$scratch/zb-v"
for drawing in good plan; do
    if ! grep -q '^<svg ' "$scratch/$drawing.svg" || ! grep -q '^</svg>$' "$scratch/$drawing.svg"; then
        echo "trine plan --draw: $drawing.svg is no SVG"
        failures=$((failures + 1))
    fi
done

expect 0 '^# Settings' config --markdown
if ! cmp -s "$scratch/out" docs/settings.md; then
    echo "docs/settings.md is not what 'trine config --markdown' writes; make it anew"
    failures=$((failures + 1))
fi

[ $failures -eq 0 ]
