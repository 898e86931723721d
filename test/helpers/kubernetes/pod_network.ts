// The network of pods: each has a network namespace, with a cable to one bridge.
import { spawnSync } from 'node:child_process';

export interface PodAddress {
  ip: string;
  /** What starts a program there. */
  prefix: readonly string[];
  remove(): void;
}

export class PodNetwork {
  private static made = 0;
  private readonly name = `troupe-pods-${process.pid}-${PodNetwork.made++}`;
  private added = 0;

  constructor() {
    ip('netns', 'add', this.name);
    ip('-n', this.name, 'link', 'add', 'br0', 'type', 'bridge');
    ip('-n', this.name, 'link', 'set', 'br0', 'up');
  }

  add(): PodAddress {
    const i = ++this.added;
    const space = `${this.name}-${i}`;
    // 10.78.1.1 to 10.78.250.250
    const address = `10.78.${1 + Math.floor(i / 250)}.${1 + (i % 250)}`;
    ip('netns', 'add', space);
    ip('-n', this.name, 'link', 'add', `p${i}`, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', space);
    ip('-n', this.name, 'link', 'set', `p${i}`, 'master', 'br0', 'up');
    ip('-n', space, 'addr', 'add', `${address}/16`, 'dev', 'eth0');
    ip('-n', space, 'link', 'set', 'eth0', 'up');
    ip('-n', space, 'link', 'set', 'lo', 'up');
    return {
      ip: address,
      prefix: ['nsenter', `--net=/run/netns/${space}`, '--'],
      remove: () => ip('netns', 'del', space),
    };
  }

  remove(): void {
    ip('netns', 'del', this.name);
  }
}

function ip(...args: string[]): void {
  const { status, stderr } = spawnSync('ip', args, { encoding: 'utf8', timeout: 30_000 });
  if (status !== 0) throw new Error(`ip ${args.join(' ')}: ${stderr}`);
}
