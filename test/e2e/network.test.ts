import { spawn } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { allGone, Command, type Exit, runCommand, sleep, workersOf } from '../helpers/e2e_process';
import { promptRows, Workspace } from '../helpers/e2e_workspace';
import { describeWithHosts, HostNetwork } from '../helpers/host_network';
import { marked } from '../helpers/left_over';

// Runs over hosts that are network namespaces: the controller on one, two workers on each of two others. What takes minutes (a slow
// link, a lossy one, one that is cut) runs where TROUPE_NETWORK_TESTS is set.

const slow = process.env['TROUPE_NETWORK_TESTS'] ? test : test.skip;
const TOKEN = 'f4c1'.repeat(16);
/** Of the controller's first listener; the workers' follows. */
const PORT = 29_400;
/** Of one run on a slow network. */
const LIMIT_MS = 1_200_000;

/** The usual reward, given once the file "hold" is gone: a run lasts as long as what is done to it. */
const HELD_REWARD = `const { existsSync } = require('node:fs');
const { join } = require('node:path');
const quick = require('./reward.cjs').compute_score;
exports.compute_score = async (sample) => {
  while (existsSync(join(__dirname, 'hold'))) await new Promise((done) => setTimeout(done, 50));
  return quick(sample);
};
`;

let workspace: Workspace;
let expected: string;
let tokenFile: string;
let theNetwork: HostNetwork | null = null;
let theRun: HostedRun | null = null;

describeWithHosts('hosts in network namespaces', () => {
  beforeAll(async () => {
    workspace = await Workspace.create();
    tokenFile = workspace.file('token');
    writeFileSync(tokenFile, TOKEN, { mode: 0o600 });
    writeFileSync(workspace.file('held.cjs'), HELD_REWARD);
    const alone = await runCommand([...args('alone'), 'trainer.n_gpus_per_node=4']);
    expect(alone.code === 0 ? '' : alone.stderr).toBe('');
    expected = metrics('alone');
  }, 600_000);
  afterEach(async () => {
    await theRun?.kill();
    await theNetwork?.remove();
    [theRun, theNetwork] = [null, null];
  });
  afterAll(() => workspace?.remove());

  test('two hosts under attack: the metrics of one machine, and nothing to read on the wire', async () => {
    const network = await hostNetwork();
    const stopCapture = await network.capture(workspace.file('wire.pcap'));
    writeFileSync(workspace.file('hold'), '');
    const run = new HostedRun(network, 'attacked');
    await run.controller.until('training', () => run.controller.said(/training for 8 steps/));
    const attack = await attacked(network);
    rmSync(workspace.file('hold'));
    const exit = await run.end();
    // What is in the clear is seen: the attacker says so himself.
    await stopCapture();
    const wire = readFileSync(workspace.file('wire.pcap'));

    expect(exit.code === 0 ? '' : `${exit.stdout}\n${exit.stderr}`).toBe('');
    expect(metrics('attacked')).toBe(expected);
    expect(exit.stdout).toMatch(/host 1: node2 at 10\.77\.0\.3 \(eth0\), .*: ranks 2 to 3/);
    expect(exit.stdout).toMatch(/refused a host connection from 10\.77\.0\.3:\d+: .*token/);
    expect(attack.openPorts).toEqual([PORT, PORT + 1]);
    expect(attack.taken).toEqual([]);
    expect(attack.closed).toBe(1000);
    expect(wire.includes(PLAIN)).toBe(true);
    const texts = promptRows(20).map(({ prompt }) => prompt as string);
    for (const secret of [TOKEN, workspace.path, 'embed_tokens', 'ground_truth', 'global_step', ...texts])
      expect([secret, wire.includes(secret)]).toEqual([secret, false]);
  }, 600_000);

  slow(
    '50 ms each way: the same metrics',
    async () => {
      const network = await hostNetwork(50);
      const exit = await new HostedRun(network, 'delayed').end();
      expect(exit.code === 0 ? '' : `${exit.stdout}\n${exit.stderr}`).toBe('');
      expect(metrics('delayed')).toBe(expected);
    },
    1_200_000,
  );

  slow(
    'one packet of a hundred is lost: the same metrics',
    async () => {
      const network = await hostNetwork();
      for (const host of [0, 1, 2]) network.lose(host, 1);
      const exit = await new HostedRun(network, 'lossy').end();
      const lost = [0, 1, 2].map((host) => network.lost(host));
      expect(exit.code === 0 ? '' : `${exit.stdout}\n${exit.stderr}`).toBe('');
      expect(metrics('lossy')).toBe(expected);
      expect(lost.every((packets) => packets > 0)).toBe(true);
    },
    600_000,
  );

  slow(
    'a link that is cut for 5 s: nothing is lost',
    async () => {
      const network = await hostNetwork();
      const run = new HostedRun(network, 'cut');
      await run.controller.until('a step', () => stepsOf('cut') > 0);
      network.cut(2);
      await sleep(5_000);
      network.mend(2);
      const exit = await run.end();
      expect(exit.code === 0 ? '' : `${exit.stdout}\n${exit.stderr}`).toBe('');
      expect(exit.stdout).not.toMatch(/is lost|failed after/);
      expect(metrics('cut')).toBe(expected);
    },
    600_000,
  );

  slow(
    'a link that is cut for 60 s: the host is named, the run goes on when it is back, nothing stays',
    async () => {
      const network = await hostNetwork();
      const run = new HostedRun(network, 'gone', 'trainer.fault_tolerance.max_restarts=3');
      await run.controller.until('a step', () => stepsOf('gone') > 0);
      const workers = run.workers();
      expect(workers).toHaveLength(4);
      const cutAt = Date.now();
      network.cut(2);
      await run.controller.until('the loss of the host', () => run.controller.said(/host node2 is lost/));
      expect(Date.now() - cutAt).toBeLessThan(30_000);
      expect(await allGone(workers, 15_000)).toBe(true);
      await sleep(Math.max(0, cutAt + 60_000 - Date.now()));
      network.mend(2);
      const exit = await run.end();
      expect(exit.code === 0 ? '' : `${exit.stdout}\n${exit.stderr}`).toBe('');
      expect(exit.stdout).toMatch(/host node2 is lost: it has sent nothing for 10 s/);
      expect(exit.stdout).toMatch(/failed after step \d+: .*rank [23] on node2/);
      expect(metrics('gone')).toBe(expected);
      expect(await allGone([...run.started, ...run.workers()], 15_000)).toBe(true);
    },
    900_000,
  );
});

