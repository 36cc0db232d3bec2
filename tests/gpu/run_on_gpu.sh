#!/usr/bin/env bash
# All that a card has to show, in one command. Travels in the bundle (deploy/bundle.sh --with-tests).
#   tests/gpu/run_on_gpu.sh [--only PART,...] [--limit SECONDS] [--out DIR] [--list] [--backend cpu] [-- for end_to_end.py]
# Each part runs with a time limit and a log of its own, and the next one whatever became of it; at the end a table
# (DIR/summary.txt) and everything in DIR.tar.gz. --only takes parts and the groups `correct`, `product` and `sanitizers`,
# which last about ten minutes: better its parts apart. --limit (570): no part runs beyond that many seconds from the
# start. --list says what would run and how long it should take. --backend cpu tries the command itself on a machine
# without a card: small shapes.
# Programs come from the bundle this lies in, else from build/cuda. Exit status: 0 all passed, 1 one failed or ran out of
# time, 77 none failed and some were skipped (no card, no cuDNN, no sanitizer).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=$root/bin tests=$root/tests/bin
[ -x "$bin/soupd" ] || { bin=$root/build/cuda/bin; tests=$root/build/cuda/tests; }

# In order of importance: name, seconds that an H200 should need, limit, group.
parts='
ops             30 120 correct
cudnn_ops       20  90 correct
same_bits       40 180 correct
long_attention  20  90 correct
golden          45 150 correct
matrix_8b      120 240 correct
matrix_deep     60 150 correct
end_to_end      70 240 product
bench          100 240 product
daemon          60 200 product
memcheck        20 240 sanitizers
racecheck      240 360 sanitizers
racecheck_fp32 110 360 sanitizers
'
skipped=77
# Golden folders. All are so small that by default they run in fp32; bf16, which models of real size run, is asked for (with experts
# its roundings choose others: docs/NUMERICS.md).
dense_models='llama llama31 smollm mistral phi3 qwen2 qwen3 gemma2 gemma3' sparse_models='mixtral qwen3_moe'

# ---- parts: exit 0, 77 or something else, and leave a line in $note ----

# Programs with gtest, all at once: each "LOG PROGRAM ARGUMENTS...", one a line.
gtests() {
  local status=0 pids=() pid line log
  while read -r line; do
    log=$out/${line%% *}
    set -f  # filters hold asterisks
    ${line#* } >"$log" 2>&1 &
    set +f
    pids+=($!)
    logs+=("$log")
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  local passed failed skips
  passed=$(sum_of PASSED "${logs[@]}") skips=$(sum_of SKIPPED "${logs[@]}") failed=$(sum_of FAILED "${logs[@]}")
  echo "$passed passed, $skips skipped, $failed failed" >"$note"
  grep -hE '^\[  FAILED  \] [^0-9]' "${logs[@]}" | grep -v ' ms)$' | sort -u | head -n 40
  [ "$status" = 0 ] || return 1
  [ "$passed" -gt 0 ] || return $skipped
}
# The numbers of "[  PASSED  ] N tests." lines.
sum_of() { grep -hoE "^\[ +$1 +\] [0-9]+ test" "${@:2}" | grep -oE '[0-9]+' | awk '{n += $1} END {print n + 0}'; }

# A gtest program in so many shards at once: SHARDS PROGRAM ARGUMENTS...
sharded() {
  local shards=$1 i logs=()
  shift
  [ -x "$1" ] || { echo "$1 is not here: build it, or make the bundle anew" >"$note"; return 1; }
  gtests < <(for ((i = 0; i < shards; ++i)); do
    echo "$part.$i.log env GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i $*"
  done)
}

part_ops() { sharded 4 "$tests/cuda_ops_test"; }
part_cudnn_ops() { sharded 2 "$tests/cudnn_ops_test"; }
part_same_bits() { sharded 2 "$tests/cuda_same_bits_test"; }
part_long_attention() { sharded 1 "$tests/cuda_long_attention_test"; }
part_matrix_8b() { matrix Wide; }
part_matrix_deep() { matrix Deep; }
matrix() {
  local status=0
  sharded 1 "$tests/$matrix_test" "--gtest_filter=*.$1" || status=$?
  grep -E '^#|DIFFERS|FAILED' "$out/$part.0.log"
  grep -E '^# .* runs the same' "$out/$part.0.log" >>"$note"
  return $status
}

# MODEL:PRECISION
golden_one() {
  local model=${1%:*} precision=${1#*:} status=0
  local log=$out/golden.$model.$precision.log
  "$tests/golden_check" "$root/tests/golden/$model" --backend "$backend" --precision "$precision" --or-skip >"$log" 2>&1 || status=$?
  case $status in
    0) echo "ok $1" ;;
    "$skipped") echo "skipped $1" ;;
    *) echo "FAILED $1: $(grep -c ' PASS$' "$log") checks within bounds, $(grep -c ' FAIL$' "$log") not"
       if grep -q ' FAIL$' "$log"; then grep ' FAIL$' "$log" | head -n 5; else tail -n 2 "$log"; fi ;;
  esac
}
part_golden() {
  local log=$out/golden.verdicts all runs
  runs=$(printf '%s:auto ' $dense_models $sparse_models)
  [ "$backend" = cpu ] || runs+=$(printf '%s:bf16 ' $dense_models)
  export -f golden_one
  export out tests root backend skipped
  printf '%s\n' $runs | xargs -P 4 -I{} bash -c 'golden_one {}' >"$log"
  cat "$log"
  all=$(wc -w <<<"$runs")
  echo "$(grep -c '^ok' "$log") of $all runs within bounds" >"$note"
  [ "$(grep -cE '^(ok|skipped)' "$log")" = "$all" ] || return 1
  grep -q '^ok' "$log" || return $skipped
}

