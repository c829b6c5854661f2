#!/bin/sh
# Training, stopping, resuming and looking at checkpoints from the command line: ls, show, verify; 10
# steps equal 5 + 5, on real token files; damage ends with exit code 4 and the file's name.
# usage, from the source folder: ckpt_cli.sh path/to/trine path/to/mpiexec
trine=$1
mpiexec=$2
failures=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

fail()
{
    echo "failed: $*"
    failures=$((failures + 1))
}

# expect CODE PATTERN ARGS...: exit code of trine ARGS, and a pattern in stdout (code 0) or in its one error line.
expect()
{
    code=$1
    pattern=$2
    shift 2
    "$trine" "$@" >"$scratch/out" 2>"$scratch/err"
    got=$?
    where=out
    [ "$code" -eq 0 ] || where=err
    [ $got -eq "$code" ] || fail "trine $*: exit code $got, expected $code: $(cat "$scratch/err")"
    grep -q -e "$pattern" "$scratch/$where" || fail "trine $*: '$pattern' is not in: $(cat "$scratch/$where")"
}

# train DIR RANKS ARGS...
train()
{
    dir=$1
    ranks=$2
    shift 2
    "$mpiexec" -n "$ranks" "$trine" train configs/tiny-l.yaml run.dir="$scratch/$dir" data.train="$scratch/text" \
        train.steps=10 "$@" >"$scratch/out" 2>&1 || { fail "training in $dir: $(tail -3 "$scratch/out")"; exit 1; }
}

i=0
while [ $i -lt 400 ]; do
    echo "Line $i is followed by line $((i + 1)), and $((i * i)) is its square."
    i=$((i + 1))
done >"$scratch/text.txt"
"$trine" data build "$scratch/text.txt" --out "$scratch/text" --split line >/dev/null || exit 1

train straight 2 checkpoint.every=5 checkpoint.keep=0 model.dropout=0.1
steps=$scratch/straight/checkpoints
expect 0 '^step-00000005 .* complete$' ckpt ls "$scratch/straight"
expect 0 '^step-00000010 .* complete, latest$' ckpt ls "$steps"
expect 0 '^samples *240$' ckpt show "$steps/step-00000010"
expect 0 'model.embed_tokens.weight\|precision: fp32' ckpt show "$steps/step-00000010"
expect 0 'step-00000010 is whole: 2 files' ckpt verify "$steps/step-00000010"
expect 0 '^m lm_head.weight [0-9a-f]\{32\}$' ckpt show --hash "$steps/step-00000010"
LC_ALL=C sort -c "$scratch/out" || fail "the lines of show --hash are not sorted"
cp "$scratch/out" "$scratch/hashes"
[ "$(wc -l <"$scratch/hashes")" -eq 117 ] || fail "39 tensors of 3 kinds, not $(wc -l <"$scratch/hashes") lines"

# A plan is of the run that would go on there, in the order of sums that it would take over.
expect 0 '^order of sums as recorded in .*straight' plan configs/tiny-l.yaml run.dir="$scratch/straight" parallel.data=2 parallel.zero=3
grep -q '^sum of gradients: blocks of 2 leaves' "$scratch/out" || fail "plan does not take the recorded order over: $(cat "$scratch/out")"

# A sample is one microbatch, whatever schedule the run trains with.
"$mpiexec" -n 2 "$trine" sample configs/tiny-l.yaml run.dir="$scratch/straight" --prompt ab --tokens 3 parallel.pipeline=2 \
    parallel.virtual=2 parallel.schedule=interleaved >"$scratch/out" 2>&1 || fail "sample with an interleaved schedule: $(cat "$scratch/out")"

# Its one sequence need not divide by the tensor ranks where the run's microbatches do.
train wide 2 parallel.tensor=2 train.seq_len=31 train.micro_batch=2 train.steps=2 checkpoint.every=2
"$mpiexec" -n 2 "$trine" sample configs/tiny-l.yaml run.dir="$scratch/wide" --prompt ab --tokens 3 parallel.tensor=2 \
    train.seq_len=31 train.micro_batch=2 >"$scratch/out" 2>&1 || fail "sample of an odd sequence: $(cat "$scratch/out")"

# A benchmark's own state is trained, saved and measured.
mkdir "$scratch/bench"
expect 0 '^state  *2.61 MB of fp32 values in 117 boxes, from .*/trine-bench-state/step-00000004$' bench checkpoint configs/tiny-l.yaml \
    data.train="$scratch/text" train.steps=4 parallel.tensor=2 --dir "$scratch/bench" --runs 1
expect 0 'step-00000004 is whole' ckpt verify "$scratch/bench/trine-bench-state/step-00000004"

