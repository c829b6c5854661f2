#!/bin/sh
# The floors of this tree hold, and floors.sh sees each kind of break in a tree made for it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
"$here/floors.sh" "$here/../.."

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failed=0
fresh() {
    rm -rf "$tree"/*
    mkdir -p "$tree/base" "$tree/memory" "$tree/io" "$tree/kernels/cpu" "$tree/parallel" "$tree/engine" "$tree/tests"
    for header in base/a.h memory/a.h io/a.h kernels/a.h kernels/cpu/cpu_int.h parallel/a.h engine/a.h; do
        echo '#include <stddef.h>' >"$tree/$header"
    done
}
# expect LINE FILE WHAT: with the line as line 2 of the file, floors.sh must fail and name file:2 and WHAT.
expect() {
    fresh
    printf '#include <stdio.h>\n%s\n' "$1" >"$tree/$2"
    if output=$("$here/floors.sh" "$tree"); then
        echo "not seen: $1 in $2"; failed=1
    elif ! echo "$output" | grep -q "^$2:2: .*$3"; then
        echo "$1 in $2: expected $2:2 and \"$3\", got: $output"; failed=1
    fi
}
allow() {
    fresh
    printf '#include <stdio.h>\n%s\n' "$1" >"$tree/$2"
    if ! output=$("$here/floors.sh" "$tree"); then
        echo "wrongly refused: $1 in $2: $output"; failed=1
    fi
}
expect '#include "memory/a.h"' base/x.c 'lower floor'
expect '#include "io/a.h"' kernels/x.c 'lower floor'
expect '#include "kernels/a.h"' io/x.c 'lower floor'
expect '#include "io/a.h"' parallel/x.c 'must not know files'
expect '#include "engine/a.h"' parallel/x.c 'lower floor'
expect '  #  include "parallel/a.h"' kernels/cpu/x.cu 'lower floor'
expect '#include "a.h"' base/x.c 'from the root'
expect '#include "../base/a.h"' memory/x.c 'from the root'
expect '#include "base/missing.h"' memory/x.c 'no such file'
expect '#include "kernels/cpu/cpu_int.h"' engine/x.c 'only'
expect '#include "kernels/cpu/cpu_int.h"' kernels/x.c 'only'
expect '#include <mpi.h>' kernels/x.c 'must not know MPI'
expect '#include <dnnl.h>' engine/x.c 'must not know devices'
expect '#include <nccl.h>' engine/x.c 'must not know transports'
allow '#include "base/a.h"' engine/x.c
allow '#include "io/a.h"' engine/x.c
allow '#include "kernels/a.h"' parallel/x.c
allow '#include "kernels/cpu/cpu_int.h"' kernels/cpu/x.c
allow '#include "kernels/cpu/cpu_int.h"' tests/x.c
allow '#include <mpi.h>' parallel/x.c
exit $failed
