#!/usr/bin/env bash
# usage: scripts/gpu-check.sh OUT_DIR [--device cuda|cpu] [--stages a,b] [--again a,b] [--seconds N] [--work DIR] [--resume STATE]
#
# On a GPU machine with no network, from a checkout or an unpacked pack (scripts/gpu-pack.mjs): builds against the torch of its
# Python, tests, trains and measures on the GPU, in stages (--list). OUT_DIR gets summary.txt, state.json and results.tar.gz (all
# logs) after each stage, and running.log of the one that runs. A stage that is done is not repeated by the next call.
#   --device cpu      rehearses all of it without a GPU
#   --stages a,b      only these
#   --again a,b       these once more, done or failed
#   --seconds N       all of this call, 570: what does not fit is left for the next one
#   --work DIR        where logs and state are kept between calls (default .troupe/gpu-check-DEVICE)
#   --resume STATE    a state.json of an earlier machine: what was done there is done
# Ends with 0 when all is done, 1 when something failed, 3 when something is left, 2 when it cannot begin. It reads:
#   NODE              the Node binary (default: .node/bin/node of the pack, else node of the PATH)
#   PYTHON            the Python with torch (default python3)
#   TROUPE_LIBTORCH   a LibTorch instead of that torch
set -uo pipefail

refuse() {
  echo "gpu-check: $*" >&2
  exit 2
}
case ${1:-} in
  '' | -h | --help)
    sed -n '2,17s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
root=$PWD

node=${NODE:-}
[ -n "$node" ] || { [ -x "$root/.node/bin/node" ] && node=$root/.node/bin/node; }
[ -n "$node" ] || node=$(command -v node)
[ -n "$node" ] && [ -x "$node" ] || refuse 'no Node.js: put it on the PATH, in .node/bin/node, or name it in NODE'
[ -d node_modules/cmake-js ] || refuse 'node_modules/ is missing: run npm ci where there is a network and bring it along'
# Its path, not its name: the directory of Node, which comes first on the PATH below, may hold another.
PYTHON=$(command -v "${PYTHON:-python3}") || refuse "no ${PYTHON:-python3}: name a Python with torch in PYTHON"
if [ -z "${TROUPE_LIBTORCH:-}" ]; then
  TROUPE_LIBTORCH=$("$PYTHON" -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null) ||
    refuse "$PYTHON cannot import torch; set PYTHON or TROUPE_LIBTORCH"
fi
export TROUPE_LIBTORCH TROUPE_PYTHON=$PYTHON
export PATH="$(cd "$(dirname "$node")" && pwd):$PATH"
# cmake, ctest and ninja may be packages of a Python whose bin/ is not on the PATH.
PATH="$PATH:$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))' 2>/dev/null)"
# nvcc: of the PATH, of a toolkit, or of the wheels beside torch.
for bin in /usr/local/cuda/bin /usr/local/cuda-13*/bin "$(dirname "$TROUPE_LIBTORCH")"/nvidia/*/bin; do
  command -v nvcc >/dev/null || { [ -x "$bin/nvcc" ] && PATH="$PATH:$bin"; }
done
for tool in cmake ctest g++ tar; do
  command -v "$tool" >/dev/null || refuse "no $tool on the PATH or beside $PYTHON"
done
# Where there is no network the peers' packages must be missed at once, not after pip's retries.
export PIP_RETRIES=0 PIP_DEFAULT_TIMEOUT=5
# A virtual machine may show little of its memory until it is used: the build must not size itself by that.
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
cd "$here" && exec "$node" "$root/scripts/gpu_check/main.mjs" "$@"