part_end_to_end() {
  [ "$backend" = cpu ] || need_card || return $skipped
  local shape=(--precision bf16)
  [ "$backend" = cuda ] || shape=(--shape tiny --steps 12 --length 128)
  python3 "$here/end_to_end.py" --bin "$bin" --tokenizer "$root/tests/cases/_base/bytes" --out "$out" --backend "$backend" \
    --patience 60 "${shape[@]}" "${end_to_end_arguments[@]}" >"$out/end_to_end.log" 2>&1
  local status=$?
  grep -E '^(ok|FAILED|undisturbed)' "$out/end_to_end.log"
  [ "$status" = 0 ] || tail -n 20 "$out/end_to_end.log"
  echo "$(grep -c '^ok' "$out/end_to_end.log") parts ok, $(grep -c '^FAILED' "$out/end_to_end.log") failed" >"$note"
  return $status
}

part_daemon() {
  [ "$backend" = cpu ] || need_card || return $skipped
  local logs=()
  gtests <<<"$part.device.log $tests/daemon_device_test
$part.crash.log $tests/daemon_crash_test"
}

# The table of docs/BENCHMARKS.md. Budgets are arena bytes.
bench_rows() {
  if [ "$backend" = cpu ]; then
    echo 'base=smollm-135m batch=1 seq=32 budget=2GB steps=1 warmup=1'
    echo 'base=smollm-135m format=bf16 batch=1 seq=32 slots=all resident=all retention=keep head=resident steps=1 warmup=1'
    return
  fi
  cat <<'ROWS'
batch=1 seq=512 budget=1.0GB steps=8
batch=1 seq=512 slots=2 steps=8
batch=1 seq=512 budget=3.4GB steps=8
batch=1 seq=512 budget=6.5GB steps=8
batch=4 seq=512 budget=6.2GB steps=5
batch=8 seq=512 budget=9.9GB steps=5
batch=32 seq=512 budget=32GB
batch=32 seq=512 budget=60GB
batch=4 seq=4096 budget=32GB
batch=1 seq=16384 budget=46GB
format=bf16 batch=1 seq=512 budget=1.7GB
format=bf16 batch=1 seq=512 budget=4.05GB
format=bf16 batch=4 seq=512 budget=6.85GB
format=bf16 batch=8 seq=512 budget=10.6GB
format=bf16 batch=8 seq=512 slots=all resident=all retention=keep head=resident steps=8
format=bf16 values=nf4 batch=8 seq=512 slots=all resident=all retention=keep head=resident steps=8
format=bf16 batch=32 seq=512 budget=32.9GB
format=bf16 batch=4 seq=4096 budget=32.9GB
base=llama-70b batch=1 seq=512 budget=3.0GB
ROWS
}
part_bench() {
  [ "$backend" = cpu ] || need_card || return $skipped
  local command status=0
  bench_rows >"$out/bench.rows"
  command=("$bin/soup-bench" --backend "$backend" --keep-going --rows "$out/bench.rows" --json "$out/bench.json")
  if [ "$backend" = cuda ]; then
    command+=(--base llama-8b --gemm-profile "$out/bench.gemms" --warmup 1 --steps 3 --breakdown)
  else
    command+=(--quick-ceilings)
  fi
  echo "\$ ${command[*]}" | tee "$out/bench.log"
  "${command[@]}" >>"$out/bench.log" 2>&1 || status=1
  [ -s "$out/bench.json" ] || tail -n 20 "$out/bench.log"
  python3 "$here/check_rows.py" "$out/bench.json" "$(wc -l <"$out/bench.rows")" | tee "$out/bench.marks" || status=1
  tail -n 1 "$out/bench.marks" >"$note"
  return $status
}

