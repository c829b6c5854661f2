#!/bin/bash
# Ranks whose processors or libraries compute differently: the run says that bits are not promised, and goes on. Here one rank's
# oneDNN is told to use an older instruction set.
. tests/faults/run_tools.sh
data text 60
words="configs/tiny-l.yaml data.train=$scratch/text model.layers=2 train.global_batch=4 train.steps=2 train.warmup_steps=1 device.threads=1"
for older in 0 1; do
    others=(-n 1)
    [ $older -eq 0 ] || others+=(-env ONEDNN_MAX_CPU_ISA SSE41)
    # shellcheck disable=SC2086
    timeout -k 5 60 "$mpiexec" -n 1 "$trine" train $words "run.dir=$scratch/$older" : \
        "${others[@]}" "$trine" train $words "run.dir=$scratch/$older" >"$scratch/out" 2>"$scratch/err" || fail "mixed $older: $(cat "$scratch/err")"
    equal "warnings with $older ranks of another arithmetic" \
        "$(grep -c '^warning: the ranks do not all have the arithmetic of rank 0 (cpu ' "$scratch/err")" $older
done
finish
