import path from 'node:path';
import { createLocalLauncher } from '../../ts/controller/local_launcher';
import { HostAgent } from '../../ts/host/agent';
import { HostPool, type HostPoolOptions } from '../../ts/launch/host_pool';

// Hosts of which the agents live in this process: real connections, real worker processes with the fake binding.

const program = {
  args: ['-r', path.join(__dirname, 'register_ts.js'), path.join(__dirname, 'fake_worker.ts')],
  env: {},
};

export interface FakeHosts {
  pool: HostPool;
  agents: HostAgent[];
  log: string[];
}

export const fakeAgent = (controller: string, token: string, index: number | null = null): HostAgent =>
  new HostAgent({
    controller,
    token,
    index,
    network: null,
    launcher: (options, _, output) => createLocalLauncher(options, program, output),
  });

/** `dialled`: agents that come, default as many as the pool waits for. */
export async function gatherFakeHosts(
  options: Partial<HostPoolOptions> = {},
  dialled = options.hosts ?? 2,
): Promise<FakeHosts> {
  const agents: HostAgent[] = [];
  const log: string[] = [];
  const pool = await HostPool.gather({
    hosts: 2,
    place: { address: '127.0.0.1', ports: null },
    starter: null,
    announce: ({ controllers, token }) => {
      for (let i = 0; i < dialled; i++) agents.push(fakeAgent(controllers[0] as string, token, i));
    },
    waitMs: 10_000,
    deadTimeoutMs: 10_000,
    say: (line) => log.push(line),
    ...options,
  });
  return { pool, agents, log };
}
