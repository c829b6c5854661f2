#!/bin/sh
# trine ckpt diff and verify, trine bench checkpoint, and a second reader of the format, on a small checkpoint of known parts: two tensors of three kinds
# in four files. Usage: test_ckpt_tools.sh TRINE WRITE_FIXTURE
trine=$1
write_fixture=$2
python=/usr/bin/python3
[ -x $python ] || python=python3
failures=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

fail()
{
    echo "failed: $*"
    failures=$((failures + 1))
}

# expect CODE ARGS...: exit code of trine ckpt ARGS; stdout in out, stderr in err
expect()
{
    code=$1
    shift
    "$trine" ckpt "$@" >"$scratch/out" 2>"$scratch/err"
    got=$?
    [ $got -eq "$code" ] || fail "trine ckpt $*: exit code $got, expected $code: $(cat "$scratch/out" "$scratch/err")"
}

# says PATTERN [FILE]
says()
{
    grep -q -e "$1" "$scratch/${2:-out}" || fail "'$1' is not in: $(cat "$scratch/${2:-out}")"
}

for name in whole0 whole1 other; do
    mkdir "$scratch/$name"
done
"$write_fixture" "$scratch/whole0" 0 whole && "$write_fixture" "$scratch/whole1" 1 whole &&
    "$write_fixture" "$scratch/other" 1 other || exit 1

# The same values, stored raw and compressed.
expect 0 diff "$scratch/whole0" "$scratch/whole1"
says '^the same state: 6 tensors, bit for bit$'
[ "$(wc -l <"$scratch/out")" -eq 2 ] || fail "more is said of the same state: $(cat "$scratch/out")"

# The first element of every box is 1 larger: eight boxes of the matrix, four of the vector; of m, the values are at most 0.1.
expect 1 diff "$scratch/whole0" "$scratch/other"
says '^master a.weight: 8 of 814 elements differ, by at most 1 at \['
says '^master b.bias: 4 of 129 elements differ, by at most 1 at \[\(0\|33\|66\|99\)\]; relative at most'
says '^m      a.weight: 8 of 814 elements differ, by at most 1 at \[.*; relative at most 1.1$'
says '^6 of 6 tensors differ$'
[ -s "$scratch/err" ] && fail "a difference is told as an error: $(cat "$scratch/err")"
# Whole numbers are compared whole: two positions that no double tells apart.
for samples in 9007199254740992 9007199254740993; do
    cp -r "$scratch/whole0" "$scratch/at$samples"
    "$python" - "$scratch/at$samples/manifest.json" "$samples" <<'END' || fail 'the position cannot be changed'
import sys, xxhash
path, samples = sys.argv[1:]
document = open(path, "rb").read()[:-33].replace(b'"samples": 56', b'"samples": ' + samples.encode())
open(path, "wb").write(document + xxhash.xxh3_128_hexdigest(document).encode() + b"\n")
END
done
expect 1 diff "$scratch/at9007199254740992" "$scratch/at9007199254740993"
says '^samples: 9007199254740992 / 9007199254740993$'
says '^0 of 6 tensors differ, and the position$'
expect 4 diff "$scratch/whole0" "$scratch/nowhere"
says '^error: .*nowhere' err
expect 2 diff "$scratch/whole0"

# verify: silent but for its result, and a bar on a terminal; any number of threads.
for threads in 1 2 5; do
    expect 0 verify --threads $threads "$scratch/whole1"
    says 'whole1 is whole: 4 files, .* every hash; 2 tensors, every element once$'
    [ "$(wc -l <"$scratch/out")" -eq 1 ] || fail "progress where there is no terminal: $(cat "$scratch/out")"
done
script -qec "$trine ckpt verify $scratch/whole1" /dev/null >"$scratch/out"
says '\[==*\] 100%'
cp -r "$scratch/whole1" "$scratch/bad"
size=$(wc -c <"$scratch/bad/shard-00002.bin")
printf 'XX' | dd of="$scratch/bad/shard-00002.bin" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
for threads in 1 2 5; do
    expect 4 verify --threads $threads "$scratch/bad"
    says 'error: .*bad/shard-00002.bin: damaged: .*; the other files are whole$' err
