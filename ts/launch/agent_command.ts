// The command that becomes the agent of a host.
import path from 'node:path';
import { packageRoot } from '../install/package_root';

export interface AgentCommandOptions {
  index: number | null;
  network: string | null;
  /** Where it learns of the controller. */
  from: 'stdin' | { file: string };
}

/** Program and arguments, for a host that has the same files in the same places. Nothing secret is among them. */
export function agentCommand({ index, network, from }: AgentCommandOptions): string[] {
  return [
    process.execPath,
    path.join(packageRoot, 'dist', 'cli.js'),
    'host-agent',
    ...(from === 'stdin' ? ['--stdin'] : ['--rendezvous', from.file]),
    ...(index === null ? [] : ['--index', String(index)]),
    ...(network === null ? [] : ['--network', network]),
  ];
}

/** Of the environment, what a shell on another host would not set by itself. */
export function carriedEnvironment(env: NodeJS.ProcessEnv = process.env): [string, string][] {
  const carried =
    /^(TROUPE_LIBTORCH|TROUPE_RETURN_FREED_MEMORY|OMP_WAIT_POLICY|GOMP_SPINCOUNT|TORCH_CPP_LOG_LEVEL)$|^(NCCL|GLOO)_/;
  return Object.entries(env).filter(
    (entry): entry is [string, string] => carried.test(entry[0]) && entry[1] !== undefined,
  );
}

/** A word for a POSIX shell. */
export const shellWord = (word: string): string =>
  /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
