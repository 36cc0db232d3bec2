#!/usr/bin/env bash
# From a fresh clone to a trained adapter, with no questions asked: installs packages, builds, fetches SmolLM2-135M-Instruct,
# starts a private soupd, trains a LoRA adapter on what Unix commands do, and shows where the adapter is.
#   deploy/quickstart.sh [DIR]     DIR keeps the daemon's state, models and the adapter; default: ./.soup/quickstart
# Run it twice: the second run finds the base in the shard cache.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$root/.soup/quickstart}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
build=$root/build/cpu
bin=$build/bin
say() { printf '\n== %s\n' "$*" >&2; }

say "packages"
"$root/deploy/install-deps.sh"

say "build (the first time takes some minutes)"
cmake -S "$root" --preset cpu >/dev/null
cmake --build "$build" --target soupd soup-worker soupctl

say "model"
model=$("$root/deploy/fetch-smollm2.sh" "$dir/models/SmolLM2-135M-Instruct.gguf")

say "a private soupd in $dir/state"
mkdir -p "$dir/state"
socket=$dir/state/soupd.sock
"$bin/soupd" --state-dir "$dir/state" --listen "unix:$socket" --model-root "$dir/models" --metrics-listen 127.0.0.1:0 \
  2>"$dir/soupd.log" &
daemon=$!
# However this script ends, the daemon ends with it: SIGTERM drains, and the job could go on at the next start.
trap 'kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true' EXIT
export SOUP_ENDPOINT=unix:$socket
for attempt in $(seq 100); do
  "$bin/soupctl" node -o name >/dev/null 2>&1 && break
  kill -0 "$daemon" 2>/dev/null || { echo "soupd did not start; its log:" >&2; cat "$dir/soupd.log" >&2; exit 1; }
  [ "$attempt" -lt 100 ] || { echo "soupd did not answer within 20 s; see $dir/soupd.log" >&2; exit 1; }
  sleep 0.2
done

cached=no
"$bin/soupctl" cache ls -o json | grep -q '"fingerprint"' && cached=yes

say "training"
mkdir -p "$dir/run"
cp "$root/deploy/examples/commands.jsonl" "$dir/run/"
sed "s#path: SmolLM2-135M-Instruct.gguf#path: $model#" "$root/deploy/examples/quickstart.yaml" >"$dir/run/quickstart.yaml"
cd "$dir/run"
"$bin/soupctl" submit quickstart.yaml --watch

say "result"
job=$("$bin/soupctl" list -o name | head -n 1)
"$bin/soupctl" metrics "$job" -o json >"$dir/run/steps.json"
python3 - "$dir/run/steps.json" <<'PY'
import json, sys
steps = json.load(open(sys.argv[1]))
steps = steps["steps"] if isinstance(steps, dict) else steps
loss = [float(s["loss"]) for s in steps]
k = max(1, len(loss) // 8)
first, last = sum(loss[:k]) / k, sum(loss[-k:]) / k
print(f"loss: {first:.3f} over the first {k} steps, {last:.3f} over the last {k} ({len(loss)} steps)")
sys.exit(0 if last < 0.8 * first else "the loss did not fall as it should: please report this")
PY
if [ "$cached" = yes ]; then
  echo "base: cache hit, nothing was quantised again"
else
  echo "base: imported into the shard cache; run this script again to see a cache hit"
fi
echo "adapter: $dir/run/adapters/quickstart"
ls -l "$dir/run/adapters/quickstart"
