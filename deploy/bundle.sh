#!/usr/bin/env bash
# Makes a folder and a tarball that run on another x86-64 Linux machine with glibc >= 2.36, without packages: programs in bin/, the
# shared libraries they need in lib/ (found by their own rpath). glibc, the NVIDIA driver and the CUDA libraries stay the machine's.
#   deploy/bundle.sh [BUILD_DIR [OUT_DIR]]     default: build/cpu, out/soupd-<version>-x86_64
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
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

# What stays the machine's: the C library's own parts, the driver, CUDA.
stays='^(linux-vdso|ld-linux|libc\.|libm\.|libdl\.|libpthread\.|librt\.|libresolv\.|libcuda|libnvidia|libcublas|libcudnn|libcudart|libnvrtc)'
ldd "$out"/bin/* | awk '/=> \// {print $3}' | sort -u | while read -r library; do
  name=$(basename "$library")
  [[ $name =~ $stays ]] && continue
  cp -L "$library" "$out/lib/$name"
  strip --strip-unneeded "$out/lib/$name" 2>/dev/null || true
  patchelf --set-rpath '$ORIGIN' "$out/lib/$name"
done
for program in "$out"/bin/*; do patchelf --set-rpath '$ORIGIN/../lib' "$program"; done
cp "$root/README.md" "$out/"
mkdir -p "$out/deploy"
cp -r "$root/deploy/examples" "$root/deploy/systemd" "$root/deploy/grafana" "$root/deploy/prometheus" "$out/deploy/"

# It must start from itself alone.
for program in soupd soup-worker soupctl soup-bench; do
  if missing=$(env -i LD_LIBRARY_PATH= ldd "$out/bin/$program" | grep 'not found' | grep -vE 'libcu|libnv'); then
    echo "$0: $program would not start: $missing" >&2
    exit 1
  fi
done
tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")"
echo "$out.tar.gz: $(du -h "$out.tar.gz" | cut -f1), $(ls "$out/lib" | wc -l) libraries"
