#!/usr/bin/env bash
# Makes a folder and a tarball that run on another x86-64 Linux machine with glibc >= 2.36, without packages: programs in bin/, the
# shared libraries they need in lib/ (found by their own rpath). glibc, the NVIDIA driver and the CUDA 13 libraries stay the
# machine's: cuBLASLt is looked for where LD_LIBRARY_PATH and the system's loader look, and in /usr/local/cuda/lib64.
#   deploy/bundle.sh [--with-tests] [--xz] [BUILD_DIR [OUT_DIR]]     default: build/cpu, out/soupd-<version>-x86_64
# --with-tests: the GPU tests and their data too; on the other machine: tests/gpu/run_on_gpu.sh. --xz: a tarball of half the
# size, OUT_DIR.tar.xz, that takes a minute to make.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
with_tests=no
compress=gz
while [ $# -gt 0 ]; do
  case $1 in
    --with-tests) with_tests=yes; shift ;;
    --xz) compress=xz; shift ;;
    -*) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) break ;;
  esac
done
build=${1:-$root/build/cpu}
version=$(sed -n 's/^project(soupd VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
out=${2:-$root/out/soupd-$version-x86_64}
command -v patchelf >/dev/null || { echo "$0: needs patchelf (apt-get install patchelf)" >&2; exit 1; }

rm -rf "$out"
mkdir -p "$out/bin" "$out/lib"
for program in soupd soup-worker soupctl soup-bench; do
  [ -x "$build/bin/$program" ] || { echo "$0: $build/bin/$program is not built: cmake --build $build" >&2; exit 1; }
  strip -o "$out/bin/$program" "$build/bin/$program"
done
if [ "$with_tests" = yes ]; then
  mkdir -p "$out/tests/bin" "$out/tests/golden"
  for test in cuda_ops_test cudnn_ops_test cuda_same_bits_test cuda_same_bits_matrix_test cuda_long_attention_test golden_check \
      daemon_device_test daemon_crash_test register_bench; do
    [ -x "$build/tests/$test" ] || { echo "$0: $build/tests/$test is not built: cmake --build $build --target $test" >&2; exit 1; }
    strip -o "$out/tests/bin/$test" "$build/tests/$test"
  done
  cp -r "$root/tests/gpu" "$root/tests/cases" "$out/tests/"
  rm -rf "$out/tests/gpu/__pycache__"
  for config in "$root"/tests/golden/*/config.json; do
    cp -r "$(dirname "$config")" "$out/tests/golden/"
  done
fi
# patchelf 0.14 writes over an old rpath in place, and with it over the names of symbols that the linker put into its tail
# ("read" in ".../openblas-pthread"): the old one is taken away first.
set_rpath() { patchelf --remove-rpath "$2" && patchelf --set-rpath "$1" "$2"; }
programs=$(find "$out" -path '*/bin/*' -type f)

# What stays the machine's: the C library's own parts, the driver, CUDA.
stays='^(linux-vdso|ld-linux|libc\.|libm\.|libdl\.|libpthread\.|librt\.|libresolv\.|libcuda|libnvidia|libcublas|libcudnn|libcudart|libnvrtc)'
ldd $programs | awk '/=> \// {print $3}' | sort -u | while read -r library; do
  name=$(basename "$library")
  [[ $name =~ $stays ]] && continue
  cp -L "$library" "$out/lib/$name"
  strip --strip-unneeded "$out/lib/$name" 2>/dev/null || true
  set_rpath '$ORIGIN' "$out/lib/$name"
done
for program in $programs; do
  up=..
  [[ $program != "$out"/tests/* ]] || up=../..
  set_rpath "\$ORIGIN/$up/lib:/usr/local/cuda/lib64" "$program"
done
cp "$root/README.md" "$out/"
mkdir -p "$out/deploy"
cp -r "$root/deploy/examples" "$root/deploy/systemd" "$root/deploy/grafana" "$root/deploy/prometheus" "$out/deploy/"

# It must start from itself alone, every symbol found at once.
for program in $programs; do
  if broken=$(env -i LD_BIND_NOW=1 ldd -r "$program" 2>&1 | grep 'undefined symbol' | grep -vE 'cublas'); then
    echo "$0: $program would not run: $broken" >&2
    exit 1
  fi
  if missing=$(env -i LD_LIBRARY_PATH= ldd "$program" | grep 'not found' | grep -vE 'libcu|libnv'); then
    echo "$0: $program would not start: $missing" >&2
    exit 1
  fi
done
# And from its own libraries: what else it finds must be what stays the machine's.
started=0
here=$(realpath "$out")
for program in $programs; do
  if strange=$(env -i ldd "$program" | awk '/=> \// {print $3}' | xargs -r realpath -s | grep -vE "^$here/lib/" | grep -vE "/${stays#^}"); then
    echo "$0: $program would take from the machine: $strange" >&2
    exit 1
  fi
  [[ $program != */register_bench ]] || continue  # takes no words: it measures at once
  ask=--help
  [[ $program != *_test ]] || ask=--gtest_list_tests
  if ! env -i HOME=/nonexistent "$program" $ask >"$out.started" 2>&1; then
    # Without the driver's or CUDA's libraries on the machine that makes it, a bundle cannot be tried there.
    if grep -qE 'libcu|libnv' "$out.started"; then continue; fi
    echo "$0: $program $ask does not start: $(head -c 2000 "$out.started")" >&2
    exit 1
  fi
  started=$((started + 1))
done
rm -f "$out.started"
XZ_OPT=-T0 tar -C "$(dirname "$out")" --auto-compress -cf "$out.tar.$compress" "$(basename "$out")"
echo "$out.tar.$compress: $(du -h "$out.tar.$compress" | cut -f1), $(ls "$out/lib" | wc -l) libraries, $started programs started"
