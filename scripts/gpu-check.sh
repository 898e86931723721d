#!/usr/bin/env bash
# usage: scripts/gpu-check.sh OUT_DIR [--device cuda|cpu]
#
# From a checkout on a GPU machine, with no network: builds against the torch of its Python, runs the GPU tests and the
# conformance tests on the GPU, measures against the peers, and prints a table last. Each step's output is OUT_DIR/<step>.log,
# the benchmark's results OUT_DIR/bench.json, the table OUT_DIR/summary.txt. Ends within 9 minutes. --device cpu rehearses all
# of it without a GPU. Brought along: node_modules/, the peers' Python packages in .troupe/peers/site (`npm run bench -- --peer` puts them
# there), and Node itself where the machine has none.
#   NODE              the Node binary (default: node of the PATH, else .node/bin/node of the checkout)
#   PYTHON            the Python with torch (default python3)
#   TROUPE_LIBTORCH   a LibTorch instead of that torch
set -uo pipefail

usage() {
  sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
device=cuda
out=
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=${2:-}; shift 2 || usage ;;
    --device=*) device=${1#*=}; shift ;;
    -*) usage ;;
    *) [ -z "$out" ] || usage; out=$1; shift ;;
  esac
done
[ -n "$out" ] && { [ "$device" = cuda ] || [ "$device" = cpu ]; } || usage
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

budget=${GPU_CHECK_SECONDS:-530} # of the 9 minutes: the table needs none
# Its path, not its name: the directory of Node, which comes first on the PATH below, may hold another.
PYTHON=$(command -v "${PYTHON:-python3}" || echo "${PYTHON:-python3}")
rows=()
failed=0

# step NAME LIMIT COMMAND...: runs the command for at most LIMIT seconds of what is left, its output in a file.
step() {
  local name=$1 limit=$2 started=$SECONDS left=$((budget - SECONDS)) status
  shift 2
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -le 0 ]; then
    note "$name" "FAILED: no time left" 0
    return 1
  fi
  timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null
  status=$?
  case $status in
    0) note "$name" passed $((SECONDS - started)) ;;
    124) note "$name" "FAILED: not done after $limit s" $((SECONDS - started)) ;;
    *) note "$name" "FAILED: exit code $status" $((SECONDS - started)) ;;
  esac
  return $status
}
note() {
  rows+=("$(printf '%-14s %5s s  %s' "$1" "$3" "$2")")
  echo "[gpu-check $SECONDS s] $1: $2"
  case $2 in FAILED*) failed=1 ;; esac
}
finish() {
  {
    echo
    echo "gpu-check, device $device, $(git rev-parse --short HEAD 2>/dev/null || echo 'no git'), $(date -u +%FT%TZ)"
    [ -s "$out/machine.log" ] && head -3 "$out/machine.log"
    printf '%s\n' "${rows[@]}"
    [ -s "$out/table.txt" ] && cat "$out/table.txt"
    [ "$failed" = 0 ] && echo 'gpu-check: passed' || echo "gpu-check: FAILED, see $out"
  } | tee "$out/summary.txt"
  exit "$failed"
}

# ---- what is there ----
node=${NODE:-$(command -v node || echo "$PWD/.node/bin/node")}
if ! [ -x "$node" ]; then
  note node 'FAILED: no Node.js: put it on the PATH, in .node/bin/node, or name it in NODE' 0
  finish
fi
export PATH="$(cd "$(dirname "$node")" && pwd):$PATH"
if ! [ -d node_modules/cmake-js ]; then
  note node_modules 'FAILED: node_modules/ is missing: run npm ci where there is a network and bring it along' 0
  finish
fi
if [ -z "${TROUPE_LIBTORCH:-}" ]; then
  TROUPE_LIBTORCH=$("$PYTHON" -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>"$out/torch.log") || {
    note torch "FAILED: $PYTHON cannot import torch; set PYTHON or TROUPE_LIBTORCH" 0
    finish
  }
