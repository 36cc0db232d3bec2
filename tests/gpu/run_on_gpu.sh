#!/usr/bin/env bash
# The product and its GPU tests on a machine with a card. Travels in the bundle (deploy/bundle.sh --with-tests).
#   tests/gpu/run_on_gpu.sh [--out DIR] [--no-tests] [what follows goes to end_to_end.py]
# Programs come from the bundle this lies in, else from build/cuda. Exit status: 0 when all passed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=$root/bin tests=$root/tests/bin
[ -x "$bin/soupd" ] || { bin=$root/build/cuda/bin; tests=$root/build/cuda/tests; }
[ -x "$bin/soupd" ] || { echo "$0: neither $root/bin nor $bin has programs" >&2; exit 1; }
out=$PWD/gpu-results run_tests=yes
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift 2 ;;
    --no-tests) run_tests=no; shift ;;
    *) break ;;
  esac
done
mkdir -p "$out"
failed=0
python3 "$here/end_to_end.py" --bin "$bin" --tokenizer "$root/tests/cases/_base/bytes" --out "$out" "$@" || failed=1
if [ "$run_tests" = yes ]; then
  export SOUP_REQUIRE_GPU=1 SOUP_TEST_BACKEND=cuda SOUP_TEST_DATA=$root/tests SOUP_TEST_BIN=$bin
  for test in cuda_same_bits_test daemon_device_test daemon_crash_test; do
    [ -x "$tests/$test" ] || { echo "not in this bundle: $test"; continue; }
    if timeout 240 "$tests/$test" --gtest_brief=1 >"$out/$test.log" 2>&1; then
      echo "ok: $test"
    else
      failed=1
      echo "FAILED: $test"
      tail -n 40 "$out/$test.log"
    fi
  done
  for model in llama llama31 smollm; do
    [ -x "$tests/golden_check" ] || continue
    if timeout 120 "$tests/golden_check" "$root/tests/golden/$model" --backend cuda >"$out/golden_$model.log" 2>&1; then
      echo "ok: golden_check $model"
    else
      failed=1
      echo "FAILED: golden_check $model"
      tail -n 20 "$out/golden_$model.log"
    fi
  done
fi
exit "$failed"
