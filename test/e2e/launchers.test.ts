import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { Command, type Exit, runCommand, sleep } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';
import { marked } from '../helpers/left_over';

// A run that is started by the real program of each engine: torchrun (TROUPE_TORCHRUN names it; default: on the PATH), mpirun, ssh. Where
// one is not installed its test is skipped, and says so.

const pathOf = (program: string): string | null => {
  const { status, stdout } = spawnSync('sh', ['-c', 'command -v "$0"', program], { encoding: 'utf8' });
  return status === 0 ? stdout.trim() : null;
};
const torchrun = pathOf(process.env['TROUPE_TORCHRUN'] ?? 'torchrun');
const mpirun = pathOf('mpirun');
const [ssh, sshd] = [pathOf('ssh'), pathOf('/usr/sbin/sshd') ?? pathOf('sshd')];

const testWith = (what: string, found: unknown, body: () => Promise<void>): void =>
  found ? test(what, body, 300_000) : test.skip(`${what} (not installed)`, body);

/** Of this run of the tests. */
const PORT = 21_000 + (process.pid % 20_000);

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
  for (const [name, workers] of [
    ['two', 2],
    ['four', 4],
  ] as const) {
    const { code, stderr } = await runCommand([...args(name), `trainer.n_gpus_per_node=${workers}`]);
    expect(code === 0 ? '' : stderr).toBe('');
  }
}, 300_000);
afterAll(() => workspace.remove());

const args = (name: string): string[] => [
  'train',
  workspace.file('train.yaml'),
  `trainer.default_local_dir=${workspace.file(name)}`,
  'trainer.total_training_steps=2',
  'trainer.worker_timeouts.startup=300',
];
const twoHosts = (name: string): string[] => [
  ...args(name),
  'trainer.nnodes=2',
  'trainer.n_gpus_per_node=2',
  'trainer.launcher.network=127.0.0.1',
];
const metrics = (name: string): string => readFileSync(join(workspace.file(name), 'metrics.jsonl'), 'utf8');
const problem = ({ code, stdout, stderr }: Exit): string => (code === 0 ? '' : `${stdout}\n${stderr}`);

testWith('torchrun --no-python, a process for each of two hosts', torchrun, async () => {
  const place = (node: number): string[] => [
    ...[torchrun as string, '--no-python', '--nnodes=2', `--node-rank=${node}`, '--nproc-per-node=1'],
    ...['--master-addr=127.0.0.1', `--master-port=${PORT}`],
  ];
  const nodes = [0, 1].map((node) => new Command(twoHosts('torchrun'), { prefix: place(node) }));
  const exits = await Promise.all(nodes.map(({ exited }) => exited));
  expect(exits.map(problem)).toEqual(['', '']);
  expect(metrics('torchrun')).toBe(metrics('four'));
});

testWith('mpirun, two processes on one host, of which one starts the workers', mpirun, async () => {
  const prefix = [
    mpirun as string,
    ...(process.getuid?.() === 0 ? ['--allow-run-as-root'] : []),
    ...['--oversubscribe', '--bind-to', 'none', '-np', '2'],
  ];
  const own = [
    'trainer.launcher.type=env',
    'trainer.n_gpus_per_node=2',
    'trainer.launcher.network=127.0.0.1',
  ];
  const exit = await new Command([...args('mpirun'), ...own], { prefix }).exited;
  expect(problem(exit)).toBe('');
  expect(exit.stdout).toMatch(/nothing to do: .*Open MPI .*this is rank 1/);
  expect(metrics('mpirun')).toBe(metrics('two'));
});

testWith('ssh to two names of this host', ssh && sshd, async () => {
  const server = await SshServer.start();
  try {
    const hosts = ['127.0.0.1', 'localhost'].map((name) => `${userInfo().username}@${name}:${PORT + 1}`);
    const own = ['trainer.launcher.type=ssh', `trainer.launcher.hosts=[${hosts.join(',')}]`];
    const examined = await new Command(['doctor', ...twoHosts('ssh').slice(1), ...own], { env: server.env })
      .exited;
    expect(problem(examined)).toBe('');
    expect(examined.stdout).toMatch(
      /^ok +host 0 \S+ +127\.0\.0\.1 \(lo\), \d+ cores, no GPUs, Troupe .*, clock [+-]\d+ ms$/m,
    );
    expect(examined.stdout).toMatch(/^ok +ranks +4 workers \(cpu\) started in .* connections to each other/m);

    const exit = await new Command([...twoHosts('ssh'), ...own], { env: server.env }).exited;
    expect(problem(exit)).toBe('');
    expect(metrics('ssh')).toBe(metrics('four'));
  } finally {
    server.stop();
  }
});

/** A server of ssh for this user alone, and a client that knows it and has a key. */
class SshServer {
  /** Of a program that is to use the client. */
  readonly env: Record<string, string>;
  private readonly daemon: ChildProcess;

  static async start(): Promise<SshServer> {
    const server = new SshServer();
    for (let i = 0; i < 200; i++) {
      if (await answers(PORT + 1)) return server;
      await sleep(50);
    }
    server.stop();
    throw new Error('sshd did not start');
  }

  private constructor() {
    const at = (name: string): string => join(workspace.file('ssh_files'), name);
    mkdirSync(at('bin'), { recursive: true });
    chmodSync(workspace.file('ssh_files'), 0o700);
    for (const key of ['host', 'user'])
      execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', at(key)]);
    const daemonSettings = [
      `Port ${PORT + 1}`,
      'ListenAddress 127.0.0.1',
      `HostKey ${at('host')}`,
      `AuthorizedKeysFile ${at('user.pub')}`,
      `PidFile ${at('pid')}`,
      'StrictModes no',
      'UsePAM no',
      'PermitRootLogin prohibit-password',
    ];
    writeFileSync(at('sshd_config'), `${daemonSettings.join('\n')}\n`);
    const client = [
      `IdentityFile ${at('user')}`,
      'IdentitiesOnly yes',
      'AddressFamily inet',
      `UserKnownHostsFile ${at('known')}`,
      'StrictHostKeyChecking accept-new',
    ];
    writeFileSync(at('config'), `${client.join('\n')}\n`);
    writeFileSync(at('bin/ssh'), `#!/bin/sh\nexec ${ssh} -F ${at('config')} "$@"\n`, { mode: 0o755 });
    this.env = { PATH: `${at('bin')}:${process.env['PATH']}` };
    if (process.getuid?.() === 0) mkdirSync('/run/sshd', { recursive: true });
    this.daemon = spawn(sshd as string, ['-D', '-e', '-f', at('sshd_config')], {
      env: { ...process.env, ...marked() },
      stdio: 'ignore',
    });
  }

  stop(): void {
    this.daemon.kill();
  }
}

const answers = (port: number): Promise<boolean> =>
  new Promise((done) => {
    const socket = connect({ port, host: '127.0.0.1' });
    socket.on('connect', () => {
      socket.destroy();
      done(true);
    });
    socket.on('error', () => done(false));
  });
