#!/usr/bin/env bash
# trine data build and show, as a user meets them. usage: test_data_cli.sh PATH/TO/trine
set -eu
trine=$(realpath "$1")
folder=$(mktemp -d /tmp/trine-test-XXXXXX)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() {
    echo "FAILED: $1"
    [ $# -lt 2 ] || printf '%s\n' "$2"
    exit 1
}

# expect CODE TEXT COMMAND...: the exit code, and TEXT somewhere in the output.
expect() {
    local code=$1 text=$2 output status=0
    shift 2
    output=$("$@" 2>&1) || status=$?
    [ "$status" = "$code" ] || fail "$* ended with $status, expected $code" "$output"
    grep -qF -- "$text" <<<"$output" || fail "$* does not say: $text" "$output"
}

bytes() { # the ids of FILE as u16 numbers, one line
    od -An -v -tu2 -w1000000 "$1" | tr -s ' '
}

# Empty documents first, in the middle, two in a row, last: left out and counted.
printf '\nab\n\n\ncd\n \n' >lines
expect 0 '4 empty documents left out' "$trine" data build lines --out x --split line
[ "$(bytes x.bin)" = ' 97 98 256 99 100 256' ] || fail 'tokens of lines' "$(bytes x.bin)"
expect 0 'documents  2' "$trine" data show x
expect 0 'ids        97 to 256' "$trine" data show x.idx
expect 0 'text       "b<end>c"' "$trine" data show x.bin --tokens 1:4
expect 0 '2 documents, 4 tokens of 2 bytes' "$trine" data build lines --out x --split line --no-eod
[ "$(bytes x.bin)" = ' 97 98 99 100' ] || fail 'tokens without ends' "$(bytes x.bin)"

# Only empty ones: refused, nothing written, what stood there stays.
printf '\n \n\n' >blank
before=$(md5sum x.bin x.idx)
expect 3 'all of them empty' "$trine" data build blank --out x --split line
expect 3 '3 documents' "$trine" data build blank --out y --split line
[ "$before" = "$(md5sum x.bin x.idx)" ] || fail 'a refused build changed its output'
[ -z "$(ls y* 2>/dev/null)" ] || fail 'a refused build left files'

# Held-out part: bytes in order, cut where a document begins, nothing lost; gzip is read like plain text.
for i in $(seq 1 200); do printf 'entry%d\n   text of entry %d\n\n' "$i" "$i"; done >dict
gzip -k dict
"$trine" data build dict.gz --out t --valid-out v --valid-fraction 0.1 --split entry \
    --document-bytes 100 --no-eod >out
cat t.bin v.bin >both
[ "$(bytes both)" = "$(od -An -v -tu1 -w1000000 dict | tr -s ' ')" ] || fail 'text was lost or moved'
size=$(stat -c %s dict) valid=$(($(stat -c %s v.bin) / 2))
[ $valid -le $((size / 10)) ] && [ $valid -gt $((size / 10 - 200)) ] || fail "$valid of $size held out"
head -c 10 v.bin | tr -d '\0' | grep -q entry || fail 'the held-out part begins inside an entry'

# The bigram by hand: pairs ab ba ab of `abab` scored on `ab`: c(a, b) = c(a) = 2, so -log(2.01 / 4.56) over the 256 bytes, and
# -log(2.01 / 4.57) over the 257 ids.
printf 'abab' >a1
printf 'ab' >b
"$trine" data build a1 --out train --split file --no-eod >out
"$trine" data build b --out valid --split file --no-eod >out
expect 0 'bigram nats per byte 0.8192' "$trine" data show train --ngram valid
expect 0 'bigram nats per token 0.8214' "$trine" data show train --ngram valid
[ "$("$trine" data show train --ngram valid | tail -n 1)" = 'bigram nats per token 0.8214' ] || fail 'last line'
# With end-of-document tokens: per byte leaves them out (pairs ab ba ab), per token does not (a b end a b end).
"$trine" data build b b --out ends --split file >out
expect 0 'bigram nats per byte 0.8192' "$trine" data show ends --ngram valid.idx
expect 0 'scored on 5' "$trine" data show train --ngram ends

# Usage and bad input.
expect 3 'held out' "$trine" data build b --out t2 --valid-out v2 --valid-fraction 0.5 --split file
expect 3 'rounds to 0' "$trine" data build b --out t2 --valid-out v2 --valid-fraction 0.1
expect 2 'go together' "$trine" data build b --out t2 --valid-fraction 0.1
expect 2 'between 0 and 1' "$trine" data build b --out t2 --valid-out v2 --valid-fraction 1.5
expect 2 'must differ' "$trine" data build b --out t2 --valid-out t2 --valid-fraction 0.5
expect 2 'needs --out' "$trine" data build b
expect 2 'expected paragraph' "$trine" data build b --out t2 --split word
expect 2 'not in this version' "$trine" data build b --out t2 --tokenizer bpe.json
expect 2 'not in this version' "$trine" data merge
expect 2 'not in this version' "$trine" data verify
expect 2 'not in this version' "$trine" data tokenizer
cp b b.jsonl
expect 2 'b.jsonl: JSONL input is not in this version' "$trine" data build a1 b.jsonl --out t2
expect 2 'needs build or show' "$trine" data
expect 2 'unknown option --seed' "$trine" data show x --seed
expect 2 'B at most 4' "$trine" data show x --tokens 0:5
expect 2 'expected A:B' "$trine" data show x --tokens 3:2
expect 2 'expected A:B' "$trine" data show x --tokens x:2
expect 3 'missing.txt' "$trine" data build missing.txt --out t2
expect 3 'missing' "$trine" data show missing
head -c 100 dict.gz >cut.gz
expect 3 'damaged or cut gzip' "$trine" data build cut.gz --out t2
expect 0 'usage: trine data build' "$trine" data --help
[ -z "$(ls t2* v2* 2>/dev/null)" ] || fail 'a refused build left files'
[ -z "$(ls ./*tmp* 2>/dev/null)" ] || fail 'temporary files are left'
echo passed