fi
export TROUPE_LIBTORCH TROUPE_PYTHON=$PYTHON TROUPE_TEST_DEVICE=$device
# Where there is no network the peers' packages (.troupe/peers/site, brought along) must be missed at once, not after pip's retries.
export PIP_RETRIES=0 PIP_DEFAULT_TIMEOUT=5
# A virtual machine may show little of its memory until it is used: the build must not size itself by that.
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
# cmake, ctest and ninja may be packages of a Python whose bin/ is not on the PATH.
PATH="$PATH:$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))' 2>/dev/null)"
for tool in cmake ctest g++; do
  command -v "$tool" >/dev/null && continue
  note "$tool" "FAILED: no $tool on the PATH or beside $PYTHON" 0
  finish
done
# nvcc: of the PATH, of a toolkit, or of the wheels beside torch.
site=$(dirname "$TROUPE_LIBTORCH")
for bin in /usr/local/cuda/bin /usr/local/cuda-13*/bin "$site"/nvidia/*/bin; do
  command -v nvcc >/dev/null || { [ -x "$bin/nvcc" ] && PATH="$PATH:$bin"; }
done
if [ "$device" = cuda ] && ! command -v nvcc >/dev/null; then
  note nvcc 'FAILED: no nvcc on the PATH, in /usr/local/cuda or in the wheels beside torch' 0
  finish
fi
# ---- the steps ----
step machine 30 bash -c "
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo 'no GPU'
  echo \"\$(nproc) cores, node \$(node --version), \$($PYTHON --version), LibTorch $TROUPE_LIBTORCH\"
  nvcc --version 2>/dev/null | tail -2 | head -1 || true"
step typescript 60 node node_modules/typescript/bin/tsc -p tsconfig.build.json || finish
flags=(--tests)
[ "$device" = cuda ] && flags+=(--cuda)
step build 330 node scripts/build_native.mjs "${flags[@]}" || finish
step doctor 30 node dist/cli.js doctor
if [ "$device" = cuda ] && ! grep -q '^ok .*gpu .*GPU:' "$out/doctor.log"; then
  note gpu 'FAILED: the addon sees no GPU, see doctor.log' 0
  finish
fi
# ctest counts a program that found no GPU as skipped; here that is a failure.
step kernels 90 ctest --test-dir build-cmake --output-on-failure -R '^(cuda_kernels|cuda_vocabulary_shard|linear_log_prob|vocabulary_shard|paged_attention|sampler|adamw|comm)_test$'
if [ "$device" = cuda ] && grep -q 'Skipped' "$out/kernels.log"; then
  note kernels 'FAILED: skipped although there is a GPU, see kernels.log' 0
fi
step conformance 150 node node_modules/jest/bin/jest.js test/conformance/models.test.ts test/conformance/updates.test.ts

# ---- the benchmark ----
run=(--peer --variants packed --device "$device")
if [ "$device" = cuda ]; then
  run+=(--case qwen2.5-0.5b --prompts 16 --n 4 --prompt-len 512 --response-len 1536 --dtype bf16 --micro-tokens 16384)
  run+=(--rounds 1 --repeat 3 --warmup 1 --threads 8 --peak-tflops 989)
  operations=compute_log_prob,compute_log_prob_entropy,update_policy,linear_log_prob
else
  run+=(--case cpu-40m --prompts 2 --n 2 --prompt-len 32 --response-len 64 --rounds 1 --repeat 1 --warmup 0)
  operations=compute_log_prob,update_policy
fi
touch "$out/before-bench"
step bench 300 node bench/run.mjs "${run[@]}" --ops "$operations"
find runs/bench -name '*.json' -newer "$out/before-bench" -exec cp {} "$out/bench.json" \; 2>/dev/null
rm -f "$out/before-bench"
sed -n '/^operation /,$p' "$out/bench.log" >"$out/table.txt"
# The benchmark goes on without a peer that died; a comparison that was not made is no success here.
grep -Eq '  error  ' "$out/table.txt" && note peers 'FAILED: a side of the benchmark died, see bench.log' 0
finish
