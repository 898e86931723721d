#!/usr/bin/env bash
# A run of a few minutes on a cluster: kubernetes.sh IMAGE CLAIM CONFIG [KIND [KEY=VALUE...]]
# IMAGE has Troupe and its native core; CLAIM is a volume that all pods can write, mounted at /data; CONFIG is a path below /data, under
# which this machine finds the same file. KIND: jobset (default), job, trainjob. kubectl 1.20 or newer.
set -euo pipefail
[ $# -ge 3 ] || { sed -n 2,4p "$0"; exit 2; }
image=$1 claim=$2 config=$3 kind=${4:-jobset}
overrides=("${@:5}")
name=troupe-smoke
minutes=30
namespace=$(kubectl config view --minify --output 'jsonpath={..namespace}')
namespace=${namespace:-default}
k() { kubectl --namespace "$namespace" "$@"; }
case $kind in
  job) made=job whole=job/$name-controller ;;
  trainjob) made=trainjob,trainingruntime whole=trainjob/$name ;;
  *) made=jobset whole=jobset/$name ;;
esac
directory=$(mktemp -d)
delete_all() { for what in "$made" job service secret; do k delete --ignore-not-found -l "troupe/run=$name" "$what"; done; }
trap 'delete_all; rm -r "$directory"' EXIT
delete_all
npx troupe submit "$config" "${overrides[@]}" --launcher kubernetes --kind "$kind" --image "$image" --name "$name" --namespace "$namespace" \
  --volume "$claim:/data" > "$directory/all.yaml"
# One after the other: a TrainJob is refused, in a dry run as well, where its runtime is not there. The server's own schema and admission first.
csplit --quiet --elide-empty-files --prefix="$directory/one-" --suffix-format=%02d.yaml "$directory/all.yaml" '/^---$/' '{*}'
for file in "$directory"/one-*; do
  k apply --dry-run=server -f "$file"
  k apply -f "$file"
done
# Complete, Completed or Failed; a pod's phase would not do: another pod may take its place.
conditions() { k get "$whole" --output 'jsonpath={.status.conditions[?(@.status=="True")].type}'; }
while :; do
  case " $(conditions) " in
    *' Complete '* | *' Completed '*) break ;;
    *' Failed '*) failed=yes ;;
    *) failed=no ;;
  esac
  if [ "$failed" = yes ] || [ $SECONDS -gt $((60 * minutes)) ]; then
    k get "$whole" --output yaml
    k get pods -l "troupe/run=$name" --output wide
    k logs -l "troupe/run=$name" --tail=50 || true
    echo "kubernetes: $whole has $([ "$failed" = yes ] && echo failed || echo "not ended within $minutes minutes")" >&2
    exit 1
  fi
  k get pods -l "troupe/run=$name"
  # To the end of the pods that are there; those that do not run yet have no log.
  timeout $((60 * minutes)) kubectl --namespace "$namespace" logs --follow -l "troupe/run=$name,troupe/role in (controller,node)" --tail=-1 || true
  sleep 2
done
echo "kubernetes: ok"
