#!/usr/bin/env bash
# usage: run.sh OUT_DIR [options of scripts/gpu-check.sh]
#
# Beside pack.tar.xz (scripts/gpu-pack.mjs): unpacks it once, into TROUPE_GPU_DIR (default /tmp/troupe-gpu-<checksum>), and runs the
# check there. The next call on the same machine finds it unpacked, and goes on behind what is done. A pack made --beside-checkout
# takes the rest from the checkout that it lies in.
set -uo pipefail
[ $# -gt 0 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
pack=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/pack.tar.xz
[ -f "$pack" ] || { echo "run.sh: $pack is missing" >&2; exit 2; }
sum=$(sha256sum "$pack") || exit 2
dir=${TROUPE_GPU_DIR:-/tmp/troupe-gpu-${sum:0:12}}
if ! [ -f "$dir/.unpacked" ]; then
  mkdir -p "$dir" || exit 2
  if command -v xz >/dev/null; then
    tar -xJf "$pack" --ignore-zeros -C "$dir" || exit 2
  else
    "${PYTHON:-python3}" - "$pack" "$dir" <<'PROGRAM' || exit 2
import sys, tarfile
tarfile.open(sys.argv[1], "r:xz", ignore_zeros=True).extractall(sys.argv[2], filter="fully_trusted")
PROGRAM
  fi
  if [ -s "$dir/from-checkout.txt" ]; then
    checkout=$(dirname "$pack")
    while [ "$checkout" != / ] && ! [ -f "$checkout/CMakeLists.txt" ]; do checkout=$(dirname "$checkout"); done
    [ -f "$checkout/CMakeLists.txt" ] || { echo "run.sh: $pack was made to lie inside a checkout, and lies in none" >&2; exit 2; }
    tar -C "$checkout" -cf - -T "$dir/from-checkout.txt" | tar -xf - -C "$dir" || exit 2
  fi
  touch "$dir/.unpacked"
fi
exec bash "$dir/scripts/gpu-check.sh" "$@"
