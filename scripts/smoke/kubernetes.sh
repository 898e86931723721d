#!/usr/bin/env bash
# A run of a few minutes on a real cluster: kubernetes.sh IMAGE CLAIM CONFIG [KIND [KEY=VALUE...]]
# IMAGE has Troupe and its native core; CLAIM is a volume that all pods can write, mounted at /data; CONFIG lies below /data, and on this
# machine under the same path below the current directory. KIND: jobset (default), job, trainjob.
set -euo pipefail
[ $# -ge 3 ] || { sed -n 2,4p "$0"; exit 2; }
image=$1 claim=$2 config=$3 kind=${4:-jobset}
overrides=("${@:5}")
name=troupe-smoke
namespace=$(kubectl config view --minify --output 'jsonpath={..namespace}')
namespace=${namespace:-default}
crd() { case $kind in jobset) echo jobset ;; trainjob) echo trainjob,trainingruntime ;; *) echo job ;; esac }
delete_all() { for what in $(crd) job service secret; do kubectl --namespace "$namespace" delete --ignore-not-found -l "troupe/run=$name" "$what"; done; }
trap delete_all EXIT
delete_all
npx troupe submit "$config" "${overrides[@]}" --launcher kubernetes --kind "$kind" --image "$image" --name "$name" --namespace "$namespace" \
  --volume "$claim:/data" > manifests.yaml
# The server's own schema and admission first.
kubectl apply --dry-run=server -f manifests.yaml
kubectl apply -f manifests.yaml
selector="troupe/run=$name,troupe/role in (controller,node)"
until kubectl --namespace "$namespace" wait --for=jsonpath='{.status.phase}'=Running pod -l "$selector" --timeout=10s; do
  kubectl --namespace "$namespace" get pods -l "troupe/run=$name"
done
kubectl --namespace "$namespace" logs --follow -l "$selector" --tail=-1
kubectl --namespace "$namespace" wait --for=jsonpath='{.status.phase}'=Succeeded pod -l "$selector" --timeout=60s
echo "kubernetes: ok"