const args = (name: string): string[] => [
  'train',
  workspace.file('train.yaml'),
  `trainer.default_local_dir=${workspace.file(name)}`,
  'trainer.total_training_steps=8',
  `reward.custom_reward_function.path=${workspace.file('held.cjs')}`,
];

const metrics = (name: string): string => readFileSync(join(workspace.file(name), 'metrics.jsonl'), 'utf8');

function stepsOf(name: string): number {
  try {
    return metrics(name).split('\n').length - 1;
  } catch {
    return 0;
  }
}

/** Host 0 of the controller, and two of workers; gone when the test is over. */
async function hostNetwork(delayMs = 0): Promise<HostNetwork> {
  theNetwork = await HostNetwork.create(3, delayMs);
  return theNetwork;
}

/** The controller on host 0, an agent on each other one; agents that end are started again, as an engine does. */
class HostedRun {
  readonly controller: Command;
  readonly started: number[] = [];
  private readonly agents: Command[];
  private over = false;

  constructor(
    private readonly network: HostNetwork,
    name: string,
    ...overrides: string[]
  ) {
    this.controller = new Command(
      [
        ...args(name),
        'trainer.nnodes=2',
        'trainer.n_gpus_per_node=2',
        'trainer.launcher.type=external',
        `trainer.launcher.ports=${PORT}-${PORT + 50}`,
        `trainer.launcher.token_file=${tokenFile}`,
        'trainer.launcher.network=eth0',
        'trainer.worker_timeouts.startup=300',
        ...overrides,
      ],
      { prefix: network.on(0), limitMs: LIMIT_MS },
    );
    this.started.push(this.controller.pid);
    this.agents = [1, 2].map((host) => this.start(host));
    for (const host of [1, 2]) void this.keep(host);
    theRun = this;
  }

  /** What of it is still there. */
  async kill(): Promise<void> {
    this.over = true;
    for (const command of [this.controller, ...this.agents]) command.kill('SIGKILL');
    await Promise.all([this.controller, ...this.agents].map(({ exited }) => exited));
  }

  async end(): Promise<Exit> {
    const exit = await this.controller.exited;
    this.over = true;
    // An agent that ended a moment before the controller may have been started again: it would wait for the next one.
    const all = Promise.all(this.agents.map((agent) => agent.exited));
    if ((await Promise.race([all, sleep(3_000)])) === undefined)
      for (const agent of this.agents) agent.kill('SIGKILL');
    await all;
    return exit;
  }

  workers(): number[] {
    return this.agents.flatMap(({ pid }) => workersOf(pid));
  }

  private start(host: number): Command {
    const agent = new Command(hostAgent(this.network, tokenFile, host - 1), {
      prefix: this.network.on(host),
      limitMs: LIMIT_MS,
    });
    this.started.push(agent.pid);
    return agent;
  }

