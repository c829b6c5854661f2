# What the scripts of this folder share; sourced. They run from the source folder:
#     SCRIPT path/to/trine mpiexec [path/to/libfault.so]
# A script makes its data and runs in $scratch, drives the real program on real ranks, and says what it found with fail; it ends
# with finish. `out` and `err` in $scratch are those of the last job.
set -u
trine=$1 mpiexec=$2 fault=${3:-}
failures=0
scratch=$(mktemp -d /tmp/trine-faults.XXXXXX) || exit 1
trap 'for pid in $(rank_pids); do kill -KILL "$pid"; done 2>/dev/null; rm -rf "$scratch"' EXIT
trap 'exit 1' TERM INT

fail()
{
    echo "FAILED: $*"
    failures=$((failures + 1))
}

finish()
{
    [ $failures -eq 0 ] || { echo "$failures failed"; exit 1; }
    echo passed
    exit 0
}

# data NAME DOCUMENTS [SEED]: a token file of documents of 20 to 150 letters and blanks.
data()
{
    awk -v documents="$2" -v seed="${3:-7}" 'BEGIN {
        srand(seed)
        for (d = 0; d < documents; d++) {
            n = 20 + int(rand() * 130); line = ""
            for (i = 0; i < n; i++) line = line (rand() < 0.2 && i ? " " : sprintf("%c", 97 + int(rand() * rand() * 26)))
            print line "x"; print ""
        }
    }' >"$scratch/$1.txt"
    "$trine" data build "$scratch/$1.txt" --out "$scratch/$1" >/dev/null || fail "data build $1"
}

# Words of every job, behind its configuration: set by a script.
common=
# job RANKS VERB CONFIG [WORD...]: runs it to its end. Sets code and seconds. mpiexec would read the lines of a loop around it.
job()
{
    begin=$(date +%s%N)
    # shellcheck disable=SC2086
    timeout -k 5 120 "$mpiexec" ${genv:-} -n "$1" "$trine" "$2" "$3" $common "${@:4}" </dev/null >"$scratch/out" 2>"$scratch/err"
    code=$?
    seconds=$((($(date +%s%N) - begin) / 1000000000))
}

# start RANKS VERB CONFIG [WORD...]: the same in the background. Sets launcher, its process.
start()
{
    # shellcheck disable=SC2086
    "$mpiexec" ${genv:-} -n "$1" "$trine" "$2" "$3" $common "${@:4}" >"$scratch/out" 2>"$scratch/err" &
    launcher=$!
}

# await SECONDS: for the job's end. Sets code and seconds; a job that stays is a failure.
await()
{
    begin=$(date +%s%N)
    while kill -0 $launcher 2>/dev/null && [ $((($(date +%s%N) - begin) / 1000000000)) -lt "$1" ]; do
        sleep 0.1
    done
    seconds=$((($(date +%s%N) - begin) / 1000000000))
    if kill -KILL $launcher 2>/dev/null; then
        fail "${what:-job}: it had not ended after $1 s"
    fi
    wait $launcher
    code=$?
}

# expect CODE [PATTERN]: of the last job. A code other than 0 and 75 means exactly one line "error: " on stderr, which holds the pattern.
expect()
{
    label=${what:-job}
    [ $code -eq "$1" ] || { fail "$label: exit code $code, expected $1"; cat "$scratch/err"; return; }
    case $1 in
    0 | 75)
        grep -q -e "${2:-}" "$scratch/out" "$scratch/err" || { fail "$label: '$2' was not printed"; cat "$scratch/out" "$scratch/err"; } ;;
    *)
        errors=$(grep -c '^error: ' "$scratch/err")
        [ "$errors" -eq 1 ] || { fail "$label: $errors error lines, expected one"; cat "$scratch/err"; }
        grep '^error: ' "$scratch/err" | grep -q -e "${2:-}" || { fail "$label: '$2' is not in the error"; cat "$scratch/err"; } ;;
    esac
}

# Processes of this script's ranks: those of the program that name its folder.
rank_pids()
{
    for entry in $(grep -lsF "$scratch/" /proc/[0-9]*/cmdline); do
        IFS= read -r -d '' first <"$entry" && [ "$first" = "$trine" ] && entry=${entry#/proc/} && echo "${entry%/cmdline}"
    done 2>/dev/null
}

# pid_of RANK
pid_of()
{
    for pid in $(rank_pids); do
        grep -qsxz "PMI_RANK=$1" "/proc/$pid/environ" && echo "$pid"
    done
}

# gone: no rank is left, within 30 s of the death that made the job end.
gone()
{
    for _ in $(seq 60); do
        [ -n "$(rank_pids)" ] || return 0
        sleep 0.5
    done
    fail "${what:-job}: processes are left: $(rank_pids | tr '\n' ' ')"
}

# await_step RUN STEP: until that step's line is there (60 s).
await_step()
{
    for _ in $(seq 600); do
        [ -e "$scratch/$1/metrics.jsonl" ] && grep -q "^{\"step\": $2," "$scratch/$1/metrics.jsonl" && return 0
        kill -0 $launcher 2>/dev/null || break
        sleep 0.1
    done
    fail "${what:-job}: step $2 of $1 never came"
    cat "$scratch/out" "$scratch/err"
}

# metric RUN FIELD [STEP]: its values, one a line.
metric()
{
    grep "^{\"step\": ${3:-[0-9]*}," "$scratch/$1/metrics.jsonl" | sed -n "s/.*\"$2\": \"*\\([^,}\"]*\\).*/\\1/p"
}

# Of the last job, a plan: the largest rank's total; rank 0's total and categories, in the order in which a run prints them.
plan_largest() { sed -n 's/^largest rank .*: \([0-9]*\) bytes$/\1/p' "$scratch/out"; }
plan_rank_0() { awk '$1 ~ /^0(-[0-9]+)?$/ { print $NF, $2, $3, $4, $5, $6, $7, $8; exit }' "$scratch/out"; }

# plan_is_run RUN RANKS CONFIG [WORD...]: what plan counts is what the run reports, to the byte. Sets planned, rank 0's bytes.
plan_is_run()
{
    what="plan of $2 ranks, ${*:4}"
    job 1 plan "$3" --ranks "$2" "${@:4}"
    expect 0
    largest=$(plan_largest) planned=$(plan_rank_0)
    job "$2" train "$3" "run.dir=$scratch/$1" "${@:4}"
    expect 0
    equal "$what: largest rank" "$(metric "$1" memory_peak_bytes 1)" "$largest"
    equal "$what: rank 0" "$(sed -n 's/^memory of rank 0: //p' "$scratch/$1/log.txt" | grep -o '[0-9]\+ *' | tail -8 | tr -d ' ' | tr '\n' ' ')" \
        "$planned "
}

# status RUN FIELD: of status.json.
status()
{
    sed -n "s/.*\"$2\": \"*\\([^,}\"]*\\).*/\\1/p" "$scratch/$1/status.json"
}

# ended RUN STATE CODE
ended()
{
    [ "$(status "$1" state) $(status "$1" code)" = "$2 $3" ] ||
        fail "${what:-job}: status.json says $(cat "$scratch/$1/status.json"), expected $2 $3"
}

# equal WHAT A B
equal()
{
    [ "$2" = "$3" ] || fail "$1: $2, expected $3"
}