# compute-sanitizer in $run, over kernels whose names hold one of the words; tries it on one case: TOOL WORDS...
sanitizer() {
  local tool=$1 only=() sanitizer help word flag
  shift
  need_card || return $skipped
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
  [ -n "$sanitizer" ] || { echo "no compute-sanitizer on this machine" >"$note"; return $skipped; }
  help=$("$sanitizer" --help 2>&1)
  case $help in
    *--kernel-name*) flag=--kernel-name ;;
    *) flag=--kernel-regex ;;  # its name before 2025
  esac
  for word in "$@"; do only+=("$flag" "kns=$word"); done
  run="$sanitizer --tool $tool ${only[*]} --max-connections 64"
  $run --error-exitcode 9 "$tests/cuda_ops_test" '--gtest_filter=*MatchesFloat64/adamw_n3_t1' >"$out/$part.first.log" 2>&1 && return
  cat "$out/$part.first.log"
  if grep -qiE 'not supported|unable to' "$out/$part.first.log"; then
    echo "compute-sanitizer does not work here: $(grep -iE -m1 'not supported|unable to' "$out/$part.first.log")" >"$note"
    return $skipped
  fi
  echo "its first case failed" >"$note"
  return 1
}
# Lines for gtests: op cases in shards, NAME FILTER SHARDS; golden runs, MODEL:PRECISION...
sanitized_ops() {
  local i
  for ((i = 0; i < $3; ++i)); do
    echo "$part.$1.$i.log env GTEST_TOTAL_SHARDS=$3 GTEST_SHARD_INDEX=$i $run $tests/cuda_ops_test --gtest_filter=$2"
  done
}
# Our own attention in cuDNN's place.
sanitized_attention() { echo "$part.ops.attention.log $run $tests/cudnn_ops_test --gtest_filter=*MatchesFloat64*_own:*Own*"; }
# Algorithms of products are chosen before, without the tool: under it their timing would be most of the work.
sanitized_golden() {
  local one name check
  for one in "$@"; do
    name=${one/:/.}
    check="$tests/golden_check $root/tests/golden/${one%:*} --precision ${one#*:} --backend cuda --gemm-profile $out/$part.$name.gemms"
    $check >"$out/$part.$name.plain.log" 2>&1
    echo "$part.golden.$name.log $run $check"
  done
}
# Says which runs were not clean: LOGS...
sanitizer_verdict() {
  if [ $# -gt 0 ]; then
    echo "not clean: $(basename -a "$@" | tr '\n' ' ')" >>"$note"
    return 1
  fi
  echo "clean: $(ls "$out/$part".*.*.log | wc -l) runs" >>"$note"
}

# Our kernels, all in namespace soup; the libraries' are the libraries' business. golden_check has bounds that are golden's
# business: here the sanitizer's verdict counts. SameBitsTwice would only do the work again.
part_memcheck() {
  local run logs=()
  sanitizer memcheck soup || return
  run+=' --error-exitcode 9'
  gtests < <(sanitized_ops ops '*MatchesFloat64*' 6; sanitized_attention; sanitized_golden llama:bf16 qwen3:bf16 gemma2:bf16 qwen3_moe:auto llama:auto gemma2:auto)
  grep -hE 'ERROR SUMMARY' "$out/$part".*.log | sort | uniq -c
  sanitizer_verdict $(grep -LE 'ERROR SUMMARY: 0 errors' "$out/$part".ops.*.log "$out/$part".golden.*.log)
}
# cuBLASLt's kernels for sm_90 (nvjet) die under racecheck where they are not checked too ("failed to handle a hardware
# exception", 2025.3.1), so they are; the hazards that it sees within them do not count. Cases of gemm are left out: no kernel of
# ours shares memory there. The tiles of smaller cards run where they are compiled (SOUP_ATTENTION_ALL_CLASSES).
part_racecheck() { racecheck racecheck_lines; }
racecheck_lines() {
  local tile_class
  sanitized_golden llama:bf16 gemma2:bf16 qwen3:bf16 qwen3_moe:auto
  sanitized_ops bf16 '*CudaOps.MatchesFloat64*-*gemm*' 6
  for tile_class in 1 2; do
    echo "$part.tiles.$tile_class.log env SOUP_TEST_TILE_CLASS=$tile_class $run $tests/cuda_ops_test --gtest_filter=*CudaOps.MatchesFloat64*attention*"
  done
  sanitized_attention
}
part_racecheck_fp32() { racecheck racecheck_fp32_lines; }
racecheck_fp32_lines() { sanitized_ops fp32 '*CudaF32Ops.MatchesFloat64*-*gemm*' 24; }
# LINES: what prints the lines for gtests.
racecheck() {
  local run logs=() log unclean=()
  sanitizer racecheck soup nvjet || return
  gtests < <("$1")
  grep -hE 'RACECHECK SUMMARY' "$out/$part".*.log | sort | uniq -c
  grep -hE 'access at ' "$out/$part".*.log | sed 's/+0x.*//' | sort | uniq -c
  for log in "${logs[@]}"; do
    # Came to its end, and no hazard in our kernels.
    grep -q 'RACECHECK SUMMARY' "$log" && grep -qE '^\[  PASSED  \]|^# arena planned' "$log" &&
      ! grep -qE 'Internal Sanitizer Error|^\[  FAILED  \]|access at .*soup' "$log" || unclean+=("$log")
  done
  sanitizer_verdict "${unclean[@]}"
}

# ---- what runs ----

need_card() {
  [ "$card" = yes ] || { echo "no card" >"$note"; return 1; }
}

only= limit=570 out=$PWD/gpu-results list=no backend=cuda one=
end_to_end_arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --only) only=$2; shift 2 ;;
    --limit) limit=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --backend) backend=$2; shift 2 ;;
    --list) list=yes; shift ;;
    --one-part) one=$2; shift 2 ;;  # this script calls itself with it, under a time limit
    --) shift; end_to_end_arguments=("$@"); break ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
