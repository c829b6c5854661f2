#!/bin/bash
# The program on simulated GPUs: what plan counts is what a run reports, to the byte; what cannot run is refused; a job that is stopped goes on in
# another layout with the bits of one rank, and on the CPU.
. tests/faults/run_tools.sh
data text 60
config=configs/tiny-l.yaml
common="data.train=$scratch/text device.kind=cuda model.hidden=32 model.ffn=48 train.seq_len=16 train.global_batch=4 train.reduction_leaves=4"

# Totals are of the GPU's memory: what is pinned on the host (snapshot) is told beside them.
number=0
while read -r ranks words; do
    number=$((number + 1))
    # shellcheck disable=SC2086
    plan_is_run plan$number "$ranks" $config train.steps=1 $words
    awk -v line="$planned" 'BEGIN { split(line, n, " "); exit !(n[8] > 0 && n[1] == n[2] + n[3] + n[4] + n[5] + n[6] + n[7]) }' ||
        fail "$what: $planned: the total is not that of the GPU's memory"
done <<'END'
1 train.precision=bf16
4 parallel.tensor=2 parallel.zero=2 checkpoint.every=1
2 parallel.zero=1 train.reduction_order=native train.reduction_leaves=2
4 parallel.pipeline=2 parallel.virtual=2 parallel.schedule=zb-v parallel.zero=3 checkpoint.every=1 train.optimizer=sgd
1 train.tensor_slices=2 model.kv_heads=1 model.head_dim=6 model.qkv_bias=true model.vocab=263
END

# Sums of NCCL's own need no scratch, and are part of the arithmetic.
what='sums of NCCL'
zero='--ranks 2 parallel.zero=1 train.reduction_leaves=2'
# shellcheck disable=SC2086
ordered=$(job 1 plan $config $zero && plan_largest)
# shellcheck disable=SC2086
native=$(job 1 plan $config $zero train.reduction_order=native && plan_largest)
[ "$native" -lt "$ordered" ] || fail "$what: $native bytes, with the tree's $ordered"
grep -q ' on cuda .* nccl [0-9]*\.[0-9]*\.[0-9]* sums' "$scratch/plan3/log.txt" || fail "$what: $(head -3 "$scratch/plan3/log.txt")"
! grep -q ' nccl ' "$scratch/plan2/log.txt" || fail "$what: $(grep ' nccl ' "$scratch/plan2/log.txt")"

what='more ranks than GPUs'
genv='-genv CUDASIM_DEVICES 2' job 4 train $config "run.dir=$scratch/many"
expect 6 '4 processes on this node and 2 GPUs'
what='too little memory'
job 2 train $config "run.dir=$scratch/small" memory.limit_gb=0.02 checkpoint.every=1
expect 6 'not enough memory on rank 0.*memory.limit_gb is 20000000'
# 512 MiB of a GPU are kept back; two ranks have half of the rest each.
planned=$(job 1 plan $config train.steps=1 && plan_largest)
mib=$(((planned >> 20) + 1))
genv="-genv CUDASIM_MEMORY_MIB $((512 + mib - 2))" job 1 train $config "run.dir=$scratch/small" train.steps=1
expect 6 'not enough memory on rank 0.*what is free on its GPU, less 512 MiB for the libraries is '
genv="-genv CUDASIM_MEMORY_MIB $((512 + mib))" job 1 train $config "run.dir=$scratch/fits" train.steps=1
expect 0
genv="-genv TRINE_SHARE_GPU 1 -genv CUDASIM_DEVICES 1 -genv CUDASIM_MEMORY_MIB $((1024 + mib))" job 2 train $config "run.dir=$scratch/shared" train.steps=1
expect 6 "not enough memory on rank 0.*this rank's share of what is free on its GPU, less 512 MiB"

genv="-genv CUDASIM_MEMORY_MIB 700" job 2 train $config "run.dir=$scratch/stages" train.steps=1 parallel.pipeline=2
expect 6 'not enough memory on rank 0.*what is free on its GPU, less 1024 MiB for the libraries is 0'

# Four steps on one rank; and on four ranks until they are asked to stop, then on two, then on the CPU.
what='one rank'
job 1 train $config "run.dir=$scratch/one" train.steps=4
expect 0
what='four ranks that are stopped'
start 4 train $config "run.dir=$scratch/moved" train.steps=4 checkpoint.every=1 parallel.tensor=1 parallel.pipeline=2 parallel.zero=3
await_step moved 1
: >"$scratch/moved/ctl/stop"
await 60
expect 75
ended moved stopped 75
stopped=$(status moved step)
what='two ranks that go on'
job 2 train $config "run.dir=$scratch/moved" train.steps=4 checkpoint.every=1 parallel.zero=1
expect 0 "resumed from .* after step $stopped"
equal "$what: losses" "$(metric moved loss)" "$(metric one loss)"
equal "$what: norms" "$(metric moved grad_norm)" "$(metric one grad_norm)"
what='the last step again, on the CPU'
rm -r "$scratch/moved/checkpoints/step-00000004"
job 1 train $config "run.dir=$scratch/moved" train.steps=4 device.kind=cpu
expect 0 'resumed from .* after step 3'
awk -v a="$(metric moved loss 4)" -v b="$(metric one loss 4)" 'BEGIN { exit !(a != b && (a - b) ^ 2 < 1e-10) }' ||
    fail "$what: loss $(metric moved loss 4), on the GPU $(metric one loss 4)"
finish
