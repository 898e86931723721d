import { execFile, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { PythonSandbox, type PythonSandboxOptions } from '../../ts/reward/code/python_sandbox';
import type { RunResult } from '../../ts/reward/code/runner';
import { allGone } from '../helpers/e2e_process';
import { asOtherUser, describeWithNamespaces, namespacesPermitted } from '../helpers/namespaces';

// Programs that mean harm, run for real.

const SMALL: PythonSandboxOptions = { timeout: 2, memoryLimitMb: 256, maxProcesses: 8, maxOutputMb: 1 };
const SECRET = 'TROUPE_TEST_SECRET';
beforeAll(() => {
  process.env[SECRET] = 'do not tell';
});
afterAll(() => {
  delete process.env[SECRET];
});

const DIST = resolve(__dirname, '../../dist/reward/code/python_sandbox.js');

/** Parent of every process. */
function parents(): Map<number, number> {
  const all = new Map<number, number>();
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    try {
      const stat = readFileSync(`/proc/${entry}/stat`, 'utf8');
      all.set(Number(entry), Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]));
    } catch {
      // Gone meanwhile.
    }
  }
  return all;
}

function descendants(pid: number): number[] {
  const all = parents();
  const found = [pid];
  for (const ancestor of found) for (const [child, parent] of all) if (parent === ancestor) found.push(child);
  return found.slice(1);
}

/** Processes that sleep for so many seconds, by the trace that they leave in their command line. */
const sleepers = (seconds: number): string[] =>
  readdirSync('/proc').filter((entry) => {
    try {
      return readFileSync(`/proc/${entry}/cmdline`, 'utf8').includes(`sleep\0${seconds}`);
    } catch {
      return false;
    }
  });

const isolations = (['namespaces', 'process'] as const).filter(
  (name) => name === 'process' || namespacesPermitted,
);

describe.each(isolations)('isolation: %s', (isolation) => {
  let sandbox: PythonSandbox;
  beforeAll(async () => {
    sandbox = await PythonSandbox.create({ ...SMALL, isolation });
  });
  const run = (code: string, stdin = ''): Promise<RunResult> => sandbox.run({ code, stdin });

  test('a program reads stdin and writes stdout', async () => {
    expect(await run('print(input()[::-1])\nprint("ü")', 'abc\n')).toEqual({
      status: 'finished',
      stdout: 'cba\nü\n',
      stderr: '',
    });
  });

  test('programs in parallel do not disturb each other', async () => {
    const results = await Promise.all(
      Array.from({ length: 6 }, (_, i) =>
        run(`import os\nopen("mine", "x").write("${i}")\nprint(open("mine").read(), len(os.listdir()))`),
      ),
    );
    expect(results.map(({ stdout }) => stdout)).toEqual(Array.from({ length: 6 }, (_, i) => `${i} 2\n`));
  });

  test('a syntax error, an exception, an exit code, a signal', async () => {
    const syntax = await run('def f(:');
    expect(syntax).toMatchObject({ status: 'error', stdout: '' });
    expect(syntax.stderr).toContain('SyntaxError');
    expect((await run('print(1)\nraise ValueError("no")')).stdout).toBe('1\n');
    expect((await run('raise SystemExit(3)')).status).toBe('error');
    expect((await run('import os\nos.abort()')).status).toBe('error');
  });

  test('an endless loop, and one that waits', async () => {
    expect((await run('while True: pass')).status).toBe('timeout');
    expect((await run('print("first", flush=True)\nimport time\ntime.sleep(1000)')).stdout).toBe('first\n');
  });

  test('memory', async () => {
    const { status, stderr } = await run('x = []\nwhile True: x.append(bytearray(10**7))');
    expect(status).toBe('error');
    expect(stderr).toContain('MemoryError');
  });

  test('a fork bomb has few children, and all of them end', async () => {
    const bomb =
      'import os\nn = 0\nwhile True:\n  try:\n    if os.fork() == 0: os.execvp("sleep", ["sleep", "98765"])\n';
    const { stdout, status } = await run(`${bomb}    n += 1\n  except OSError:\n    break\nprint(n)`);
    expect(status).toBe('finished');
    expect(Number(stdout)).toBeLessThan(8);
    expect((await run('import os\nwhile True:\n  try: os.fork()\n  except OSError: pass')).status).toBe(
      'timeout',
    );
    expect(sleepers(98765)).toEqual([]);
  });

  test('a child that leaves the process group does not outlive the program', async () => {
    const orphan = 'import os\nif os.fork() == 0:\n  os.setsid()\n  os.execvp("sleep", ["sleep", "98766"])\n';
    expect(await run(`${orphan}print("done")`)).toMatchObject({ status: 'finished', stdout: 'done\n' });
    // At each of these ends the child may be anywhere between fork and the program it becomes.
    for (let i = 0; i < 20; i++) {
      await run(`${orphan}print("done")`);
      expect(sleepers(98766)).toEqual([]);
    }
    expect((await run(`${orphan}while True: pass`)).status).toBe('timeout');
    expect(sleepers(98766)).toEqual([]);
  });

  test.each(['stdout', 'stderr'])('a gigabyte on %s is cut', async (stream) => {
    const { status, stdout, stderr } = await run(
      `import sys\nfor i in range(1024): sys.${stream}.write("x" * 2**20)`,
    );
    expect(status).toBe('output_limit');
    expect(stdout.length + stderr.length).toBeLessThanOrEqual(2 ** 20);
  });

  test('a large file', async () => {
    expect((await run('open("f", "wb").write(b"x" * 2**24)')).stderr).toMatch(/No space left|File too large/);
  });

  test('nothing stays behind, whatever its mode', async () => {
    const before = readdirSync(tmpdir());
    await run(
      'import os\nos.makedirs("a/b")\nopen("a/b/c", "w").close()\nos.chmod("a/b", 0)\nos.chmod("a", 0)',
    );
    expect(
      readdirSync(tmpdir()).filter((name) => name.startsWith('troupe-sandbox') && !before.includes(name)),
    ).toEqual([]);
  });

  test('the environment is its own', async () => {
    const { stdout } = await run('import os\nprint(sorted(os.environ))');
    expect(stdout).not.toContain(SECRET);
    expect(stdout).toContain("'PYTHONHASHSEED'");
  });

  test('input that nobody reads', async () => {
    expect(await run('print(1)', 'x'.repeat(5_000_000))).toMatchObject({ status: 'finished', stdout: '1\n' });
  });
});

