import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { sleep } from './e2e_process';
import { marked } from './left_over';

// Hosts of a network of their own: a network namespace each, with a virtual cable to a bridge, or to a hub that delays what it hands on.

const found = (program: string): boolean =>
  spawnSync('sh', ['-c', `command -v ${program}`], { stdio: 'ignore' }).status === 0;

function obstacle(): string | null {
  if (process.getuid?.() !== 0) return 'not root';
  const missing = ['ip', 'nft', 'tcpdump', 'nsenter', 'unshare'].filter((name) => !found(name));
  if (missing.length > 0) return `${missing.join(', ')} not installed`;
  const name = `troupe-probe-${process.pid}`;
  const made =
    spawnSync('ip', ['netns', 'add', name]).status === 0 &&
    spawnSync('ip', ['-n', name, 'link', 'add', 'br0', 'type', 'bridge']).status === 0;
  spawnSync('ip', ['netns', 'del', name]);
  return made ? null : 'no network namespaces or bridges are permitted';
}

/** Why there can be no such hosts here; null: there can. */
export const noHosts = obstacle();

/** `describe`, or skipped with the reason in its name. */
export const describeWithHosts = (name: string, tests: () => void): void =>
  noHosts === null ? describe(name, tests) : describe.skip(`${name} (${noHosts})`, tests);

/** How long a helper of the network may take to end. */
const STOP_MS = 10_000;

export class HostNetwork {
  private static made = 0;
  private readonly name: string;
  private readonly bridge: string;
  private readonly taps: ChildProcess | null;

  /** `delayMs`: of every frame, each way; 0: a bridge without one. */
  static async create(hosts: number, delayMs = 0): Promise<HostNetwork> {
    const name = `troupe-${process.pid}-${HostNetwork.made++}`;
    const hub =
      delayMs === 0
        ? null
        : spawn('python3', [join(__dirname, 'delay_hub.py'), `${delayMs / 1000}`, ...tapNames(hosts)], {
            env: { ...process.env, ...marked() },
            stdio: ['pipe', 'pipe', 'inherit'],
          });
    if (hub !== null) await once(createInterface({ input: hub.stdout as NodeJS.ReadableStream }), 'line');
    return new HostNetwork(name, hosts, hub);
  }

  private constructor(name: string, hosts: number, hub: ChildProcess | null) {
    this.name = name;
    this.bridge = `${name}-b`;
    this.taps = hub;
    this.hosts = hosts;
    ip('netns', 'add', this.bridge);
    if (hub === null) {
      ip('-n', this.bridge, 'link', 'add', 'br0', 'type', 'bridge');
      ip('-n', this.bridge, 'link', 'set', 'br0', 'up');
    }
    for (let i = 0; i < hosts; i++) {
      const space = this.space(i);
      ip('netns', 'add', space);
      if (hub === null) {
        ip('-n', this.bridge, 'link', 'add', `p${i}`, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', space);
        ip('-n', this.bridge, 'link', 'set', `p${i}`, 'master', 'br0', 'up');
      } else {
        ip('link', 'set', tapNames(hosts)[i] as string, 'netns', space, 'name', 'eth0');
      }
      ip('-n', space, 'addr', 'add', `${this.address(i)}/24`, 'dev', 'eth0');
      ip('-n', space, 'link', 'set', 'eth0', 'up');
      ip('-n', space, 'link', 'set', 'lo', 'up');
    }
  }

  readonly hosts: number;

  address(host: number): string {
    return `10.77.0.${host + 1}`;
  }

  /** What starts a program on a host, under the host's name. */
  on(host: number): string[] {
    const named = [
      'unshare',
      '--uts',
      'sh',
      '-c',
      `echo node${host} > /proc/sys/kernel/hostname; exec "$@"`,
      'sh',
    ];
    return ['nsenter', `--net=/run/netns/${this.space(host)}`, '--', ...named];
  }

  /** Pulls the cable of a host. */
  cut(host: number): void {
    ip('-n', this.bridge, 'link', 'set', `p${host}`, 'down');
  }

  mend(host: number): void {
    ip('-n', this.bridge, 'link', 'set', `p${host}`, 'up');
  }

  /** Of what comes to a host, that share is lost. */
  lose(host: number, percent: number): void {
    const rules = `table inet troupe {
      chain in {
        type filter hook input priority 0
        iifname "eth0" numgen random mod 100 < ${percent} counter drop
      }
    }\n`;
    run([...this.on(host), 'nft', '-f', '-'], rules);
  }

  /** Packets that were lost so. */
  lost(host: number): number {
    return Number(/packets (\d+)/.exec(run([...this.on(host), 'nft', 'list', 'ruleset']))?.[1] ?? 0);
  }

  /** Writes all that passes the bridge to `file`, until it is told to stop. */
  async capture(file: string): Promise<() => Promise<void>> {
    const inside = ['nsenter', `--net=/run/netns/${this.bridge}`, '--'];
    const options = ['-i', 'br0', '-s', '0', '-B', '65536', '-U', '-Z', 'root', '-w', file];
    const child = spawn('nsenter', [...inside.slice(1), 'tcpdump', ...options], {
      env: { ...process.env, ...marked() },
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    const said = createInterface({ input: child.stderr as NodeJS.ReadableStream });
    const [line] = (await once(said, 'line')) as [string];
    if (!line.includes('listening')) throw new Error(`tcpdump: ${line}`);
    return async () => {
      await sleep(500);
      const gone = once(child, 'exit');
      child.kill('SIGINT');
      if (child.exitCode === null) await Promise.race([gone, sleep(STOP_MS)]);
    };
  }

  async remove(): Promise<void> {
    for (let i = 0; i < this.hosts; i++) ip('netns', 'del', this.space(i));
    ip('netns', 'del', this.bridge);
    if (this.taps === null) return;
    const gone = once(this.taps, 'exit');
    this.taps.stdin?.end();
    if (this.taps.exitCode === null) await Promise.race([gone, sleep(STOP_MS)]);
  }

  private space(host: number): string {
    return `${this.name}-${host}`;
  }
}

/** Names of interfaces are short. */
const tapNames = (hosts: number): string[] =>
  Array.from({ length: hosts }, (_, i) => `tr${process.pid % 1_000_000}t${i}`);

const ip = (...args: string[]): string => run(['ip', ...args]);

function run([program, ...args]: readonly string[], input = ''): string {
  const { status, stdout, stderr } = spawnSync(program as string, args, {
    input,
    encoding: 'utf8',
    timeout: 30_000,
  });
  if (status === 0) return stdout;
  throw new Error(`${[program, ...args].join(' ')}: ${stderr}`);
}
