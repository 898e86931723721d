import { spawnSync } from 'node:child_process';

const isRoot = process.getuid?.() === 0;

/** Whether a command starts namespaces and may mount in them; `prefix` runs it as another user, who is not root. */
function permitted(prefix: string[], namedUser: boolean): boolean {
  const [program, ...args] = [
    ...prefix,
    'unshare',
    ...(namedUser ? ['--user', '--map-root-user'] : []),
    ...['--net', '--ipc', '--uts', '--pid', '--mount', '--fork', '--mount-proc'],
    ...['mount', '-t', 'tmpfs', 'tmpfs', '/tmp'],
  ];
  return spawnSync(program as string, args, { cwd: '/' }).status === 0;
}

/** Whether this kernel, or container, lets the sandbox have namespaces. */
export const namespacesPermitted = permitted([], !isRoot);

/** `describe`, or skipped with the reason in its name. */
export const describeWithNamespaces: jest.Describe = namespacesPermitted ? describe : describe.skip;

/**
 * The start of a command that runs as a user who is not root; null: this process is not root, or such a user could not read
 * `file`, or may not have namespaces here (many containers and some distributions keep them for root).
 */
export function asOtherUser(file: string): string[] | null {
  const prefix = ['setpriv', '--reuid=54321', '--regid=54321', '--clear-groups'];
  if (!isRoot) return null;
  const readable = spawnSync(prefix[0] as string, [...prefix.slice(1), 'test', '-r', file]).status === 0;
  return readable && permitted(prefix, true) ? prefix : null;
}
