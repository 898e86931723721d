// What keeps a host out of a run: it must be one that is waited for, and run what the others run.
import { z } from 'zod';
import { TroupeError } from '../errors';
import type { FromHost, HostFacts } from '../host/protocol';
import { packageVersion } from '../install/package_root';
import type { Host } from './host';

const text = z.string().min(1).max(1000);
const helloSchema = z.object({
  type: z.literal('hello'),
  index: z.int().min(0).nullable(),
  facts: z.object({
    name: text,
    address: text,
    interface: text.nullable(),
    pid: z.int(),
    cores: z.int().min(1),
    gpus: z.int().min(0).nullable(),
    version: text,
    node: text,
    addon: text.nullable(),
    libtorch: text.nullable(),
    problem: z.string().nullable(),
  }),
});

/** Why the sender of this first message is not let in; null: it is. `room`: hosts that the run has a use for. */
export function refusal(message: FromHost, present: readonly Host[], room: number): string | null {
  if (message.type !== 'hello') return `its first message was '${message.type}', not 'hello'`;
  const parsed = helloSchema.safeParse(message);
  if (!parsed.success) return `it does not say what it is: ${parsed.error.issues[0]?.path.join('.')}`;
  const { index, facts } = parsed.data;
  if (facts.version !== packageVersion())
    return `it runs version ${facts.version} of Troupe, the controller ${packageVersion()}`;
  if (index !== null && present.some(({ claimed }) => claimed === index))
    return `host ${index} of this run is here already`;
  if (present.length >= room) return `all ${room} hosts of this run are here`;
  return null;
}

/** @throws TroupeError NATIVE_UNAVAILABLE when the native core of a host is missing, or not that of the first host */
export function checkSame(facts: readonly HostFacts[]): void {
  const [first] = facts;
  for (const one of facts) {
    if (one.addon === null || one.libtorch === null)
      throw new TroupeError('NATIVE_UNAVAILABLE', `host ${one.name}: ${one.problem}`);
    const [here, there] = [one, first as HostFacts].map(
      ({ libtorch, addon }) => `LibTorch ${libtorch} (${addon})`,
    );
    if (here !== there)
      throw new TroupeError(
        'NATIVE_UNAVAILABLE',
        `host ${one.name} has ${here}, but host ${first?.name} has ${there}: install the same on all of them`,
      );
  }
}
