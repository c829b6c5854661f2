#!/bin/bash
# The scripts of this folder refuse words that they do not know, and an archive that pack.sh did not finish is not left behind. In a copy of the folder, so that
# nothing of the tree is touched.
set -u
failed=0
copy=$(mktemp -d) || exit 1
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/tests" && cp -r tests/device "$copy/tests/" || exit 1

# refused WORD...: a command that ends with exit code 2 and a line on stderr that says how it is called, or what there is.
refused()
{
    timeout 60 sh "$copy/tests/device/$1" "${@:2}" >"$copy/out" 2>"$copy/err"
    code=$?
    [ $code -eq 2 ] && grep -q 'usage: \|there are: ' "$copy/err" && return
    echo "FAILED: $*: exit code $code: $(cat "$copy/err")"
    failed=1
}
refused run.sh --fast
refused run.sh --parts
refused run.sh --parts 'build none-such'
refused pack.sh --help
refused pack.sh elsewhere

# Ended while it writes: a tar that takes its time.
mkdir "$copy/bin"
cat >"$copy/bin/tar" <<'END'
#!/bin/sh
for word; do
    case $word in */build-pack/*) echo half >"$word" ;; esac
done
kill -TERM $PPID
sleep 1
END
chmod +x "$copy/bin/tar"
PATH=$copy/bin:$PATH timeout 60 sh "$copy/tests/device/pack.sh" >"$copy/out" 2>"$copy/err"
code=$?
if [ $code -eq 0 ] || [ -n "$(ls -A "$copy/build-pack")" ]; then
    echo "FAILED: pack.sh that was ended: exit code $code, in build-pack: $(ls -A "$copy/build-pack"): $(cat "$copy/err")"
    failed=1
fi
[ $failed -eq 0 ] && echo passed
exit $failed
