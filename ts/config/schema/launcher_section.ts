// trainer.launcher: what starts the processes of a run on its hosts, and the network between them; of both programs.
import { z } from 'zod';
import { choice, field, orNull, seconds, str, strings, type ValueType } from './field';
import { LAUNCHERS } from './launchers';

const LAST_PORT = 65_535;

const portRange: ValueType<readonly [number, number]> = {
  name: `a range of ports such as 20000-20063, up to ${LAST_PORT}`,
  schema: z
    .string()
    .regex(/^\d+-\d+$/)
    .transform((text) => text.split('-').map(Number) as [number, number])
    .refine(([first, last]) => first >= 1 && first <= last && last <= LAST_PORT),
};

export const launcherSection = {
  type: field(
    orNull(choice(...LAUNCHERS)),
    null,
    'What starts the processes on each host; null: local for one host, else what the environment shows (slurm, env). docs/launching.md.',
  ),
  hosts: field(strings, [] as readonly string[], 'ssh: [user@]host[:port] of every host.'),
  network: field(
    orNull(str),
    null,
    'Interface (eth0), subnet (10.0.0.0/8) or address that hosts talk over; null: the one that reaches the controller.',
  ),
  ports: field(orNull(portRange), null, 'Ports that the controller may listen on; null: any that is free.'),
  rendezvous: field(
    orNull(str),
    null,
    'env: file that all hosts see, where the controller says how to reach it; null: .rendezvous.json in the run directory.',
  ),
  token_file: field(
    orNull(str),
    null,
    'external: file with the token that agents show, that not everybody can read; null: a new token each time.',
  ),
  ray_address: field(str, 'auto', 'ray: address of the cluster; auto: the one that this machine is in.'),
  python: field(str, 'python3', 'ray: the interpreter that has Ray.'),
  wait: field(seconds, 300, 'Seconds that the hosts may take to come.'),
};
