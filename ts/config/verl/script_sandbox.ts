import { BASH_START, STAND_IN, STAND_IN_NAMES } from './stand_ins';

// The sandbox that a launch script runs in: no network, process ids of its own, no privileges, every file system read-only. The
// directories that a script may want to write to are covered by layers in memory, which go with it. ts/sandbox shows programs next to
// nothing; a launch script is to see the files of its user and to write beside them.

export interface SandboxedScript {
  /** Absolute. */
  script: string;
  args: readonly string[];
  /** Absolute: the working directory. */
  directory: string;
  home: string;
  /** Wall time, seconds. */
  timeout: number;
  /** Others than this folder's: text of the stand-in, of what bash reads first, and names, with spaces between them. */
  recorder?: { standIn: string; start: string; names: string };
}

const OWN = { standIn: STAND_IN, start: BASH_START, names: STAND_IN_NAMES };

const MEMORY_MIB = 64;
/** Written when the sandbox stands, in front of what the script did. */
export const STANDS = 'the sandbox stands';

// Device files, the kernel's own switches, and sockets of other programs in /run and below what is covered are out of reach, for a script
// that runs as root as well. A socket elsewhere can be connected to where its mode permits it: no mount option says otherwise.
const SETUP = `set -e
script=$1 directory=$2 home=$3 seconds=$4 standin=$5 start=$6 names=$7
shift 7
while read -r _ _ _ _ target options _; do
  target=$(printf %b "$target")
  [ -e "$target" ] || continue
  case $options in rw*)
    mount -o "remount,bind,ro\${options#rw}" "$target" 2>/dev/null ||
      case $target in /proc/*|/sys/*) :;; *) echo "cannot make $target read-only" >&2; exit 1;; esac;;
  esac
done </proc/self/mountinfo
own=
for place in /mnt /media /srv /var/tmp; do
  case "$script
$directory/
$home/" in *$place/*) continue;; esac
  [ ! -d $place ] || { own=$place; break; }
done
mount -t tmpfs -o size=${MEMORY_MIB}m,mode=755,nosuid tmpfs $own
mkdir $own/bin $own/dev $own/low $own/layers
for device in null zero full random urandom; do
  : >$own/dev/$device
  mount --bind /dev/$device $own/dev/$device
done
ln -s /proc/self/fd $own/dev/fd
ln -s fd/0 $own/dev/stdin
ln -s fd/1 $own/dev/stdout
ln -s fd/2 $own/dev/stderr
covered() {
  for place in /tmp "$home" "$directory" "$(dirname "$script")"; do
    [ "$place" = / ] || [ ! -d "$place" ] || printf '%s\\n' "$place"
  done | sort -u
}
covered >$own/places
layer=0
while read -r place; do
  layer=$((layer + 1))
  mkdir $own/low/$layer $own/layers/$layer $own/layers/$layer/up $own/layers/$layer/work
  chmod --reference="$place" $own/layers/$layer/up
  mount --rbind "$place" $own/low/$layer
done <$own/places
layer=0
while read -r place; do
  layer=$((layer + 1))
  layers=lowerdir=$own/low/$layer,upperdir=$own/layers/$layer/up,workdir=$own/layers/$layer/work
  mount -t overlay -o "$layers,userxattr" overlay "$place" 2>/dev/null ||
    mount -t overlay -o "$layers" overlay "$place" 2>/dev/null || mount --rbind $own/low/$layer "$place"
done <$own/places
for place in /run /var/tmp; do
  [ $place = $own ] || [ -L $place ] || [ ! -d $place ] || mount -t tmpfs -o size=1m,mode=1777 tmpfs $place
done
printf %s "$standin" >$own/bin/.stand-in
chmod 755 $own/bin/.stand-in
for name in $names; do ln -s .stand-in $own/bin/$name; done
printf %s "$start" >$own/start
: >$own/records
mount --rbind $own/dev /dev
cd "$directory"
export TROUPE_STAND_INS=$own TROUPE_REAL_PATH="$PATH" BASH_ENV=$own/start
set +e
# The limit of processor time is for what outlives the clock: at the same second it would be the one that kills, with another code.
PATH=$own/bin:$PATH setpriv --no-new-privs --bounding-set=-all --inh-caps=-all \\
  prlimit --as=4294967296 --cpu=$((\${seconds%.*} + 2)) --core=0 \\
  timeout -k 1 $seconds bash "$script" "$@" >$own/out 2>&1 </dev/null
status=$?
printf '${STANDS}\\0%s\\0' $status
tail -c 4000 $own/out | tr -d '\\0'
printf '\\0'
cat $own/records
exit 0`;

/** util-linux's setpriv and unshare around the shell that sets the sandbox up; nothing of it outlives the caller. */
export function scriptCommand({ script, args, directory, home, timeout, recorder = OWN }: SandboxedScript): {
  program: string;
  args: string[];
} {
  const isRoot = process.getuid?.() === 0;
  return {
    program: 'setpriv',
    args: [
      ...['--pdeathsig', 'KILL', 'unshare', ...(isRoot ? [] : ['--user', '--map-root-user'])],
      ...['--net', '--ipc', '--uts', '--pid', '--mount', '--fork', '--kill-child', '--mount-proc'],
      ...['sh', '-c', SETUP, 'sh', script, directory, home, String(timeout)],
      ...[recorder.standIn, recorder.start, recorder.names, ...args],
    ],
  };
}
