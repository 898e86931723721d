// What stands on PATH, in the sandbox, in place of the programs that a launch script starts: they write down how they were
// called and start nothing. $TROUPE_STAND_INS/records holds, per call, ended by 0 bytes: program, working directory, number of
// arguments, the arguments, the environment, and an empty string.

/** Names under which the stand-in lies on PATH. */
export const STAND_IN_NAMES = [
  'python python3 python3.9 python3.10 python3.11 python3.12 python3.13 torchrun accelerate deepspeed',
  'ray uv srun sbatch docker apptainer singularity sudo ssh nsys scontrol nvidia-smi',
  'wandb swanlab vllm sglang huggingface-cli hf modelscope hdfs aws gsutil',
  'pip pip3 conda apt apt-get git wget curl scp rsync telnet nc ip systemctl service modprobe',
  'sleep kill pkill killall mkdir cp mv ln rm touch chmod tee nproc',
].join(' ');

/** A call beyond this many is answered with an error: loops that wait for something end. */
const MOST_CALLS = 400;

/**
 * One program for all names. Python that computes or prints something (-c, or a program on stdin) is run; modules and files are
 * not. There are eight NVIDIA GPUs and no NPU.
 */
export const STAND_IN = `#!/bin/sh
name=\${0##*/}
own=$TROUPE_STAND_INS
real() {
  PATH=$TROUPE_REAL_PATH
  command -v "$name" >/dev/null || exit 127
  exec "$name" "$@"
}
# Programs of a pipeline run at once: an appended byte is never lost, and the file is never empty while another writes.
printf . >>"$own/calls"
calls=$(wc -c <"$own/calls")
[ "$calls" -le ${MOST_CALLS} ] || { echo "$name: called more than ${MOST_CALLS} times" >&2; kill -9 -1; }
case $name in
  sleep|kill|pkill|killall|ip|systemctl|service|modprobe) exit 0;;
  mkdir|cp|mv|ln|rm|touch|chmod) PATH=$TROUPE_REAL_PATH; "$name" "$@" 2>/dev/null; exit 0;;
  telnet|nc) echo Connected; exit 0;;
  tee) exec cat;;
  nproc) echo 16; exit 0;;
  nvidia-smi)
    i=0
    while [ $i -lt 8 ]; do
      case " $* " in
        *--query-gpu=index*) echo $i;;
        *--query-gpu=name*) echo "NVIDIA H100 80GB HBM3";;
        *--query-gpu=memory.total*) echo "81559 MiB";;
        *--query-gpu=compute_cap*) echo 9.0;;
        *) echo "GPU $i: NVIDIA H100 80GB HBM3 (UUID: GPU-$i)";;
      esac
      i=$((i + 1))
    done
    exit 0;;
  python*)
    case "$1" in
      -c) case $2 in *torch_npu*) exit 1;; esac; real "$@";;
      ''|-)
        code=$(cat)
        case $code in *get_device_name*) echo cuda; exit 0;; esac
        printf '%s\\n' "$code" | real "$@"
        exit;;
      -V|--version) echo "Python 3.12.0"; exit 0;;
    esac
    ;;
esac
(
  flock 9
  { printf '%s\\0' "$name" "$PWD" "$#" "$@"; env -0; printf '\\0'; } >&9
) 9>>"$own/records"
case $name in
  scontrol) echo node0; exit 0;;
  srun|sbatch|ray|uv|docker|apptainer|singularity|sudo|ssh|nsys)
    # What they would start is started, so that its own stand-in sees it.
    while [ $# -gt 0 ]; do
      case \${1##*/} in
        bash|sh|python|python3|torchrun|accelerate|ray|env|timeout|nohup) exec "$@";;
        *.sh|*.slurm|*.sbatch) [ ! -f "$1" ] || exec bash "$@";;
      esac
      shift
    done;;
esac
exit 0
`;

/**
 * Read by every bash before its script. A file that is not there is not sourced, a directory that is not there not entered, and a
 * limit that may not be raised stays: on the machine the script was written for they are there. What is not found is written down.
 */
export const BASH_START = `
source() { [ ! -f "$1" ] || builtin source "$@"; }
.() { [ ! -f "$1" ] || builtin . "$@"; }
cd() { builtin cd "$@" 2>/dev/null || :; }
ulimit() { :; }
module() { :; }
command_not_found_handle() {
  ( flock 9; { printf '%s\\0' "$1" "$PWD" "$(($# - 1))" "\${@:2}"; env -0; printf '\\0'; } >&9 ) 9>>"$TROUPE_STAND_INS/records"
  return 127
}
`;
