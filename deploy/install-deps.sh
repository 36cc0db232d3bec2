#!/usr/bin/env bash
# Installs what soupd needs to build, test and run on a Debian 12 machine (root, or sudo when it is there).
#   deploy/install-deps.sh            everything
#   deploy/install-deps.sh --runtime  only what the built programs need
# Python is used by tests and by the quickstart's model fetch only; its packages go into a virtual environment that the
# scripts make themselves. CUDA is found, not required: nothing of it is installed here.
set -euo pipefail

build_packages=(
  g++ clang clang-format clang-tidy cmake ninja-build ccache pkg-config git ca-certificates
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  librocksdb-dev libsqlite3-dev prometheus-cpp-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev libopenblas-dev libsystemd-dev libssl-dev zlib1g-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  prometheus openssl curl python3 python3-venv iproute2 procps patchelf
)
runtime_packages=(
  libgrpc++1.51 libprotobuf32 librocksdb7.8 libsqlite3-0 libprometheus-cpp-pull1.0
  libyaml-cpp0.7 libpcre2-8-0 libutf8proc2 libxxhash0 libopenblas0-pthread libsystemd0 libssl3
)

packages=("${build_packages[@]}")
case "${1:-}" in
  "") ;;
  --runtime) packages=("${runtime_packages[@]}") ;;
  *) echo "usage: $0 [--runtime]" >&2; exit 2 ;;
esac

if ! command -v apt-get >/dev/null; then
  echo "$0: needs apt-get (Debian 12). On another system install: ${packages[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "$0: run as root, or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "every package is already installed" >&2
  exit 0
fi
echo "installing: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -q
# prometheus (used by a test only) must not start a server of its own on this machine.
policy=/usr/sbin/policy-rc.d
made_policy=
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod +x "$policy"
  made_policy=1
fi
trap '[ -z "$made_policy" ] || "${as_root[@]}" rm -f "$policy"' EXIT
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
