#!/bin/sh
# run.sh [--all]: installs what is missing, builds, runs the tests. The last line is "N passed, N failed, N skipped"; the exit
# code is 0 only when tests ran and none failed. --all adds the long suites (label slow; hours).
#
# build/ holds the build, build/tests.log what every test printed. Nothing is built again that has not changed.
set -eu
cd "$(dirname "$0")/.."

all=
for argument in "$@"; do
    case $argument in
    --all) all=yes ;;
    *) echo "usage: tests/run.sh [--all]" >&2; exit 2 ;;
    esac
done

if ! ./launch/build.sh all; then
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi

# Tests on several ranks run alone (RUN_SERIAL), the others two at a time.
selection="--label-exclude ^slow\$"
[ -z "$all" ] || selection=
rm -f build/tests.xml
status=0
ctest --test-dir build --parallel 2 --output-on-failure --output-log build/tests.log --output-junit tests.xml \
    $selection || status=$?

# One <testcase> element per test, with its outcome as an attribute. Of those that did not run only the ones that ended with the
# code for "skipped" or are disabled were skipped; the others have no program.
count() { grep -c "$1" build/tests.xml || true; }
passed=0 failed=0 skipped=0
if [ -f build/tests.xml ]; then
    passed=$(count '<testcase .*status="run"')
    skipped=$(($(count '<skipped message="SKIP_') + $(count '<testcase .*status="disabled"')))
    failed=$(($(count '<testcase ') - passed - skipped))
fi
if [ $((passed + failed)) = 0 ]; then
    echo "error: no test ran"
    status=1
elif [ "$failed" != 0 ]; then
    echo "Failed: what they printed is above and in build/tests.log"
    status=1
fi
echo "$passed passed, $failed failed, $skipped skipped"
exit "$status"
