#!/bin/sh
# fuzz.sh PROGRAM CORPUS SECONDS: runs the corpus, then fuzzes from it. The corpus stays as it is; an input that fails is kept
# beside the program (PROGRAM-crash-...), and its name is in the output. Longer, by hand: fuzz.sh PROGRAM CORPUS 3600.
#
# To keep what a long run has found: PROGRAM -merge=1 -max_len=8192 CORPUS FOUND
program=$1
corpus=$2
seconds=$3
[ -n "$(ls "$corpus" 2>/dev/null)" ] || { echo "error: no corpus in $corpus"; exit 1; }
# In memory where that is: manifests are flushed to the disk thousands of times.
scratch=$(mktemp -d -p /dev/shm 2>/dev/null) || scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/found"
export TMPDIR="$scratch"
# The largest allocation that a file may ask for is a chunk's, 64 MiB.
"$program" -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=72 \
    -artifact_prefix="$program-" -print_final_stats=1 "$scratch/found" "$corpus" >"$scratch/log" 2>&1
status=$?
tail -n 40 "$scratch/log"
executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$scratch/log")
[ "$status" -eq 0 ] || exit 1
[ "${executed:-0}" -ge 1000 ] || { echo "error: only ${executed:-0} inputs were tried"; exit 1; }
