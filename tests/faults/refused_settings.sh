#!/bin/bash
# Settings that cannot be: one line from one rank that shows the sum and what would do, exit 2 within seconds, nothing written.
. tests/faults/run_tools.sh
data text 40
common="data.train=$scratch/text run.dir=$scratch/run"
config=configs/tiny-l.yaml

# refused RANKS PATTERN [WORD...]
refused()
{
    ranks=$1 pattern=$2
    shift 2
    what="$ranks ranks, $*"
    job "$ranks" train "$@"
    expect 2 "$pattern"
    [ $seconds -lt 5 ] || fail "$what: took $seconds s to refuse"
    [ ! -e "$scratch/run" ] || fail "$what: the run's folder was made"
    rm -rf "$scratch/run"
}

refused 6 '6 ranks.*tensor.* 2 x .*pipeline.* 2 needs a multiple of 4.*mpiexec -n 4 or -n 8' $config parallel.tensor=2 parallel.pipeline=2
refused 1 '1 rank .*needs a multiple of 2.*mpiexec -n 2' $config parallel.tensor=2
refused 8 '8 ranks.*tensor.* 3 .*needs a multiple of 3.*-n 6 or -n 9' $config parallel.tensor=3
refused 4 'parallel.data.* 3' $config parallel.data=3 parallel.tensor=1
refused 2 'global_batch.* = 10 .*parallel.data 2 x .*micro_batch.* 4.*= 8 or 16' $config train.global_batch=10 train.micro_batch=4
refused 2 'train.global_batch = 0: expected 1 to' $config train.global_batch=0
refused 2 'train.micro_batch = -1: expected 1 to' $config train.micro_batch=-1
refused 4 'heads.* = 6 .*tensor.* = 4.*use .*heads = 4 or 8, or parallel.tensor = 2' $config model.heads=6 model.kv_heads=6 model.head_dim=16 parallel.tensor=4
refused 4 'kv_heads.* 3.*tensor.* 2' $config model.heads=6 model.kv_heads=3 model.head_dim=16 parallel.tensor=2
refused 4 'seq_len.* 30 .*tensor.* = 4.*seq_len = 28 or 32' $config train.seq_len=30 parallel.tensor=4
refused 4 'ffn.* = 98 .*tensor.* = 4.*ffn = 96 or 100' $config model.ffn=98 parallel.tensor=4
refused 8 'layers' $config parallel.pipeline=8
refused 2 'command line: unknown setting train.stesp; did you mean train.steps' $config train.stesp=3
refused 2 'train.lr = fast: expected a number' $config train.lr=fast
refused 2 'train.steps = 3k' $config train.steps=3k
refused 2 'not in this version' $config model.qk_norm=true
refused 2 'parallel.inside .*= nccl: NCCL exchanges the memory of GPUs' $config parallel.inside=nccl device.kind=cpu
refused 2 'parallel.across .*= mpi is not in this version for several ranks' $config parallel.across=mpi device.kind=cuda
refused 2 'train.tf32 .*= true: only GPUs have TF32' $config train.tf32=true train.precision=fp32 device.kind=cpu
refused 2 'device.attention .*= cudnn: cuDNN computes on GPUs' $config device.attention=cudnn device.kind=cpu
refused 2 'cannot open.*none.yaml' none.yaml
refused 2 'section.key=value' $config other
refused 2 'unknown option --fast' $config --fast
refused 2 'cannot open the configuration train.steps=3' train.steps=3

# The same from the file: with its line.
sed 's/^  steps:/  stpes:/' $config >"$scratch/typo.yaml"
refused 2 "typo.yaml:17:[0-9]*: unknown setting train.stpes; did you mean train.steps" "$scratch/typo.yaml"
sed 's/^  layers: 4/  layers: 4\n  layers: 5/' $config >"$scratch/twice.yaml"
refused 2 'twice.yaml:7:[0-9]*: model.layers stands twice' "$scratch/twice.yaml"

# plan and the other verbs refuse alike.
for verb in plan verify eval sample; do
    what="$verb with an unknown setting"
    words=$config
    [ $verb != verify ] || words="$config data=2"
    job $([ $verb = plan ] && echo 1 || echo 2) $verb $words train.stesp=3
    expect 2 'did you mean train.steps'
done
what='plan for ranks that do not fit'
job 1 plan $config --ranks 6 parallel.tensor=2 parallel.pipeline=2
expect 2 'needs a multiple of 4'

# What is wrong on one rank only, or not the same on all, is told by one rank and ends all of them.
# apart PATTERN CODE WORDS0 WORDS1: two ranks, each with its own words.
apart()
{
    what="$3 / $4"
    begin=$(date +%s%N)
    # shellcheck disable=SC2086
    timeout -k 5 60 "$mpiexec" -n 1 "$trine" train $3 $common : -n 1 "$trine" train $4 $common </dev/null >"$scratch/out" 2>"$scratch/err"
    code=$?
    seconds=$((($(date +%s%N) - begin) / 1000000000))
    expect "$2" "$1"
    [ $seconds -lt 20 ] || fail "$what: took $seconds s to refuse"
    rm -rf "$scratch/run"
}
apart 'rank 1: cannot open the configuration none.yaml' 2 $config none.yaml
apart 'cannot open the configuration none.yaml' 2 none.yaml $config
apart 'rank 1: .*unknown setting train.stesp' 2 $config "$config train.stesp=3"
apart 'train.lr is not the same on all ranks' 2 "$config train.lr=1e-3" "$config train.lr=2e-3"
apart 'log.trace is not the same on all ranks' 2 "$config log.trace=5" "$config"
apart 'parallel.data is not the same on all ranks' 2 "$config parallel.data=2" "$config parallel.pipeline=2"
data other 50
common="run.dir=$scratch/run"
apart 'data.train is not the same file on all ranks' 3 "$config data.train=$scratch/text" "$config data.train=$scratch/other"
tr abc bca <"$scratch/text.txt" >"$scratch/changed.txt"
"$trine" data build "$scratch/changed.txt" --out "$scratch/changed" >/dev/null || fail 'data build changed'
apart 'data.train is not the same file on all ranks: other tokens' 3 "$config data.train=$scratch/text" "$config data.train=$scratch/changed"
apart '3/3 ' 0 "$config data.train=$scratch/text train.steps=3 train.global_batch=2 device.threads=1" "$config data.train=$scratch/text.bin train.steps=3 train.global_batch=2 device.threads=2"
common="data.train=$scratch/text run.dir=$scratch/run"

# Where two of three are given, the third is printed.
what='derived sizes'
job 1 plan $config --ranks 6 parallel.tensor=2
expect 0 'data 3 x tensor 2'
grep -q 'per data rank *8 sequences .*8 microbatches of 1 sequence' "$scratch/out" || fail "$what: batch of a rank"
finish
