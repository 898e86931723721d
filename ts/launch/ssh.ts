// Agents by ssh: one client per host, which hands on where the controller is by stdin.
import { agentCommand, carriedEnvironment, shellWord } from './agent_command';
import { commandStarter, type HostStarter } from './starter';

/** `hosts`: [user@]host[:port], an IPv6 address in brackets. The working directory is the same there. */
export function sshStarter(
  hosts: readonly string[],
  network: string | null,
  say: (line: string) => void,
): HostStarter {
  return commandStarter(hosts, (host, index) => sshCommand(host, index, network), say);
}

export function sshCommand(host: string, index: number, network: string | null): string[] {
  const { target, port } = sshTarget(host);
  const command = [
    'exec',
    'env',
    ...carriedEnvironment().map(([name, value]) => shellWord(`${name}=${value}`)),
    ...agentCommand({ index, network, from: 'stdin' }).map(shellWord),
  ].join(' ');
  return [
    'ssh',
    // No question that nobody would answer; and a connection that is cut ends.
    ...[
      '-o',
      'BatchMode=yes',
      '-o',
      'ConnectTimeout=10',
      '-o',
      'ServerAliveInterval=5',
      '-o',
      'ServerAliveCountMax=3',
    ],
    ...(port === null ? [] : ['-p', port]),
    '--',
    target,
    `cd ${shellWord(process.cwd())} && ${command}`,
  ];
}

function sshTarget(host: string): { target: string; port: string | null } {
  const match = /^((?:[^@]*@)?)(?:\[([^\]]+)\]|([^:]+))(?::(\d+))?$/.exec(host);
  if (match === null) return { target: host, port: null };
  const [, user = '', v6, name, port] = match;
  return { target: `${user}${v6 ?? name}`, port: port ?? null };
}