done

# Every damaged file is named.
cp -r "$scratch/whole1" "$scratch/worse"
for file in 0 3; do
    printf 'XX' | dd of="$scratch/worse/shard-0000$file.bin" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
done
for threads in 1 5; do
    expect 4 verify --threads $threads "$scratch/worse"
    says 'error: .*worse/shard-00000.bin: damaged: .*; damaged too: shard-00003.bin$' err
done

# A folder of checkpoints is no checkpoint, nor the other way round; what to name is said. What is wrong with one stands in its row.
mkdir -p "$scratch/run/checkpoints"
cp -r "$scratch/whole0" "$scratch/run/checkpoints/step-00000007"
for name in 00000008 00000009; do
    cp -r "$scratch/whole0" "$scratch/run/checkpoints/step-$name"
done
printf 'x' >>"$scratch/run/checkpoints/step-00000008/manifest.json"
rm "$scratch/run/checkpoints/step-00000009/manifest.json"
for verb in show verify "diff $scratch/whole0"; do
    for path in run run/checkpoints; do
        expect 4 $verb "$scratch/$path"
        says "^error: .*$path is a folder of checkpoints; name one of them, such as .*/run/checkpoints/step-00000008 " err
    done
    expect 4 $verb "$scratch"
    says '^error: .*: no checkpoint is there (expected a folder with a file manifest.json)$' err
done
"$trine" bench checkpoint --state "$scratch/run" >"$scratch/out" 2>"$scratch/err" && fail 'bench checkpoint takes a run for a checkpoint'
says '^error: .* is a folder of checkpoints' err
expect 0 ls "$scratch/run"
says '^step-00000007 .* complete$'
says '^step-00000008 .* incomplete: manifest.json: damaged: '
says '^step-00000009 .* incomplete: manifest.json is missing$'
expect 4 ls "$scratch/whole0"
says '^error: .*whole0 is a checkpoint itself: ' err
expect 4 ls "$scratch"
says '^error: .*: no checkpoint is there (expected folders like step-00001000;' err
expect 0 show "$scratch/whole1"
says '^files  *4, .* of values; [0-9]*\.[0-9][0-9] bytes per parameter$'

# The second reader has the same values, and finds the same damage.
for name in whole0 whole1 other; do
    expect 0 show --hash "$scratch/$name"
    "$python" tests/python/ckpt_reader.py hash "$scratch/$name" >"$scratch/python" 2>"$scratch/err" ||
        fail "ckpt_reader.py: $(cat "$scratch/err")"
    cmp -s "$scratch/out" "$scratch/python" || fail "$name: the readers differ: $(diff "$scratch/out" "$scratch/python")"
done
"$python" tests/python/ckpt_reader.py hash "$scratch/bad" >"$scratch/python" 2>"$scratch/err" && fail "damage is not found"
says 'error: .*bad/shard-00002.bin: the hash' err

# bench checkpoint measures it, refuses to guess, and leaves no file.
mkdir "$scratch/files"
"$trine" bench checkpoint --state "$scratch/whole1" --dir "$scratch/files" --runs 1 --threads 2 >"$scratch/out" 2>"$scratch/err" ||
    fail "bench checkpoint: $(cat "$scratch/err")"
says '^ 2 threads  *[0-9.]* *[0-9.]* .*[0-9]$'
says '^size  *[0-9.]* kB at level 1: [01].[0-9]* times smaller than bf16 weights beside fp32 state'
says '^save  *[0-9.]* s .* of values .* plain '
says '^load  *[0-9.]* s .* of values .* plain '
[ -z "$(ls "$scratch/files")" ] || fail "bench checkpoint leaves files: $(ls "$scratch/files")"
"$trine" bench checkpoint --dir "$scratch/files" >"$scratch/out" 2>"$scratch/err"
[ $? -eq 2 ] || fail "bench checkpoint without a state does not end with 2"
says 'error: .*--state' err
[ $failures -eq 0 ]
