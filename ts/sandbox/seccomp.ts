// A seccomp filter as bubblewrap loads it: system calls with which a program in the sandbox could make namespaces of its own, mount, or
// reach parts of the kernel that a program has no use for. Format: struct sock_filter of linux/filter.h; offsets: struct
// seccomp_data of linux/seccomp.h; numbers: asm/unistd_64.h (x86-64) and asm-generic/unistd.h (arm64).

interface Architecture {
  /** AUDIT_ARCH_* of linux/audit.h. */
  audit: number;
  clone: number;
  /** unshare, setns, mount, umount2, pivot_root, add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd, open_by_handle_at. */
  refused: readonly number[];
}

const ARCHITECTURES: Partial<Record<NodeJS.Architecture, Architecture>> = {
  x64: {
    audit: 0xc000003e,
    clone: 56,
    refused: [272, 308, 165, 166, 155, 248, 249, 250, 321, 298, 323, 304],
  },
  arm64: {
    audit: 0xc00000b7,
    clone: 220,
    refused: [97, 268, 40, 39, 41, 217, 218, 219, 280, 241, 282, 265],
  },
};

/** io_uring_{setup,enter,register}, open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr: the same everywhere. */
const REFUSED_EVERYWHERE = [425, 426, 427, 428, 429, 430, 431, 432, 433, 442];
/** Its flags lie in memory, where a filter cannot look; where it is missing, C libraries use clone. */
const CLONE3 = 435;
/** CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET} */
const NEW_NAMESPACES = 0x7e020000;
/** x86-64's second table of calls, for programs with 32-bit pointers. */
const X32 = 0x40000000;

const LOAD = 0x20;
const JUMP_EQUAL = 0x15;
const JUMP_AT_LEAST = 0x35;
const JUMP_ANY_BIT = 0x45;
const RETURN = 0x06;
const NUMBER = 0;
const ARCH = 4;
const FIRST_ARGUMENT = 16;
const ALLOW = 0x7fff0000;
const ERRNO = 0x00050000;
const EPERM = 1;
const ENOSYS = 38;

/** The filter for a processor; null: for this one there is none. */
export function seccompFilter(arch: NodeJS.Architecture = process.arch): Buffer | null {
  const known = ARCHITECTURES[arch];
  if (known === undefined) return null;
  const program: [code: number, yes: number, no: number, k: number][] = [];
  const add = (code: number, k: number, yes = 0, no = 0): void => void program.push([code, yes, no, k]);
  const refuse = (errno: number): void => add(RETURN, ERRNO | errno);
  add(LOAD, ARCH);
  add(JUMP_EQUAL, known.audit, 1);
  refuse(EPERM);
  add(LOAD, NUMBER);
  if (arch === 'x64') {
    add(JUMP_AT_LEAST, X32, 0, 1);
    refuse(ENOSYS);
  }
  add(JUMP_EQUAL, CLONE3, 0, 1);
  refuse(ENOSYS);
  for (const number of [...known.refused, ...REFUSED_EVERYWHERE]) {
    add(JUMP_EQUAL, number, 0, 1);
    refuse(EPERM);
  }
  add(JUMP_EQUAL, known.clone, 0, 3);
  add(LOAD, FIRST_ARGUMENT);
  add(JUMP_ANY_BIT, NEW_NAMESPACES, 0, 1);
  refuse(EPERM);
  add(RETURN, ALLOW);
  const bytes = Buffer.alloc(program.length * 8);
  program.forEach(([code, yes, no, k], i) => {
    bytes.writeUInt16LE(code, i * 8);
    bytes.writeUInt8(yes, i * 8 + 2);
    bytes.writeUInt8(no, i * 8 + 3);
    bytes.writeUInt32LE(k, i * 8 + 4);
  });
  return bytes;
}
