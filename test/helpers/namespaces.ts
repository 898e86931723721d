import { spawnSync } from 'node:child_process';

const isRoot = process.getuid?.() === 0;

/** Whether this kernel, or container, lets the sandbox have namespaces. */
export const namespacesPermitted =
  spawnSync('unshare', [
    ...(isRoot ? [] : ['--user', '--map-root-user']),
    ...['--net', '--pid', '--mount', '--fork', '--mount-proc', 'mount', '-t', 'tmpfs', 'tmpfs', '/tmp'],
  ]).status === 0;

/** `describe`, or skipped with the reason in its name. */
export const describeWithNamespaces: jest.Describe = namespacesPermitted ? describe : describe.skip;

/** The start of a command that runs as a user who is not root; null: this process is not root, or such a user could not read `file`. */
export function asOtherUser(file: string): string[] | null {
  const prefix = ['setpriv', '--reuid=54321', '--regid=54321', '--clear-groups'];
  if (!isRoot) return null;
  return spawnSync(prefix[0] as string, [...prefix.slice(1), 'test', '-r', file]).status === 0
    ? prefix
    : null;
}
