import { execFile, spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { type Mechanism, Sandbox, type SandboxResult, SYSTEM_PATH } from '../../ts/sandbox/sandbox';
import { namespacesPermitted } from '../helpers/namespaces';

// The general sandbox: any command, one directory to write to, nothing else to see.

const DIST = resolve(__dirname, '../../dist/sandbox/sandbox.js');
const hasBubblewrap = spawnSync('bwrap', ['--unshare-pid', '--ro-bind', '/', '/', 'true']).status === 0;
const mechanisms = (['bubblewrap', 'unshare', 'process'] as const).filter(
  (name) => name === 'process' || (namespacesPermitted && (name !== 'bubblewrap' || hasBubblewrap)),
);
const LIMITS = { timeout: 20, memoryLimitMb: 256, maxProcesses: 32, maxOutputMb: 1 };

let home: string;
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), 'troupe-sandbox-test-'));
  chmodSync(home, 0o755);
});
afterEach(() => rmSync(home, { recursive: true }));

const make = (mechanism: Mechanism): Promise<Sandbox> => Sandbox.create({ mechanisms: [mechanism] });
const bash = (sandbox: Sandbox, text: string, more = {}): Promise<SandboxResult> =>
  sandbox.run({ command: ['bash', 'run.sh'], files: { 'run.sh': text }, limits: LIMITS, ...more });

describe.each(mechanisms)('%s', (mechanism) => {
  test('a script finds its programs, its environment and its directory, and what it writes stays', async () => {
    const writable = join(home, "it's out");
    const tools = join(home, 'tools');
    mkdirSync(writable);
    mkdirSync(tools);
    writeFileSync(join(tools, 'record'), '#!/bin/sh\nprintf "%s|" "$@" >>"$OUT/calls"\n', { mode: 0o755 });
    const sandbox = await make(mechanism);
    const result = await bash(
      sandbox,
      'pwd\nrecord one "two three" $WHICH\nmkdir -p deep/er; echo x >deep/er/file',
      {
        writable,
        readable: [tools],
        env: { PATH: `${tools}:${SYSTEM_PATH}`, OUT: writable, WHICH: '$(id)' },
      },
    );
    expect(result).toEqual({ status: 'finished', exitCode: 0, stdout: `${writable}\n`, stderr: '' });
    expect(readFileSync(join(writable, 'calls'), 'utf8')).toBe('one|two three|$(id)|');
    for (const path of ['calls', 'deep', 'deep/er/file', '.'])
      expect(statSync(join(writable, path)).uid).toBe(process.getuid?.());
  });

  test('nothing but the directory can be written, nor the files beside it', async () => {
    const writable = join(home, 'out');
    mkdirSync(writable);
    writeFileSync(join(home, 'beside'), 'old', { mode: 0o644 });
    const { stdout } = await bash(
      await make(mechanism),
      `echo new >${home}/beside; echo new >${home}/other; echo new >/usr/other; cat beside ../beside`,
      { writable },
    );
    expect(readFileSync(join(home, 'beside'), 'utf8')).toBe('old');
    if (mechanism !== 'process') expect(stdout).toBe('');
  });

  test('descriptors that the caller inherited are closed', async () => {
    const secret = join(home, 'secret');
    writeFileSync(secret, 'do not tell', { mode: 0o600 });
    const script = `require(${JSON.stringify(DIST)}).Sandbox.create({ mechanisms: ['${mechanism}'] })
      .then((sandbox) => sandbox.run({ command: ['sh', '-c', 'cat <&9; for i in /proc/self/fd/*; do [ -e $i ] && echo $i; done; readlink /proc/self/fd/200'] }))
      .then(({ stdout }) => console.log(JSON.stringify(stdout)));`;
    const start = `exec 9<${secret} 200<${secret}; exec "$0" -e "$1"`;
    const { stdout } = await promisify(execFile)('bash', ['-c', start, process.execPath, script]);
    expect(JSON.parse(stdout).split('\n')).toEqual([0, 1, 2].map((n) => `/proc/self/fd/${n}`).concat(''));
  });

  test('all processes together stay within the memory', async () => {
    // Each within the limit of one process, eight times 100 MB together.
    const hold =
      'import os, time\nfor i in range(8):\n  if os.fork() == 0: break\nx = b"x" * 100_000_000\ntime.sleep(30)\n';
    const { status, stderr } = await (await make(mechanism)).run({
      command: ['/usr/bin/python3', 'hold.py'],
      files: { 'hold.py': hold },
      limits: LIMITS,
    });
    expect({ status, stderr }).toEqual({
      status: 'error',
      stderr: expect.stringMatching(/ended: its processes together held more than 256 MiB of memory\n$/),
    });
  });

  test('pages that processes share count once', async () => {
    const share =
      'import os, time\nx = b"x" * 100_000_000\nfor i in range(8):\n  if os.fork() == 0: break\ntime.sleep(1)\n';
    const { status } = await (await make(mechanism)).run({
      command: ['/usr/bin/python3', 'share.py'],
      files: { 'share.py': share },
      limits: LIMITS,
    });
    expect(status).toBe('finished');
  });

  test.each([
    [{ command: [] }, /command: expected a program/],
    [{ command: ['A=1', 'true'] }, /a program with =/],
    [{ command: ['true'], files: { '../x': '' } }, /files: expected plain names/],
    [{ command: ['true'], env: { 'A B': '' } }, /env: expected names of variables/],
    [{ command: ['true'], writable: '/nowhere' }, /writable: expected the absolute path of a directory/],
    [{ command: ['true'], readable: ['x'] }, /readable: expected an absolute path that exists/],
    [{ command: ['true'], limits: { timeout: -1 } }, /timeout: expected a number > 0/],
    [{ command: ['true', 'a\0b'] }, /without zero bytes/],
    [{ command: ['true'], network: true }, /unknown option 'network'/],
  ])('%j is refused', async (request, message) => {
    await expect((await make(mechanism)).run(request)).rejects.toThrow(message);
  });

  test('the environment and the startup files of the caller have no say', async () => {
    const trap = join(home, 'trap.sh');
    writeFileSync(trap, 'echo trapped >&2');
    const result = await (await make(mechanism)).run({
      command: ['/bin/true'],
      env: { BASH_ENV: trap, ENV: trap, HOME: home },
      readable: [home],
    });
    expect(result).toMatchObject({ status: 'finished', stderr: '' });
  });
});

