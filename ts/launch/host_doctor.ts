// What can be known of the hosts of a run before it starts: that they come, run the same, see the same directory, agree on the time, and
// that ranks on them reach each other.
import { randomBytes } from 'node:crypto';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { makeDirectories } from '../base/make_directories';
import { reasonOf } from '../base/text';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { defaultDevice, machineOf } from '../controller/default_device';
import { WorkerGroup } from '../controller/worker_group';
import type { Host } from './host';
import type { HostPool } from './host_pool';
import { gatherHosts, type Part } from './launch';

export interface HostFinding {
  /** What was looked at. */
  name: string;
  ok: boolean;
  found: string;
  /** What to do; null unless there is something to do. */
  fix: string | null;
}

/** The longest that hosts, and then ranks, are waited for. */
const MOST_SECONDS = 25;
/** Beyond that logs of hosts cannot be read together. */
const MOST_CLOCK_MS = 1_000;

/** Gathers the hosts as a run would, looks, and lets them go. Never rejects: what goes wrong is a finding. */
export async function examineHosts(
  config: ResolvedConfig | ResolvedSftConfig,
  part: Extract<Part, { part: 'controller' }>,
  say: (line: string) => void,
): Promise<HostFinding[]> {
  const { trainer } = config;
  const wait = Math.min(trainer.launcher.wait, MOST_SECONDS);
  const brief = { ...config, trainer: { ...trainer, launcher: { ...trainer.launcher, wait } } };
  let pool: HostPool;
  try {
    pool = await gatherHosts(brief as typeof config, part, { say });
  } catch (error) {
    const fix =
      'Look at what starts the agents (trainer.launcher), and at firewalls between the hosts and this one.';
    return [{ name: 'hosts', ok: false, found: reasonOf(error), fix }];
  }
  try {
    const findings = await examineMembers(pool.members, trainer.default_local_dir);
    return [...findings, await examineRanks(config, pool)];
  } finally {
    await pool.close(0);
  }
}

async function examineMembers(hosts: readonly Host[], directory: string): Promise<HostFinding[]> {
  const file = join(directory, `.doctor_${process.pid}`);
  const content = randomBytes(16).toString('hex');
  try {
    makeDirectories(directory);
    writeFileSync(file, content, { mode: 0o600 });
  } catch (error) {
    const fix = 'Name a directory that can be written in trainer.default_local_dir.';
    return [{ name: 'run directory', ok: false, found: reasonOf(error), fix }];
  }
  try {
    return await Promise.all(
      hosts.map((host, index) => examineHost(host, index, file, content, hosts[0] as Host)),
    );
  } finally {
    rmSync(file, { force: true });
  }
}

async function examineHost(
  host: Host,
  index: number,
  file: string,
  content: string,
  first: Host,
): Promise<HostFinding> {
  const { facts } = host;
  const name = `host ${index} ${host.name}`;
  const has =
    `${facts.address}${facts.interface === null ? '' : ` (${facts.interface})`}, ${facts.cores} cores, ${facts.gpus ?? 'no'} GPUs, ` +
    `Troupe ${facts.version}, Node.js ${facts.node}, LibTorch ${facts.libtorch} (${facts.addon})`;
  try {
    const { seen, clockMs, roundTripMs } = await host.probe(file);
    const found = `${has}; ${roundTripMs.toFixed(1)} ms there and back, clock ${clockMs >= 0 ? '+' : ''}${clockMs.toFixed(0)} ms`;
    const bad = (fix: string): HostFinding => ({ name, ok: false, found, fix });
    if (seen !== content)
      return bad(
        `It does not see ${file}, written here: the run directory must be on a file system that all hosts share.`,
      );
    if (facts.node !== first.facts.node)
      return bad(
        `It has another Node.js than ${first.name} (${first.facts.node}): install the same on all of them.`,
      );
    if (Math.abs(clockMs) > MOST_CLOCK_MS + roundTripMs)
      return bad('Its clock is another one than that of this host: run an NTP client on both.');
    return { name, ok: true, found, fix: null };
  } catch (error) {
    return { name, ok: false, found: reasonOf(error), fix: 'See what its agent has written.' };
  }
}

/** All workers of the run, without a model: that they start, load the native core, and reach each other. */
async function examineRanks(
  { trainer }: ResolvedConfig | ResolvedSftConfig,
  pool: HostPool,
): Promise<HostFinding> {
  const worldSize = trainer.n_gpus_per_node * pool.members.length;
  const launcher = pool.launcher();
  const device = trainer.device === 'auto' ? defaultDevice(machineOf(launcher)).device : trainer.device;
  let group: WorkerGroup | null = null;
  const start = performance.now();
  const seconds = (since: number): string => ((performance.now() - since) / 1000).toFixed(1);
  try {
    group = await WorkerGroup.launch({
      ...{ worldSize, hosts: pool.members.length, device, launcher },
      ...{ startupTimeoutMs: 1000 * MOST_SECONDS, collectiveTimeoutMs: 1000 * MOST_SECONDS },
      log: () => {},
    });
    const started = seconds(start);
    const meeting = performance.now();
    await group.connect();
    const found = `${worldSize} workers (${device}) started in ${started} s and have connections to each other after ${seconds(meeting)} s`;
    return { name: 'ranks', ok: true, found, fix: null };
  } catch (error) {
    const fix =
      'Ranks talk by Gloo (NCCL on GPUs) over the address of their host, on ports that the system picks: let them through, or name another ' +
      'interface or subnet in trainer.launcher.network.';
    return { name: 'ranks', ok: false, found: reasonOf(error), fix };
  } finally {
    await group?.close();
  }
}
