#!/bin/sh
# What the compiler made of the CUDA kernels, and what each of them must do at least: docs/roofline.md.
#
#     tests/bench/kernel_report.sh [--build DIR] [--tools DIR] [--write | --check]
#
# Compiles every kernels/cuda/*.cu with the command of a configured build (--build, by default build/, with TRINE_CUDA on) and
# `-Xptxas -v`, reads registers, shared memory, stack and spills, and counts instructions with cuobjdump where it is found (in --tools,
# beside nvcc, or in PATH; some installations of the toolkit lack it, Triton's package for Python carries one). Exit code 1 when a kernel
# spills registers or uses local memory, lacks the accesses that kernel_table.txt demands of it, or is missing there.
# --write puts the tables into docs/roofline.md, --check compares them with what stands there (both need cuobjdump). Objects are kept in
# DIR/kernel_report and made again when what they include, or their command, has changed.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD build=build tools= mode=print
usage() {
    echo "usage: tests/bench/kernel_report.sh [--build DIR] [--tools DIR] [--write | --check]" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --build | --tools)
        [ $# -gt 1 ] || usage
        if [ "$1" = --build ]; then build=$2; else tools=$2; fi
        shift 2
        ;;
    --write | --check) mode=${1#--}; shift ;;
    *) usage ;;
    esac
done
commands=$build/compile_commands.json
if ! grep -qs -- '-x cu -c .*kernels/cuda/cuda_' "$commands"; then
    echo "error: $build has no CUDA build: cmake -S . -B $build -DTRINE_CUDA=ON, with the CUDA toolkit installed" >&2
    exit 2
fi
out=$build/kernel_report
mkdir -p "$out"
out=$(cd "$out" && pwd)

# ---- compile ----

# The build's command for a source, without the object that it names.
command_of() {
    sed -n "s|^ *\"command\": \"\(.* -x cu -c [^ ]*/kernels/cuda/$1\.cu\) -o .*|\1|p" "$commands" | sed 's/\\"/"/g' | head -n 1
}
# What a source's object was made from: its command, and the contents of the tree's files that it includes.
fingerprint_of() {
    command_of "$1"
    sed 's/\\$//; s/^[^:]*://' "$out/$1.d" | tr -s ' ' '\n' | grep -F "$root/" | sort -u | xargs cksum
}
is_fresh() {
    [ -f "$out/$1.fatbin" ] && [ -f "$out/$1.d" ] && [ -f "$out/$1.inputs" ] && fingerprint_of "$1" 2>&1 | cmp -s - "$out/$1.inputs"
}
# A source's code for all architectures, without the host's: fatbin file, report.
compile() {
    command=$(command_of "$1" | sed 's/ -x cu -c / -x cu -fatbin /')
    if [ -z "$command" ]; then
        echo "error: kernels/cuda/$1.cu is not in $commands: add it to kernels/cuda/CMakeLists.txt and configure again" >&2
        return 1
    fi
    if ! (cd "$build" && eval "$command -Xptxas -v -MD -MF '$out/$1.d' -o '$out/$1.part.fatbin'") >"$out/$1.part.log" 2>&1; then
        cat "$out/$1.part.log" >&2
        return 1
    fi
    fingerprint_of "$1" >"$out/$1.inputs"
    mv "$out/$1.part.log" "$out/$1.log"
    mv "$out/$1.part.fatbin" "$out/$1.fatbin"
}
for source in kernels/cuda/*.cu; do
    name=$(basename "$source" .cu)
    is_fresh "$name" || compile "$name"
done

# ---- gather: arch, kernel, numbers ----

cuobjdump=
nvcc=$(command_of cuda_norm | sed 's/ .*//')
for at in "$tools" "$(dirname "$nvcc")" $(echo "$PATH" | tr : ' '); do
    [ -n "$cuobjdump" ] || [ ! -x "$at/cuobjdump" ] || cuobjdump=$at/cuobjdump
