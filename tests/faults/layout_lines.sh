#!/bin/bash
# What a run prints and records does not depend on the layout: losses, evaluation, samples of text. And the lines themselves:
# batch semantics, metrics.jsonl, config.yaml, status.json.
. tests/faults/run_tools.sh
data text 120
data held 20 11 # its sequences are cut below to 4k + 1
config=configs/tiny-l.yaml
shape='model.layers=2 train.global_batch=8 train.steps=4 train.warmup_steps=2 train.lr=1e-2 train.reduction_leaves=4'
common="data.train=$scratch/text $shape"

# 29 sequences of 32 tokens and the label of the last.
head -c $((29 * 32)) "$scratch/held.txt" | tr '\n' ' ' >"$scratch/odd.txt"
"$trine" data build "$scratch/odd.txt" --out "$scratch/odd" >/dev/null
# 3: fewer than data ranks.
head -c $((3 * 32)) "$scratch/odd.txt" >"$scratch/few.txt"
"$trine" data build "$scratch/few.txt" --out "$scratch/few" >/dev/null

# run NAME RANKS WORD...
run()
{
    name=$1
    what=$name
    shift
    job "$1" train $config "run.dir=$scratch/$name" "${@:2}"
    expect 0
    ended "$name" done 0
}

# Same recorded leaves: the same bits for every data size. The order of samples does not depend on the layout.
run one 1 data.valid="$scratch/odd" train.eval_every=2
run two 2 data.valid="$scratch/odd" train.eval_every=2
run four 4 data.valid="$scratch/odd" train.eval_every=2
run stages 2 data.valid="$scratch/odd" train.eval_every=2 parallel.pipeline=2
for name in two four stages; do
    for field in loss grad_norm lr valid_loss samples tokens; do
        [ -n "$(metric one $field)" ] || fail "no $field in the metrics"
        equal "$name: $field" "$(metric $name $field | tr '\n' ' ')" "$(metric one $field | tr '\n' ' ')"
    done
done
[ "$(metric one loss 4)" != "$(metric one loss 1)" ] || fail 'the loss does not move'

# near A B: within 1e-5 relative.
near()
{
    awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a + 0 > 0 && d <= 1e-5 * a) }' || fail "$1: $2 is not about $3"
}

# Other microbatches: the same set of samples a step, so the first loss and the evaluation agree within rounding.
for micro in 2 4; do
    run micro$micro 2 data.valid="$scratch/odd" train.eval_every=2 train.micro_batch=$micro train.reduction_leaves=2
    near "microbatch $micro: loss of step 1" "$(metric micro$micro loss 1)" "$(metric one loss 1)"
    near "microbatch $micro: loss of step 4" "$(metric micro$micro loss 4)" "$(metric one loss 4)"
    near "microbatch $micro: valid_loss" "$(metric micro$micro valid_loss 2)" "$(metric one valid_loss 2)"
done

# Evaluation with fewer sequences than ranks: ends, and counts each once.
run few1 1 data.valid="$scratch/few" train.eval_every=2
run few4 4 data.valid="$scratch/few" train.eval_every=2
equal 'valid_loss over fewer sequences than ranks' "$(metric few4 valid_loss 4)" "$(metric few1 valid_loss 4)"

# Evaluation leaves training alone: the losses are those of a run without it.
run without 2
equal 'losses without evaluation' "$(metric without loss | tr '\n' ' ')" "$(metric one loss | tr '\n' ' ')"
[ -z "$(metric without valid_loss)" ] || fail 'valid_loss without evaluation'

# Batch sizes both ways.
for pattern in 'global batch  *8 sequences x 32 tokens = 256 tokens per step, 8 microbatches' \
    'per data rank  *2 sequences = 64 tokens per step, 2 microbatches of 1 sequence (32 tokens), 4 data ranks' \
    'whole run  *4 steps = 32 sequences = 1024 tokens' \
    'layout: 4 ranks = data 4 x tensor 1 x pipeline 1' '^step 4/4 | loss .* | valid loss .* tok/s .* left 0s'; do
    grep -q "$pattern" "$scratch/four/log.txt" || fail "log.txt: '$pattern' is not there"
done

