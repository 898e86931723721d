// A request to inference servers, and what one of them does of it.
import { randomUUID } from 'node:crypto';
import { printable } from '../../base/printable';
import { TroupeError } from '../../errors';
import { asSubmitted, type CompleteSampling } from '../check_request';
import type { FinishReason, RolloutRequest } from '../request';
import type { Member } from './members';
import { BrokenAnswer, checkPart } from './part_check';
import { RemoteHandle } from './remote_handle';
import { OtherWeights, ServerLost } from './server_client';
import type { ServerPart, ServerProtocol } from './server_protocol';

export interface Job {
  readonly handle: RemoteHandle;
  readonly sampling: CompleteSampling;
  readonly priority: number;
  /** It cannot go on where it was interrupted. */
  readonly whole: boolean;
  /** Servers that were lost under it without a token in between that it kept. */
  failures: number;
  /** Since when servers have too much to do for it, of performance.now(); null: one has made a token of it since. */
  busySince: number | null;
}

export function jobOf(request: RolloutRequest, sampling: CompleteSampling): Job {
  // These look at the response so far, which is part of the prompt for a server that goes on with it.
  const whole =
    request.grammar !== undefined || sampling.presencePenalty !== 0 || sampling.frequencyPenalty !== 0;
  const { promptIds } = request;
  const asked = {
    ...asSubmitted(request),
    promptIds: promptIds instanceof Int32Array ? promptIds : Int32Array.from(promptIds),
  };
  const handle = new RemoteHandle(asked, sampling.topLogProbs > 0, whole);
  return { handle, sampling, priority: request.priority ?? 0, whole, failures: 0, busySince: null };
}

/**
 * A response that another server began goes on where that one was lost, or begins again. `count` is told of each part.
 * @throws ServerLost, OtherWeights, also where the response has ended; ServerRefused, TroupeError
 */
export async function serveJob(
  { handle, sampling, priority, whole }: Job,
  { protocol, vocabSize }: { protocol: ServerProtocol; vocabSize: number },
  member: Member,
  count: (part: ServerPart) => void,
): Promise<void> {
  const resumed = (): number[] => [...Array.from(handle.request.promptIds), ...handle.tokens];
  if ((whole || (handle.tokens.length > 0 && !protocol.takes(resumed()))) && !handle.startOver()) {
    throw new TroupeError(
      'COMM',
      `[rollout] the server of a response was lost, and ${protocol.name} cannot go on with its ${handle.tokens.length} tokens, nor begin again: they have ` +
        'been handed out',
    );
  }
  const start = handle.tokens.length;
  // A server was lost between its last token and the word that it was the last.
  if (start > 0 && sampling.stopTokenIds.includes(handle.tokens[start - 1] as number))
    return handle.finish('stop');
  if (start >= sampling.maxNewTokens) return handle.finish('length');
  const { grammar, cacheSalt } = handle.request;
  const { client } = member.server;
  const id = randomUUID();
  const seed = sampling.seed === undefined ? undefined : sampling.seed + BigInt(start);
  const parts = protocol.generate(
    client,
    {
      id,
      promptIds: resumed(),
      sampling: { ...sampling, seed, maxNewTokens: sampling.maxNewTokens - start },
      grammar: grammar ?? null,
      cacheSalt: cacheSalt ?? null,
      priority,
    },
    handle.signal,
  );
  const { version: begunWith, given } = member;
  let finish: FinishReason | undefined;
  try {
    for await (const part of parts) {
      if (handle.ended) return;
      const room = finish === undefined ? sampling.maxNewTokens - handle.tokens.length : 0;
      const sent = handle.tokens.length - start;
      checkPart(part, { url: client.url, vocabSize, sent, room, top: sampling.topLogProbs > 0 });
      if (given) checkWeights(handle, part, member, begunWith);
      count(part);
      handle.add(part, start, { begunWith, now: member.version });
      // Nobody has asked it to: as vLLM ends what it has when it is stopped in order.
      if (part.finish === 'abort') throw new ServerLost(`${client.url} gave a response up`);
      finish ??= part.finish;
    }
  } catch (error) {
    // All tokens are there: what was to follow are counts.
    if (finish === undefined || error instanceof BrokenAnswer) throw error;
  } finally {
    if (handle.signal.aborted) void protocol.abort(client, id).catch(() => undefined);
  }
  if (finish === undefined) throw new ServerLost(`${client.url} ended a response before it was complete`);
  handle.finish(finish);
}

/** @throws OtherWeights where the weights that made a part are none that the server was given */
function checkWeights(handle: RemoteHandle, part: ServerPart, member: Member, begunWith: number): void {
  const { version, loading, server } = member;
  const made = [...(part.versions ?? []).map((span) => span.version), part.endVersion ?? version];
  // While it gets new ones they may be of either.
  const stale = !loading && version === begunWith && made.some((one) => one !== version);
  if (part.otherWeights === undefined && !stale) return;
  const found = printable(part.otherWeights ?? String(made.find((one) => one !== version)), { max: 100 });
  const what =
    `${server.client.url} has the weights "${found}" in place of "${version}", which it was given: it was started again, or another ` +
    'server answers at its address';
  if (!handle.startOver())
    handle.fail(new TroupeError('COMM', `[rollout] ${what}; tokens that they made have been handed out`));
  throw new OtherWeights(what);
}
