#!/usr/bin/env bash
# The first process of a pod of the tests' Kubernetes, started in namespaces of its own: gives the pod a root directory with its volumes,
# runs its container, and hands SIGTERM to that as a kubelet does. pod.sh HOSTNAME DIRECTORY WORKING_DIRECTORY SHARED COMMAND...
# DIRECTORY/mounts has a line for each volume: kind (bind, ro, tmpfs), source and target, with tabs between.
set -euo pipefail
hostname=$1 directory=$2 working=$3 shared=$4
shift 4
child='' told=''
trap 'told=yes; [ -z "$child" ] || kill -TERM "$child"' TERM

echo "$hostname" > /proc/sys/kernel/hostname
root=$directory/root
mount -t tmpfs pod "$root"
for entry in /*; do
  if [ -L "$entry" ]; then
    cp -P "$entry" "$root/"
  elif [ -d "$entry" ]; then
    mkdir "$root$entry"
    # Containers have a /run of their own.
    case $entry in
      /proc) mount -t proc proc "$root/proc" ;;
      /run) mount -t tmpfs run "$root/run" ;;
      *) mount --rbind "$entry" "$root$entry" ;;
    esac
  fi
done
inside() { chroot "$root" "$@"; }
while IFS=$'\t' read -r kind source target; do
  inside mkdir -p "$target"
  case $kind in
    tmpfs) inside mount -t tmpfs tmpfs "$target" ;;
    ro) inside mount --bind -o ro "$source" "$target" ;;
    *) inside mount --bind "$source" "$target" ;;
  esac
done < "$directory/mounts"
inside mount --bind "$directory/hosts" /etc/hosts

[ -z "$told" ] || exit 143
# Without a shared process namespace the container's process is the first one.
[ "$shared" = true ] || exec chroot "$root" env -C "$working" "$@"
chroot "$root" env -C "$working" "$@" &
child=$!
[ -z "$told" ] || kill -TERM "$child"
while :; do
  told='' code=0
  wait "$child" || code=$?
  # A signal ends the wait, not the container.
  [ -n "$told" ] || exit "$code"
done