# metrics.jsonl: every field, in order, 17 digits.
fields='step samples tokens loss grad_norm lr loss_scale skipped step_ms tokens_per_s mfu memory_peak_bytes time compute tensor data pipeline idle feed checkpoint'
equal 'fields of a step' "$(sed -n 1p "$scratch/four/metrics.jsonl" | grep -o '"[a-z_]*":' | tr -d '":' | tr '\n' ' ')" "$fields "
equal 'fields of an evaluation' "$(sed -n 2p "$scratch/four/metrics.jsonl" | grep -o '"[a-z_]*":' | tr -d '":' | tr '\n' ' ')" "$fields valid_loss "
metric four loss | awk '{ gsub(/[^0-9]/, ""); if (length($0) > longest) longest = length($0) } END { exit !(longest >= 16 && longest <= 17) }' ||
    fail "losses with other than 17 digits: $(metric four loss | tr '\n' ' ')"

# Even and odd ranks on two nodes, as MPICH can pretend.
apart='ranks 0 to 1 .*(parallel.tensor = 2) and are on more than one node: the network will set the pace'
genv='-genv MPIR_CVAR_ODD_EVEN_CLIQUES 1' run two_nodes 4 parallel.tensor=2
grep -q "$apart" "$scratch/err" || fail "$what: not told: $(cat "$scratch/err")"
genv='-genv MPIR_CVAR_ODD_EVEN_CLIQUES 1' run two_nodes_alone 4
! grep -q 'more than one node' "$scratch/err" || fail "$what: $(cat "$scratch/err")"
run one_node 4 parallel.tensor=2
! grep -q 'more than one node' "$scratch/err" || fail "$what: $(cat "$scratch/err")"

# config.yaml is a configuration: the same run from it has the same bits.
what='config.yaml of a run'
common=
job 4 train "$scratch/four/config.yaml" "run.dir=$scratch/again" checkpoint.dir="$scratch/again/checkpoints"
expect 0
equal "$what: losses" "$(metric again loss | tr '\n' ' ')" "$(metric four loss | tr '\n' ' ')"

# From one checkpoint: eval and sample say the same under any layout.
common="data.train=$scratch/text data.valid=$scratch/odd train.eval_every=4 $shape"
run saved 2 checkpoint.every=4
common="$common checkpoint.resume=$scratch/saved/checkpoints run.dir=$scratch/reader"
for layout in '1' '4' '2 parallel.pipeline=2' '2 parallel.tensor=2 train.micro_batch=2' '8 parallel.tensor=2 parallel.pipeline=2'; do
    what="eval on $layout"
    read -r ranks words <<<"$layout"
    # shellcheck disable=SC2086
    job "$ranks" eval $config $words
    expect 0 'valid loss'
    loss=$(sed -n 's/^valid loss \([0-9.]*\) .*/\1/p' "$scratch/out")
    near "$what" "$loss" "$(metric saved valid_loss 4)"
    what="sample on $layout"
    # shellcheck disable=SC2086
    job "$ranks" sample $config --prompt 'ab c' --tokens 40 --temperature 1 $words
    expect 0
    [ -n "${text:-}" ] || text=$(od -c "$scratch/out")
    equal "$what" "$(od -c "$scratch/out")" "$text"
    equal "$what: first line begins with" "$(head -c 4 "$scratch/out")" 'ab c'
done
what='sample with another seed'
job 1 sample $config --prompt 'ab c' --tokens 40 --temperature 1 --seed 2
[ "$(od -c "$scratch/out")" != "$text" ] || fail "$what: the same text"
equal 'sampling makes no run folder' "$(ls -d "$scratch/reader" 2>/dev/null)" ''

# All 29 sequences count, each once: whether in batches of 8, the last one of 5, or one by one; not so in the first batch only.
what='eval by single sequences'
job 1 eval $config train.global_batch=1 train.reduction_leaves=1
expect 0
near "$what" "$(sed -n 's/^valid loss \([0-9.]*\) .*/\1/p' "$scratch/out")" "$(metric saved valid_loss 4)"
what='eval of one batch'
job 1 eval $config train.eval_batches=1
expect 0
[ "$(sed -n 's/^valid loss \([0-9.]*\) .*/\1/p' "$scratch/out")" != "$loss" ] || fail "$what: the loss of all of them"
what='eval without a checkpoint'
common="data.train=$scratch/text data.valid=$scratch/odd run.dir=$scratch/reader"
job 2 eval $config
expect 4 'no checkpoint found in .*reader'
finish
