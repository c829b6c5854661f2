#!/bin/bash
# Data that do not suit: damaged, too few, empty, out of the vocabulary. And what is right although it looks odd: epochs, repeats,
# evaluation sets that no layout divides.
. tests/faults/run_tools.sh
config=configs/tiny-l.yaml
data text 40
cd_words="train.steps=4 run.dir=$scratch/run"
common="data.train=$scratch/text $cd_words"

# first_token DOCUMENT: where it begins in $scratch/text.bin, in tokens of 2 bytes. Megatron's index: 34 bytes, then a 4-byte length each.
first_token()
{
    od -An -v -t d4 -w4 -j 34 -N $((4 * $1)) "$scratch/text.idx" | awk '{n += $1} END {print n + 0}'
}

# A token id outside of the vocabulary, in document 17: on some rank, whichever reads it first.
for id in 257 259; do
    cp "$scratch/text.idx" "$scratch/bad.idx"
    cp "$scratch/text.bin" "$scratch/bad.bin"
    # shellcheck disable=SC2059
    printf "\\x$(printf %02x $((id % 256)))\\x01" |
        dd of="$scratch/bad.bin" bs=2 seek=$(($(first_token 17) + 5)) conv=notrunc 2>/dev/null
    for layout in parallel.tensor=4 parallel.tensor=1 'parallel.tensor=2 parallel.pipeline=2'; do
        what="id $id, $layout"
        common="data.train=$scratch/bad $cd_words train.steps=30"
        # shellcheck disable=SC2086
        job 4 train $config $layout
        expect 3 "bad.bin: document 17, position 5 in it: token id $id, but the model's vocabulary is 257"
        ended run failed 3
        rm -rf "$scratch/run"
    done
done
common="data.train=$scratch/text data.valid=$scratch/bad train.eval_every=1 $cd_words"
what='an id of the evaluation data'
job 2 train $config
expect 3 'bad.bin: document 17, position 5'
rm -rf "$scratch/run"

# Fewer tokens than one sequence: said at the start, also of the evaluation data.
head -c 9 "$scratch/text.txt" >"$scratch/few.txt"
"$trine" data build "$scratch/few.txt" --out "$scratch/few" >/dev/null
what='10 tokens to train on'
common="data.train=$scratch/few $cd_words"
job 2 train $config
expect 3 'few.bin: has 10 tokens, but one sequence needs 33 (train.seq_len 32'
what='10 tokens to evaluate on'
common="data.train=$scratch/text data.valid=$scratch/few train.eval_every=4 $cd_words"
job 2 train $config
expect 3 'few.bin: has 10 tokens, but one sequence needs 33'
grep -q '^step' "$scratch/out" && fail "$what: seen after the first step only"

# Missing, cut, no token file.
what='no such file'
common="data.train=$scratch/none $cd_words"
job 2 train $config
expect 3 "$scratch/none: no such token file"
what='cut file'
head -c 1001 "$scratch/text.bin" >"$scratch/cut.bin"
cp "$scratch/text.idx" "$scratch/cut.idx"
common="data.train=$scratch/cut $cd_words"
job 2 train $config
expect 3 'cut.bin'
rm -rf "$scratch/run"

# Empty documents are left out and counted; nothing but empty ones is refused.
printf '\n\n  \n\nabc\n\n\n\n' >"$scratch/empty.txt"
"$trine" data build "$scratch/empty.txt" --split line --out "$scratch/empty" >"$scratch/out" 2>"$scratch/err"
code=$?
what='empty documents'
expect 0 '[1-9] empty documents left out'
printf '\n\n \n' >"$scratch/empty.txt"
"$trine" data build "$scratch/empty.txt" --out "$scratch/nothing" >"$scratch/out" 2>"$scratch/err"
code=$?
what='only empty documents'
expect 3
[ ! -e "$scratch/nothing.bin" ] || fail "$what: a file was made"

# 3 sequences and a batch of 24: they repeat, the epochs are told, no rank hangs.
head -c 120 "$scratch/text.txt" >"$scratch/three.txt"
"$trine" data build "$scratch/three.txt" --out "$scratch/three" >/dev/null
what='3 sequences, batch 24'
common="data.train=$scratch/three $cd_words"
job 4 train $config
expect 0 'epoch 7 of the data begins in step 1'
grep -q 'epoch 31 of the data begins in step 4' "$scratch/out" || fail "$what: epochs are not told"
rm -rf "$scratch/run"
finish
