#!/bin/sh
# quickstart.sh: from a bare Debian 12 to a small language model of real text, in a few minutes on 2 cores.
#
# Installs what is missing (deps.sh), builds, turns the GCIDE dictionary into byte tokens, trains on 8 ranks (data 2 x tensor 2 x
# pipeline 2), stops them as a scheduler would, goes on with 2 ranks where they left off, and prints a sample and the validation
# loss beside that of a byte bigram model of the same text. Run again, it uses what is there and trains afresh in runs/quickstart; the run before is kept.
set -eu
cd "$(dirname "$0")/.."

config=configs/quickstart.yaml
run=runs/quickstart
stop_at=240 # steps of the configuration's 320 that the 8 ranks do
begin=$(date +%s)

say() { printf '\n== %s\n' "$*"; }

say "1. Build"
./launch/build.sh trine

say "2. Data: the GCIDE dictionary as byte tokens, the last 5 % held out"
mkdir -p data
if [ ! -f data/gcide_train.bin ] || [ ! -f data/gcide_train.idx ] ||
    [ ! -f data/gcide_valid.bin ] || [ ! -f data/gcide_valid.idx ]; then
    build/trine data build /usr/share/dictd/gcide.dict.dz --split entry --document-bytes 2048 \
        --out data/gcide_train --valid-fraction 0.05 --valid-out data/gcide_valid
fi
build/trine data show data/gcide_train --ngram data/gcide_valid >data/gcide_show.txt
bigram=$(sed -n 's/^bigram nats per token //p' data/gcide_show.txt)
echo "A byte bigram model of this text has $bigram nats per token (a byte or the end of a document) on the held-out part."

say "3. Train on 8 ranks: data 2 x tensor 2 x pipeline 2"
if [ -d "$run" ]; then
    kept=$run-until-$(date +%Y%m%d-%H%M%S)
    mv "$run" "$kept"
    echo "The run that was there is kept in $kept"
fi
mkdir -p "$run/ctl"
# The part of a scheduler that wants the machine back: at step $stop_at it asks the run to stop.
(
    while sleep 0.5; do
        step=$(sed -n 's/.*"step": *\([0-9]*\).*/\1/p' "$run/status.json" 2>/dev/null || true)
        if [ "${step:-0}" -ge "$stop_at" ]; then
            : >"$run/ctl/stop"
            exit 0
        fi
    done
) &
scheduler=$!
trap 'kill $scheduler 2>/dev/null || true' EXIT
status=0
mpiexec -n 8 build/trine train "$config" || status=$?
kill $scheduler 2>/dev/null || true
case $status in
0 | 75) ;; # done, or stopped on request with everything saved: what a scheduler does to a job
*) exit "$status" ;;
esac

say "4. Go on where they left off, on 2 ranks: data 2, no tensor or pipeline parallelism"
mpiexec -n 2 build/trine train "$config" parallel.tensor=1 parallel.pipeline=1

say "5. A sample"
build/trine sample "$config" parallel.tensor=1 parallel.pipeline=1 --prompt "Horse" --tokens 300 --temperature 0.7

loss=$(sed -n 's/.*"valid_loss": *\([0-9.]*\).*/\1/p' "$run/metrics.jsonl" | tail -n 1)
say "Done in $(($(date +%s) - begin)) s"
awk -v loss="$loss" -v bigram="$bigram" 'BEGIN {
    printf "last validation loss %.4f nats per token; byte bigram model %.4f; %.4f better\n", loss, bigram, bigram - loss
    exit !(bigram - loss >= 0.3)
}' || { echo "error: expected at least 0.3 better than the bigram model" >&2; exit 1; }
