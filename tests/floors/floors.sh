#!/bin/sh
# floors.sh [TREE]: reads every #include of the tree and prints file:line for each that breaks a floor (docs/design.md,
# section 2). Exit code 1 when there is one.
#
#   base < memory < {kernels, io} < parallel < engine; a folder includes itself and lower floors;
#   kernels and io never meet; parallel never includes io; nobody includes tests/ but tests/;
#   includes in quotes are written from the root and name a file that exists;
#   a *_int.h is read by its own folder (and tests) only;
#   MPI is known to parallel and engine only, oneDNN and CUDA to kernels only.
set -eu
cd "${1:-$(dirname "$0")/../..}"

folders=
for folder in base memory io kernels parallel engine tests; do
    [ -d "$folder" ] && folders="$folders $folder"
done
[ -n "$folders" ] || { echo "floors.sh: no source folders in $(pwd)" >&2; exit 2; }

find $folders -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' -o -name '*.cpp' \) |
    LC_ALL=C sort | xargs grep -nHE '^[[:space:]]*#[[:space:]]*include' | awk '
function bad(text) { print place ": " text; count++ }
function top_of(path) { sub(/\/.*/, "", path); return path }
function folder_of(path) { sub(/[^\/]*$/, "", path); return path }
function is_file(path,   line, found) { found = (getline line < path) >= 0; close(path); return found }
BEGIN {
    floor["base"] = 1; floor["memory"] = 2; floor["io"] = 3; floor["kernels"] = 3; floor["parallel"] = 4
    floor["engine"] = 5; floor["tests"] = 6
}
{
    match($0, /^[^:]*:[0-9]+:/)
    place = substr($0, 1, RLENGTH - 1)
    file = place; sub(/:[0-9]+$/, "", file)
    from = top_of(file)
    target = $0; sub(/^[^:]*:[0-9]+:[ \t]*#[ \t]*include[ \t]*/, "", target)
    read++
    if (target ~ /^</) {
        if (target ~ /^<mpi/ && floor[from] < floor["parallel"])
            bad(from "/ must not know MPI: " target)
        if (target ~ /^<(dnnl|oneapi\/dnnl|cuda|cublas|cudnn)/ && from != "kernels" && from != "tests")
            bad(from "/ must not know devices: " target)
        if (target ~ /^<(nccl|ucp)/ && from != "parallel" && from != "tests")
            bad(from "/ must not know transports: " target)
        next
    }
    if (target !~ /^"[^"]+"/) { bad("neither \"file\" nor <file>: " target); next }
    sub(/^"/, "", target); sub(/".*/, "", target)
    to = top_of(target)
    if (!(to in floor) || target !~ /\//) { bad("not written from the root: \"" target "\""); next }
    if (!is_file(target)) bad("no such file: \"" target "\"")
    if (to != from && floor[to] >= floor[from])
        bad(from "/ must not include " to "/, which is not on a lower floor: \"" target "\"")
    if (from == "parallel" && to == "io")
        bad("parallel/ must not know files: \"" target "\"")
    if (target ~ /_int\.h$/ && from != "tests" && index(file, folder_of(target)) != 1)
        bad("\"" target "\" is for " folder_of(target) " only")
}
END {
    if (read == 0) { print "no #include read: nothing was checked"; exit 1 }
    if (count) { print count " of " read " includes break the floors"; exit 1 }
    print read " includes, all on their floors"
}'