const ESCAPES = `
import json, os, socket
def attempt(work):
    try: return work()
    except OSError as error: return error.strerror
def secret(pid):
    with open(f"/proc/{pid}/environ", "rb") as f: return b"${SECRET}" in f.read()
print(json.dumps({
    "secrets": [p for p in os.listdir("/proc") if p.isdigit() and attempt(lambda: secret(p)) is True],
    "processes": len([p for p in os.listdir("/proc") if p.isdigit()]),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "connect": attempt(lambda: socket.create_connection(("127.0.0.1", PORT), 1) and "connected"),
    "outside": attempt(lambda: socket.create_connection(("192.0.2.1", 80), 1) and "connected"),
    "writable": [d for d in ["/", "/etc", "/usr", "/home", os.path.dirname(TARGET)] if os.access(d, os.W_OK)],
    "delete": attempt(lambda: os.remove(TARGET)),
    "kill": attempt(lambda: os.kill(1, 9)),
}))
`;

describeWithNamespaces('what namespaces keep from a program', () => {
  const check = (result: RunResult): void => {
    expect(result).toMatchObject({ status: 'finished', stderr: '' });
    expect(JSON.parse(result.stdout)).toMatchObject({
      secrets: [],
      processes: 2, // the shell that is process 1, and the program
      interfaces: ['lo'],
      // Bubblewrap sets the loopback device up; nobody listens there.
      connect: expect.stringMatching(/Network is unreachable|Connection refused/),
      outside: 'Network is unreachable',
      writable: [],
      delete: expect.stringMatching(/Read-only file system|Permission denied|No such file/),
    });
  };

  const program = (port: number): string =>
    ESCAPES.replace('PORT', String(port)).replaceAll('TARGET', JSON.stringify(DIST));

  test('the network, other processes, their environment, all files', async () => {
    const server = createServer().listen(0, '127.0.0.1');
    await new Promise((done) => server.once('listening', done));
    try {
      const { port } = server.address() as { port: number };
      const sandbox = await PythonSandbox.create(SMALL);
      check(await sandbox.run({ code: program(port), stdin: '' }));
    } finally {
      server.close();
    }
  });

  const other = asOtherUser(DIST);
  (other ? test : test.skip)('the same when the trainer is not root', async () => {
    const script = `
      const { PythonSandbox } = require(${JSON.stringify(DIST)});
      PythonSandbox.create(${JSON.stringify(SMALL)})
        .then((sandbox) => sandbox.run({ code: process.argv[1], stdin: '' }))
        .then((result) => console.log(JSON.stringify(result)), ({ message }) => console.log(JSON.stringify({ message })));`;
    const [command, ...args] = [...(other as string[]), process.execPath, '-e', script, program(9)];
    // A mount where only root may go, as containers leave them: neither in the way of the sandbox nor in reach of the program.
    const hidden = await mkdtemp(join(tmpdir(), 'troupe-hidden-'));
    const mount = join(hidden, 'mount');
    await mkdir(mount);
    await promisify(execFile)('mount', ['-t', 'tmpfs', 'tmpfs', mount]);
    try {
      const { stdout } = await promisify(execFile)(command as string, args, { cwd: '/' });
      check(JSON.parse(stdout));
    } finally {
      await promisify(execFile)('umount', [mount]);
      await rm(hidden, { recursive: true });
    }
  });

  test('a trainer that is killed takes its programs along', async () => {
    const script = `
      const { PythonSandbox } = require(${JSON.stringify(DIST)});
      PythonSandbox.create({ timeout: 1000 }).then((sandbox) => {
        console.log('ready');
        return sandbox.run({ code: 'import os\\nos.setsid()\\nwhile True: pass', stdin: '' });
      });`;
    const trainer = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
    await new Promise((done) => trainer.stdout.once('data', done));
    // setpriv becomes unshare, which starts the shell, which starts the program.
    let pids: number[] = [];
    while (pids.length < 3) {
      await new Promise((done) => setTimeout(done, 5));
      pids = descendants(trainer.pid as number);
    }
    trainer.kill('SIGKILL');
    expect(await allGone(pids, 5000)).toBe(true);
  });

  test('where the kernel refuses, creation says so and what to do', async () => {
    // A user namespace that allows no network namespace below it.
    const script = `
      const { PythonSandbox } = require(${JSON.stringify(DIST)});
      PythonSandbox.create().then(() => console.log('created'), ({ code, message }) => console.log(code, message));`;
    const { stdout } = await promisify(execFile)('unshare', [
      ...[
        '--user',
        '--map-root-user',
        'sh',
        '-c',
        'echo 0 >/proc/sys/user/max_net_namespaces; exec "$@"',
        'sh',
      ],
      ...[process.execPath, '-e', script],
    ]);
    expect(stdout).toMatch(
      /^SANDBOX_FAILED \[sandbox\] the sandbox could not be set up \(.*unshare: .*reward\.sandbox\.isolation=process/,
    );
  });
});

describe('a sandbox that cannot be', () => {
  const isolation = namespacesPermitted ? 'namespaces' : 'process';

  test('no such Python, one that is no Python', async () => {
    for (const python of ['/nowhere/python3', '/bin/cat']) {
      await expect(PythonSandbox.create({ isolation, python })).rejects.toMatchObject({
        code: 'SANDBOX_FAILED',
        message: expect.stringMatching(
          new RegExp(`found no Python 3 that works in the sandbox: tried ${python} .*reward.sandbox.python`),
        ),
      });
    }
  });

  test.each([
    [{ timeout: 0 }, /timeout: expected a number > 0/],
    [{ memoryLimitMb: 1 }, /memoryLimitMb: expected an integer >= 64/],
    [{ isolation: 'none' }, /isolation: expected one of namespaces, process/],
    [{ memory: 1 }, /unknown option 'memory'/],
  ])('options %j', async (options, message) => {
    await expect(PythonSandbox.create(options as PythonSandboxOptions)).rejects.toThrow(message);
  });
});