matrix_test=cuda_same_bits_matrix_test
[ "$backend" = cuda ] || matrix_test=same_bits_matrix_test
card=no
nvidia-smi -L 2>/dev/null | grep -q GPU && card=yes
# Where cuBLASLt and cuDNN lie that came with CUDA.
[ ! -d /usr/local/cuda/lib64 ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64
export SOUP_TEST_BACKEND=$backend SOUP_TEST_DATA=$root/tests SOUP_TEST_BIN=$bin
# With a card nothing may skip for want of one.
[ "$card" = no ] || export SOUP_REQUIRE_GPU=1

if [ "$list" = no ]; then
  [ -x "$bin/soupd" ] || { echo "$0: neither $root/bin nor $bin has programs" >&2; exit 1; }
  mkdir -p "$out"
  out=$(cd "$out" && pwd)
fi
if [ -n "$one" ]; then
  part=$one note=$out/$one.note logs=()
  "part_$one"
  exit
fi

chosen=()
predicted=0
while read -r name seconds most group; do
  [ -n "$name" ] || continue
  case ",$only," in
    ,,|*,"$name",*|*,"$group",*|*,all,*) ;;
    *) continue ;;
  esac
  chosen+=("$name $seconds $most")
  predicted=$((predicted + seconds))
done <<<"$parts"
for name in ${only//,/ }; do
  grep -qwE "$name" <<<"$parts all" || { echo "$0: no part $name; there are:$(awk '{printf " %s", $1}' <<<"$parts"), correct, product, sanitizers" >&2; exit 2; }
done
echo "${#chosen[@]} parts, about $predicted s on an H200, at most $limit s; card: $card"
if [ "$list" = yes ]; then
  printf '%-15s %4s s, at most %s s\n' $(printf '%s ' "${chosen[@]}")
  exit 0
fi

begin=$(date +%s)
failed=0 skips=0
rows=()
for entry in "${chosen[@]}"; do
  read -r name seconds most <<<"$entry"
  rm -f "$out/$name".*
  left=$((limit - ($(date +%s) - begin)))
  [ "$most" -lt "$left" ] || most=$left
  if [ "$left" -lt 10 ]; then
    rows+=("$(printf '%-15s %-8s %6s  %s' "$name" 'NOT RUN' - "the limit of $limit s was reached")")
    failed=1
    continue
  fi
  echo "## $(date +%H:%M:%S) $name, at most $most s"
  start=$(date +%s.%N)
  timeout -k 5 "$most" "$0" --one-part "$name" --out "$out" --backend "$backend" -- "${end_to_end_arguments[@]}" \
    >"$out/$name.txt" 2>&1
  status=$?
  took=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN {printf "%.1f", b - a}')
  head -c 8000 "$out/$name.txt"
  case $status in
    0) verdict=ok ;;
    "$skipped") verdict=skipped; skips=1 ;;
    124|137) verdict=TIMEOUT; failed=1 ;;
    *) verdict=FAILED; failed=1 ;;
  esac
  rows+=("$(printf '%-15s %-8s %6s  %s' "$name" "$verdict" "$took" "$(tr '\n' ';' <"$out/$name.note" 2>/dev/null)")")
done
{
  echo "part            result   seconds  (predicted $predicted in all, took $(($(date +%s) - begin)))"
  printf '%s\n' "${rows[@]}"
} | tee "$out/summary.txt"
tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")"
[ "$failed" = 0 ] || exit 1
[ "$skips" = 0 ] || exit $skipped