# Five steps, a copy of the run as it was then, five more.
mkdir "$scratch/again"
cp -r "$scratch/straight/checkpoints" "$scratch/straight/metrics.jsonl" "$scratch/again"
rm -r "$scratch/again/checkpoints/step-00000010"
echo step-00000005 >"$scratch/again/checkpoints/latest"
train again 2 checkpoint.every=5 model.dropout=0.1
grep -q '^resumed from .*step-00000005, after step 5$' "$scratch/out" || fail "it does not say that it resumed"
expect 0 '' ckpt show --hash "$scratch/again/checkpoints/step-00000010"
cmp -s "$scratch/out" "$scratch/hashes" || fail "10 steps and 5 + 5 differ"
expect 0 '^the same state: 117 tensors, bit for bit$' ckpt diff "$scratch/again/checkpoints/step-00000010" "$steps/step-00000010"
"$trine" ckpt diff "$steps/step-00000005" "$steps/step-00000010" >"$scratch/out" 2>"$scratch/err"
[ $? -eq 1 ] || fail "ckpt diff of steps 5 and 10 does not end with 1"
grep -q '^step: 5 / 10$' "$scratch/out" || fail "ckpt diff does not tell the steps"
grep -q '^117 of 117 tensors differ, and the position$' "$scratch/out" || fail "ckpt diff of steps 5 and 10: $(tail -n 1 "$scratch/out")"

# A reader that knows the format from its description alone has the same values.
python=/usr/bin/python3
[ -x $python ] || python=python3
"$python" tests/python/ckpt_reader.py hash "$steps/step-00000010" >"$scratch/out" 2>&1
cmp -s "$scratch/out" "$scratch/hashes" || fail "ckpt_reader.py: $(diff "$scratch/out" "$scratch/hashes" | head -n 5)"
for run in straight again; do
    sed 's/.*"step": *\([0-9]*\).*"loss": *\([^,]*\),.*/\1 \2/' "$scratch/$run/metrics.jsonl" >"$scratch/$run.losses"
done
[ "$(wc -l <"$scratch/again.losses")" -eq 10 ] || fail "metrics.jsonl has $(wc -l <"$scratch/again.losses") lines for 10 steps"
cmp -s "$scratch/straight.losses" "$scratch/again.losses" || fail "losses of 10 steps and of 5 + 5 differ"

# Changed settings are said, old and new.
train changed 1 checkpoint.resume="$steps/step-00000005" train.lr=0.002 parallel.data=1
grep -q '^warning: the mathematics changed .*train.lr: [0-9.e-]* / 0.002' "$scratch/out" || fail "a changed train.lr is not told"
grep -q '^the layout changed .*parallel.data: 2 / 1' "$scratch/out" || fail "a changed layout is not told"

# A run in fp16 that goes on from one without a loss scale begins its own; one that goes on from fp16 keeps it.
train scaled 1 train.precision=bf16 train.steps=2 checkpoint.every=2
train scaled 1 train.precision=fp16 train.steps=3 train.loss_scale_growth=1 checkpoint.every=1
train scaled 1 train.precision=fp16 train.steps=4 train.loss_scale_growth=1 checkpoint.every=1
scales=$(sed -n 's/.*"loss_scale": \([^,]*\),.*/\1/p' "$scratch/scaled/metrics.jsonl" | tr '\n' ' ')
[ "$scales" = '1 1 65536 131072 ' ] || fail "loss scales of bf16, then fp16: $scales"

# Damage, and what is not there.
cp -r "$steps/step-00000010" "$scratch/bad"
size=$(wc -c <"$scratch/bad/shard-00001.bin")
printf 'XXXXXXXX' | dd of="$scratch/bad/shard-00001.bin" bs=1 seek=$((size / 3)) conv=notrunc 2>/dev/null
expect 4 "error: .*bad/shard-00001.bin: damaged" ckpt verify "$scratch/bad"
"$mpiexec" -n 2 "$trine" train configs/tiny-l.yaml run.dir="$scratch/none" data.train="$scratch/text" \
    checkpoint.resume="$scratch/bad" >"$scratch/out" 2>&1
[ $? -eq 4 ] || fail "training from a damaged checkpoint does not end with 4"
grep -q 'error: .*bad/shard-00001.bin: damaged' "$scratch/out" || fail "the damaged file is not named: $(cat "$scratch/out")"
rm "$scratch/bad/shard-00001.bin"
expect 4 "error: .*bad/shard-00001.bin" ckpt show "$scratch/bad"
cp -r "$scratch/bad" "$steps/step-00000011"
expect 0 '^step-00000011 .* incomplete: shard-00001.bin is missing$' ckpt ls "$steps"
expect 4 'error: .*nowhere' ckpt verify "$scratch/nowhere"
expect 4 'error: .*no checkpoint' ckpt ls "$scratch/nowhere"
expect 2 'error: trine ckpt import is not in this version' ckpt import a b
expect 2 'error: .*--hush' ckpt show --hush a
[ $failures -eq 0 ]