  private async keep(host: number): Promise<void> {
    while (!this.over) {
      await this.agents[host - 1]?.exited;
      await sleep(200);
      if (!this.over) this.agents[host - 1] = this.start(host);
    }
  }
}

const hostAgent = (network: HostNetwork, token: string, index: number, wait = 300): string[] => [
  ...['host-agent', '--controller', `${network.address(0)}:${PORT}`, '--token-file', token],
  ...['--index', `${index}`, '--wait', `${wait}`],
];

const PLAIN = 'this is said in the clear';

/** What a stranger on host 2 does: a scan of ports, connections that say nothing or nonsense, TLS with a certificate, a wrong token. */
async function attacked(
  network: HostNetwork,
): Promise<{ openPorts: number[]; closed: number; taken: string[] }> {
  const other = workspace.file('other_token');
  writeFileSync(other, 'abcd'.repeat(16), { mode: 0o600 });
  const wrong = new Command(hostAgent(network, other, 1, 2), { prefix: network.on(2) });
  const program = [...network.on(2), process.execPath, '-e', `(${attack.toString()})()`];
  const child = spawn(program[0] as string, program.slice(1), {
    env: { ...process.env, ...marked(), HOST: network.address(0), PORT: `${PORT}`, PLAIN },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let told = '';
  child.stdout.on('data', (text: Buffer) => {
    told += text.toString();
  });
  const [refused] = await Promise.all([wrong.exited, new Promise((done) => child.once('close', done))]);
  expect([refused.code, refused.stderr]).toEqual([1, expect.stringMatching(/did not present the token/)]);
  return JSON.parse(told) as { openPorts: number[]; closed: number; taken: string[] };
}

/** Runs in a process of its own, by its source. */
async function attack(): Promise<void> {
  const [net, tls] = [require('node:net'), require('node:tls')] as [
    typeof import('node:net'),
    typeof import('node:tls'),
  ];
  const { HOST: host, PORT: first, PLAIN: plain } = process.env as Record<string, string>;
  const port = Number(first);
  const open = (to: number): Promise<boolean> =>
    new Promise((done) => {
      const socket = net.connect({ host: host as string, port: to });
      socket.on('connect', () => {
        socket.destroy();
        done(true);
      });
      socket.on('error', () => done(false));
    });
  const openPorts: number[] = [];
  for (let to = 1; to < 65_536; to += 1000) {
    const range = Array.from({ length: Math.min(1000, 65_536 - to) }, (_, i) => to + i);
    const found = await Promise.all(range.map(open));
    openPorts.push(...range.filter((_, i) => found[i]));
  }
  const taken: string[] = [];
  const said = (bytes: string): Promise<void> =>
    new Promise((done) => {
      const socket = net.connect({ host: host as string, port });
      socket.on('connect', () => socket.write(bytes));
      socket.on('data', (answer: Buffer) => answer[0] !== 21 && taken.push(`an answer to ${bytes}`));
      socket.on('error', () => {});
      socket.on('close', () => done());
    });
  // Before the flood, in which a connection may be refused before it has said a word.
  await said(plain as string);
  // Half of them say nothing, half begin a handshake and leave it at that.
  const hello = Buffer.from(`1603010200${'01'.repeat(40)}`, 'hex');
  let closed = 0;
  const idle = Array.from(
    { length: 1000 },
    (_, i) =>
      new Promise<void>((done) => {
        const socket = net.connect({ host: host as string, port: port + (i % 2) });
        socket.on('connect', () => {
          if (i % 4 > 1) socket.write(hello);
        });
        socket.resume();
        socket.on('error', () => {});
        socket.on('close', () => {
          closed++;
          done();
        });
      }),
  );
  await said('GET / HTTP/1.1\r\n\r\n');
  for (const options of [{}, { maxVersion: 'TLSv1.2' }, { psk: true, maxVersion: 'TLSv1.2' }] as const)
    await new Promise<void>((done) => {
      const key = { psk: Buffer.alloc(32, 1), identity: 'host' };
      const socket = tls.connect({
        host: host as string,
        port,
        rejectUnauthorized: false,
        ...('maxVersion' in options ? { maxVersion: options.maxVersion } : {}),
        ...('psk' in options ? { ciphers: 'PSK', pskCallback: () => key, minVersion: 'TLSv1.2' } : {}),
      });
      socket.on('secureConnect', () => {
        taken.push(JSON.stringify(options));
        socket.destroy();
      });
      socket.resume();
      socket.on('error', () => {});
      socket.on('close', () => done());
    });
  await Promise.all(idle);
  process.stdout.write(JSON.stringify({ openPorts, closed, taken }));
}
