#!/bin/sh
# run_part.sh PART BUILD PACK PEAK: one part of tests/device/run.sh, which says what they are. Lines that begin with "result:" are for
# its reader. Exit code 77: skipped, the last line says why.
# Limits inside of a part are in the foreground: what the part's own limit ends, ends with it.
set -eu
part=$1 build=$2 pack=$3 peak=$4
tests=$build/tests
archive=build-pack/trine-libraries.tar.gz

# Carried libraries come before the system's. Their folders have Debian's names, whatever this system calls its own.
if [ -f "$archive" ]; then
    multiarch=$(tar -tzf "$archive" | sed -n 's|^usr/lib/\([^/]*\)/libmpich\.so$|\1|p')
    lib=$pack/usr/lib/$multiarch
    LD_LIBRARY_PATH=$lib:$pack/lib/$multiarch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    PATH=$pack/usr/bin:$PATH
    export LD_LIBRARY_PATH PATH
fi

# Folders of Python's packages that have a file: PyTorch brings CUDA's libraries and their headers.
python_cuda() { # lib or include, file
    python3 -c 'import glob, sysconfig
for kind in "purelib", "platlib":
    for folder in glob.glob(sysconfig.get_path(kind) + "/nvidia/*/'"$1"'"):
        if glob.glob(folder + "/'"$2"'"): print(folder)' 2>/dev/null | sort -u | paste -sd : -
}
# What the system lacks is taken from there.
for library in libcublasLt libnccl; do
    if ! ldconfig -p 2>/dev/null | grep -q "$library" && ! ls /usr/local/cuda/lib64/$library.so* >/dev/null 2>&1; then
        folders=$(python_cuda lib "$library.so*")
        [ -z "$folders" ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folders"
    fi
done
for header in cublasLt.h nccl.h; do
    if ! echo "#include <$header>" | cc -E -I/usr/local/cuda/include - >/dev/null 2>&1; then
        folders=$(python_cuda include "$header")
        [ -z "$folders" ] || export CMAKE_INCLUDE_PATH="${CMAKE_INCLUDE_PATH:+$CMAKE_INCLUDE_PATH:}$folders"
    fi
done

unpack() {
    new=$pack.part
    rm -rf "$pack" "$new"
    mkdir -p "$new"
    tar -C "$new" -xzf "$archive"
    # Links and files that name places from / on.
    find "$new" -type l | while read -r link; do
        case $(readlink "$link") in
        /*) ln -sfn "$pack$(readlink "$link")" "$link" ;;
        esac
    done
    sed -i "s|^prefix=.*|prefix=$pack/usr|; s|^\(libdir\|sharedlibdir\)=.*|\1=$lib|" "$new/usr/lib/$multiarch"/pkgconfig/*.pc
    ln -sf pkgconf "$new/usr/bin/pkg-config"
    ln -sf mpiexec.hydra "$new/usr/bin/mpiexec"
    mv "$new" "$pack" # whole, or not there
}

part_build() {
    set -- -S . -B "$build" -DTRINE_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${TRINE_CUDA_ARCH:-90}"
    if command -v ninja >/dev/null; then
        set -- "$@" -G Ninja
    fi
    if [ -f "$archive" ]; then
        [ -d "$lib" ] || unpack
        export PKG_CONFIG_LIBDIR="$lib/pkgconfig"
        set -- "$@" -DCMAKE_PREFIX_PATH="$pack/usr" -DCMAKE_LIBRARY_ARCHITECTURE="$multiarch" -DPKG_CONFIG_EXECUTABLE="$pack/usr/bin/pkgconf" \
            -DMPI_C_COMPILER=NOTFOUND -DMPI_SKIP_COMPILER_WRAPPER=ON -DMPI_C_HEADER_DIR="$pack/usr/include/$multiarch/mpich" \
            -DMPI_C_LIB_NAMES=mpich -DMPI_mpich_LIBRARY="$lib/libmpich.so" -DMPIEXEC_EXECUTABLE="$pack/usr/bin/mpiexec" \
            -DCMAKE_EXE_LINKER_FLAGS="-Wl,-rpath-link,$lib:$pack/lib/$multiarch"
    fi
    cmake "$@"
    cmake --build "$build" --parallel "$(nproc)" --target device_programs
}

part_parity() {
    status=0
    for program in "$tests"/device/device_*; do
        [ -x "$program" ] || { echo "no parity programs in $tests/device"; exit 1; }
        code=0
        timeout --foreground 30 "$program" || code=$?
        echo "result: $(basename "$program"): exit code $code"
        [ "$code" = 0 ] || status=1
    done
    return $status
}

part_golden() {
    "$tests/device/golden_cuda"
    echo "result: G and L agree with the golden values"
}

# A small text, so that there is data on a machine without any.
tiny_data() {
    [ -f "$build/data/tiny.bin" ] || {
        mkdir -p "$build/data"
        "$build/trine" data build README.md docs/design.md --split paragraph --out "$build/data/tiny"
    }
}

# The lines of a program as results, and its exit code.
results() { # prefix, command ...
    prefix=$1
    shift
    code=0
    "$@" >"$build/results" || code=$?
    sed "s/^/result: $prefix/" "$build/results"
    return $code
}

part_ranks() {
    command -v mpiexec >/dev/null || { echo "no mpiexec here"; exit 77; }
    tiny_data
    export TRINE_SHARE_GPU=1
    status=0
    for ranks in 2 4; do
        results "$ranks ranks: " timeout --foreground 38 mpiexec -n "$ranks" "$build/trine" verify configs/tiny-l.yaml data=1 "data=$ranks" \
            "data=$((ranks / 2)),tensor=2" "data=$((ranks / 2)),pipeline=2" device.kind=cuda data.train="$build/data/tiny" || status=1
    done
    return $status
}

part_operations() {
    results "" "$tests/device/op_bench"
}

# NAME LAYERS HIDDEN HEADS FFN VOCAB SEQUENCE SEQUENCES of the models that are measured.
models() {
    echo "124M 12 768 12 3072 50304 1024 16"
    echo "1.3B-shaped 4 2048 16 5504 32000 2048 8"
    echo "7B-shaped 2 4096 32 11008 32000 2048 4"
}

# TOKENS_PER_S of NAME ... SEQUENCES: model FLOP per token are 6 per parameter outside the embedding and 12 layers hidden sequence.
rate() {
    echo "$@" | awk -v peak="$peak" '{
        tokens = $2; layers = $4; hidden = $5; ffn = $7; vocab = $8; sequence = $9
        flop = 6 * (layers * (4 * hidden * hidden + 3 * hidden * ffn) + vocab * hidden) + 12 * layers * hidden * sequence
        printf "result: %s, %s: %.0f tokens/s, %.1f TFLOP/s, MFU %.1f%%\n", $3, $1, tokens, tokens * flop / 1e12, tokens * flop / peak / 1e10
    }'
}

# One that fails does not stop the next, here and below.
part_training() {
    status=0
    models >"$build/models"
    while read -r name layers hidden heads ffn vocab sequence sequences; do
        if ! timeout --foreground 30 "$tests/train_bench" configs/bench-134m.yaml --steps 10 --warmup 3 --no-peak device.kind=cuda model.layers="$layers" \
            model.hidden="$hidden" model.heads="$heads" model.kv_heads="$heads" model.ffn="$ffn" model.vocab="$vocab" \
            train.seq_len="$sequence" train.micro_batch="$sequences" train.global_batch="$sequences" >"$build/train_bench.out" </dev/null; then
            cat "$build/train_bench.out"
            echo "result: trine, $name: FAILED"
            status=1
            continue
        fi
        cat "$build/train_bench.out"
        rate trine "$(sed -n 's/^result .*tokens_per_s=\([0-9.]*\).*/\1/p' "$build/train_bench.out")" \
            "$name" "$layers" "$hidden" "$heads" "$ffn" "$vocab" "$sequence"
    done <"$build/models"
    return $status
}

part_pytorch() {
    python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || { echo "no PyTorch with CUDA here"; exit 77; }
    status=0
    models >"$build/models"
    while read -r name layers hidden heads ffn vocab sequence sequences; do
        if ! timeout --foreground 60 python3 tests/bench/pytorch_rival.py --device cuda --mode compile --dtype bf16-autocast --steps 10 --warmup 3 --layers "$layers" \
            --hidden "$hidden" --heads "$heads" --ffn "$ffn" --vocab "$vocab" --seq "$sequence" --micro-batch "$sequences" \
            >"$build/pytorch.out" </dev/null; then
            cat "$build/pytorch.out"
            echo "result: pytorch, $name: FAILED"
            status=1
            continue
        fi
        cat "$build/pytorch.out"
        rate pytorch "$(sed -n 's/.*"tokens_per_s": \([0-9.]*\).*/\1/p' "$build/pytorch.out")" \
            "$name" "$layers" "$hidden" "$heads" "$ffn" "$vocab" "$sequence"
    done <"$build/models"
    return $status
}

"part_$part"
