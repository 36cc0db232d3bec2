#!/usr/bin/env bash
# The test command: installs what is missing, builds everything, runs every test, prints how many passed.
#   tests/run.sh                       all
#   tests/run.sh -L unit               what follows goes to ctest
#   SOUP_PRESET=asan tests/run.sh      another preset
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${SOUP_PRESET:-cpu}

deploy/install-deps.sh
cmake --preset "$preset" -DSOUP_BUILD_TESTS=ON >/dev/null
cmake --build --preset "$preset"
# Tests that start daemons share the cores with each other: two at a time.
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j 2 "$@"