const describeWithBubblewrap = mechanisms.includes('bubblewrap') ? describe : describe.skip;
describeWithBubblewrap('what bubblewrap adds', () => {
  test('other files cannot be seen', async () => {
    const file = join(home, 'tests.json');
    writeFileSync(file, 'the expected outputs', { mode: 0o644 });
    const { stdout } = await bash(
      await make('bubblewrap'),
      `cat ${file} ${__filename} /etc/hostname; ls / /etc /home /root /sys; echo end`,
    );
    expect(stdout).not.toMatch(/expected outputs|describe|home|root|sys|shadow|ssl/);
    expect(stdout).toMatch(/usr\n[\s\S]*end\n$/);
  });

  test.each(['unshare -U id', 'unshare -Ur id', 'unshare -n id', 'mount -t tmpfs tmpfs /tmp', 'keyctl show'])(
    '%s is refused',
    async (command) => {
      const { stdout } = await bash(await make('bubblewrap'), `${command} && echo done`);
      expect(stdout).toBe('');
    },
  );

  test('clone and clone3 make no namespaces, but processes and threads', async () => {
    const program = `import ctypes, os, threading
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    result = libc.syscall(*args)
    if result == 0: os._exit(0)
    return (result > 0, ctypes.get_errno() if result < 0 else 0)
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
print(call(clone, 0x10000000 | 17, 0, 0, 0, 0), call(435, 0, 0), call(clone, 17, 0, 0, 0, 0)[0])
thread = threading.Thread(target=lambda: print("thread"))
thread.start()
thread.join()
`;
    const { stdout } = await (await make('bubblewrap')).run({
      command: ['/usr/bin/python3', 'p.py'],
      files: { 'p.py': program },
      limits: LIMITS,
    });
    expect(stdout).toBe('(False, 1) (False, 38) True\nthread\n');
  });
});
