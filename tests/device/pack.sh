#!/bin/sh
# pack.sh: what tests/device/run.sh needs to build Trine on a machine that lacks the libraries and has no network, gathered from this
# machine, where ./launch/deps.sh has installed them: build-pack/trine-libraries.tar.gz, which git ignores. Carry it along with the tree.
#
# In it, as below /: headers, shared libraries with all that they need but the C and C++ run-time libraries, pkg-config with its files,
# oneDNN's and cmocka's CMake files, and MPICH's mpiexec. The other machine has a processor of the same kind, a C and a C++ compiler
# with OpenMP, CMake, ninja or make, the CUDA toolkit, and a C library that is no older than this one's.
set -eu
if [ $# -gt 0 ]; then
    echo "usage: tests/device/pack.sh" >&2
    exit 2
fi
cd "$(dirname "$0")/../.."
out=$PWD/build-pack
if ! multiarch=$(cc -print-multiarch) || [ -z "$multiarch" ]; then
    echo "error: pack.sh knows Debian's folders only, and this compiler names none (cc -print-multiarch)" >&2
    exit 1
fi
lib=/usr/lib/$multiarch
list=$(mktemp)
trap 'rm -f "$list" "$list.all" "$list.program" "$out/part.$$"' EXIT
trap 'exit 1' INT TERM

# Files that must be there.
for path in /usr/bin/mpiexec.hydra /usr/bin/hydra_pmi_proxy /usr/bin/pkgconf \
    "$lib/libmpich.so" "$lib/libdnnl.so" "$lib/libyaml.so" "$lib/libzstd.so" "$lib/libjansson.so" "$lib/libxxhash.so" \
    "$lib/libz.so" "$lib/libcmocka.so" "/usr/include/$multiarch/mpich" "$lib/cmake/dnnl" "$lib/cmake/cmocka"; do
    if [ ! -e "$path" ]; then
        echo "error: $path is missing; ./launch/deps.sh installs what is packed" >&2
        exit 1
    fi
    echo "$path"
done >"$list.all"
ls /usr/include/dnnl*.h /usr/include/yaml.h /usr/include/zstd*.h /usr/include/jansson*.h /usr/include/xxh*.h /usr/include/zlib.h \
    /usr/include/zconf.h /usr/include/cmocka*.h >>"$list.all"
ls -d /usr/include/oneapi >>"$list.all"
# The CMake files of oneDNN may ask for OpenCL.
ls -d /usr/include/CL "$lib"/libOpenCL.so* >>"$list.all" 2>/dev/null || true
ls "$lib"/pkgconfig/yaml-0.1.pc "$lib"/pkgconfig/libzstd.pc "$lib"/pkgconfig/jansson.pc "$lib"/pkgconfig/libxxhash.pc \
    "$lib"/pkgconfig/zlib.pc "$lib"/pkgconfig/cmocka.pc >>"$list.all"

# Links with all that they point to; libraries with all that they need.
links() {
    while read -r path; do
        echo "$path"
        while [ -L "$path" ]; do
            target=$(readlink "$path")
            case $target in
            /*) path=$target ;;
            *) path=$(dirname "$path")/$target ;;
            esac
            echo "$path"
        done
    done
}
needs() {
    while read -r path; do
        [ -f "$path" ] && ldd "$path" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
    done | sed 's|^/lib/|/usr/lib/|' |
        grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|libgomp)\.so' || true
}
links <"$list.all" >"$list"
# A program that needs the libraries by the names under which programs look for them.
echo 'int main(void) { return 0; }' | cc -x c - -Wl,--no-as-needed -lmpich -ldnnl -lyaml -lzstd -ljansson -lxxhash -lz -lcmocka -o "$list.program"
{
    cat "$list"
    echo "$list.program"
} | needs | sort -u | links >>"$list"
sort -u "$list" | sed 's|^/||' >"$list.all"
mkdir -p "$out"
tar -C / -czf "$out/part.$$" -T "$list.all"
mv "$out/part.$$" "$out/trine-libraries.tar.gz" # whole, or not there
echo "$out/trine-libraries.tar.gz: $(du -m "$out/trine-libraries.tar.gz" | cut -f 1) MiB"
