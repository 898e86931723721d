import { seccompFilter } from '../../../ts/sandbox/seccomp';

/** Classic BPF, as far as seccomp filters of this kind use it: what the kernel would answer to a call. */
function decide(filter: Buffer, data: { nr: number; arch: number; firstArgument?: number }): string {
  const words = new Map([
    [0, data.nr],
    [4, data.arch],
    [16, data.firstArgument ?? 0],
  ]);
  let accumulator = 0;
  for (let pc = 0; pc < filter.length / 8; pc++) {
    const code = filter.readUInt16LE(pc * 8);
    const [yes, no] = [filter.readUInt8(pc * 8 + 2), filter.readUInt8(pc * 8 + 3)];
    const k = filter.readUInt32LE(pc * 8 + 4);
    const jump = (taken: boolean): void => {
      pc += taken ? yes : no;
    };
    if (code === 0x20) accumulator = words.get(k) as number;
    else if (code === 0x15) jump(accumulator === k);
    else if (code === 0x35) jump(accumulator >= k);
    else if (code === 0x45) jump((accumulator & k) !== 0);
    else if (code === 0x06) return k === 0x7fff0000 ? 'allow' : `errno ${k & 0xffff}`;
    else throw new Error(`instruction ${code}`);
  }
  throw new Error('the filter has no end');
}

const EPERM = 'errno 1';
const ENOSYS = 'errno 38';
const CLONE_NEWUSER = 0x10000000;
const SIGCHLD = 17;

// Numbers of linux/audit.h, asm/unistd_64.h and asm-generic/unistd.h.
describe.each([
  [
    'x64',
    0xc000003e,
    { read: 0, execve: 59, fork: 57, clone: 56, unshare: 272, mount: 165, keyctl: 250, bpf: 321 },
  ],
  ['arm64', 0xc00000b7, { read: 63, execve: 221, clone: 220, unshare: 97, mount: 40, keyctl: 219, bpf: 280 }],
] as const)('%s', (name, arch, calls) => {
  const filter = seccompFilter(name) as Buffer;
  const of = (nr: number, firstArgument = 0): string => decide(filter, { nr, arch, firstArgument });

  test.each(Object.entries(calls))('%s', (call, nr) => {
    expect(of(nr)).toBe(['unshare', 'mount', 'keyctl', 'bpf'].includes(call) ? EPERM : 'allow');
  });

  test('clone makes processes and threads, and no namespaces', () => {
    expect(of(calls.clone, SIGCHLD)).toBe('allow');
    expect(of(calls.clone, 0x3d0f00)).toBe('allow'); // a thread, as C libraries make it
    for (const flag of [CLONE_NEWUSER, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000])
      expect(of(calls.clone, flag | SIGCHLD)).toBe(EPERM);
    expect(of(435)).toBe(ENOSYS);
  });

  test('io_uring, the new mount calls, other architectures', () => {
    for (const nr of [425, 426, 427, 428, 429, 430, 431, 432, 433, 442]) expect(of(nr)).toBe(EPERM);
    expect(decide(filter, { nr: calls.read, arch: 0x40000003 })).toBe(EPERM); // 32-bit x86
    expect(of(434)).toBe('allow'); // pidfd_open
  });
});

test('x86-64 with 32-bit pointers is not there', () => {
  expect(decide(seccompFilter('x64') as Buffer, { nr: 0x40000000, arch: 0xc000003e })).toBe(ENOSYS);
});

test('a processor without a filter', () => {
  expect(seccompFilter('riscv64')).toBeNull();
});