done
# Kernels are named as in their sources, with bf16 and fp16 for the types.
demangle() {
    c++filt | sed 's/__nv_bfloat16/bf16/g; s/__half/fp16/g; s/(anonymous namespace):://g; s/|void /|/; s/(.*|/|/; s/> >/>>/g'
}
: >"$out/compiler"
: >"$out/code"
rules=$(cksum <tests/bench/kernel_report.sh | sed 's/ .*//') # what was counted by another version of this script is counted again
for source in kernels/cuda/*.cu; do
    object=$out/$(basename "$source" .cu).fatbin
    awk '
        /Compiling entry function/ { split($0, part, "\047"); name = part[2]; arch = part[4]; stack = stores = loads = 0 }
        /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
        /: Used [0-9]+ registers/ {
            shared = 0
            for (i = 2; i <= NF; i++)
                if ($i ~ /^smem/) shared = $(i - 2)
            for (i = 2; i <= NF; i++)
                if ($i ~ /^registers/) registers = $(i - 1)
            print arch "|" name "|" registers " " shared + 0 " " stack " " stores " " loads
        }' "${object%.fatbin}.log" | demangle >>"$out/compiler"
    [ -n "$cuobjdump" ] || continue
    counts=${object%.fatbin}.$rules.counts
    if [ "$counts" -nt "$object" ]; then
        cat "$counts" >>"$out/code"
        continue
    fi
    PATH=$(dirname "$cuobjdump"):$PATH "$cuobjdump" -sass "$object" | awk '
        function flush() { if (name != "") print arch "|" name "|" load + 0 " " store + 0 " " async + 0 " " matrix + 0 " " fragments + 0 " " local + 0
            load = store = async = matrix = fragments = local = 0; name = "" }
        /^arch = / { flush(); arch = $3 }
        /Function : / { flush(); name = $3 }
        /LDG\.E[.A-Z0-9]*\.128/ { load++ }
        /STG\.E[.A-Z0-9]*\.128/ { store++ }
        /LDGSTS/ { async++ }
        / (HMMA|HGMMA|UTCHMMA)\./ { matrix++ }
        / LDSM/ { fragments++ }
        / (LDL|STL)[. ]/ { local++ }
        END { flush() }' | demangle >"$counts"
    cat "$counts" >>"$out/code"
done

# ---- the table, its formulas worked out for the stated shape ----

B=4 T=2048 H=2048 F=5504 A=16 K=16 D=128 V=32000 E=2
R=$((B * T)) S=$((B * A * T * (T + 1) / 2)) n=$((2 * V * H + 24 * (4 * H * H + 3 * H * F + 2 * H) + H))
grep -v '^#' tests/bench/kernel_table.txt | while IFS='|' read -r operation instance threads dynamic demands bytes flop other special; do
    values=
    for formula in "$bytes" "$flop" "$other" "$special"; do
        case $formula in
        *-*) values="$values 0" ;;
        *) values="$values $(($formula))" ;;
        esac
    done
    echo "$operation|$instance|$threads|$dynamic|$demands|$bytes|$flop|$values"
done | sed 's/ *| */|/g; s/^ *//' >"$out/table"

status=0
awk -F '|' -v disassembled="${cuobjdump:+1}" -v version="$("$nvcc" --version | sed -n 's/.*, V//p')" \
    -f tests/bench/kernel_report.awk "$out/table" "$out/compiler" "$out/code" >"$out/tables.md" 2>"$out/faults" || status=1

case $mode in
print) cat "$out/tables.md" ;;
*)
    if [ -z "$cuobjdump" ]; then
        echo "error: no cuobjdump; name its folder with --tools" >&2
        exit 2
    fi
    awk -v tables="$out/tables.md" '
        /^<!-- end of what kernel_report.sh writes -->/ { inside = 0 }
        !inside
        /^<!-- from here to the end mark: tests\/bench\/kernel_report.sh --write -->/ {
            inside = 1
            print ""
            while ((getline line < tables) > 0)
                print line
            print ""
        }' docs/roofline.md >"$out/roofline.md"
    if [ "$mode" = write ]; then
        cp "$out/roofline.md" docs/roofline.md
    elif ! diff -u docs/roofline.md "$out/roofline.md"; then
        echo "error: docs/roofline.md is not what the kernels are: tests/bench/kernel_report.sh --write" >>"$out/faults"
        status=1
    fi
    ;;
esac
cat "$out/faults" >&2
[ -n "$cuobjdump" ] || echo "no cuobjdump: instructions were not looked at (--tools DIR)" >&2
exit $status
