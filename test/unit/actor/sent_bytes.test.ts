// What the verbs of a step send: of each column that the workers read its bytes once per rank that reads them, and of no other.
import { Actor } from '../../../ts/actor/actor';
import { Batch } from '../../../ts/batch/batch';
import { Critic } from '../../../ts/critic/critic';
import { encodeMessage } from '../../../ts/worker/message_codec';
import { CONFORMANCE } from '../../helpers/conformance';
import { FakeGroup } from './fake_group';

const [PROMPTS, N, PROMPT, RESPONSE] = [16, 4, 8, 120];
const SEQUENCES = PROMPTS * N;
const TOKENS = 4 * SEQUENCES * (PROMPT + RESPONSE);
const COLUMN = 4 * SEQUENCES * RESPONSE;
/** Of messages and layouts: 24 bytes a sequence, and what is constant. */
const REST = 24 * SEQUENCES + 4 * 2000;

/** Counts the bytes of what each rank is sent, by method. */
class CountingGroup extends FakeGroup {
  readonly bytes = new Map<string, number>();

  override async callRank(rank: number, engine: string, method: string, args: unknown[]): Promise<unknown> {
    const { head, segments } = encodeMessage({ type: 'callEngine', requestId: 1, engine, method, args });
    const bytes = head.length + segments.reduce((sum, { length }) => sum + length, 0);
    this.bytes.set(method, (this.bytes.get(method) ?? 0) + bytes);
    return super.callRank(rank, engine, method, args);
  }
}

const zeros = ({ tokens, promptLens }: { tokens: Int32Array; promptLens: Int32Array }): Float32Array =>
  new Float32Array(tokens.length - promptLens.reduce((sum, length) => sum + length, 0));

const groupOf = (worldSize: number): CountingGroup =>
  new CountingGroup(
    {
      computeLogProb: (tokens: never) => ({ logProbs: zeros(tokens), entropy: null, sumPiSquared: null }),
      computeValues: zeros,
      updatePolicy: () => [{}],
      updateCritic: () => [{}],
    },
    worldSize,
  );

/** Advantages are those of whole responses. */
function batchOf(): Batch {
  const prompts = Array.from({ length: SEQUENCES }, (_, i) =>
    Array.from({ length: PROMPT }, (_, t) => (Math.floor(i / N) + t) % 7),
  );
  const responses = Array.from({ length: SEQUENCES }, (_, i) =>
    Array.from({ length: RESPONSE }, (_, t) => (i + t) % 7),
  );
  const column = Float32Array.from({ length: SEQUENCES * RESPONSE }, (_, t) => -(t % 13) / 4);
  const advantages = Float32Array.from(column, (_, t) => Math.floor(t / RESPONSE) % 5);
  return Batch.fromSequences(prompts, responses, {
    rolloutLogProbs: column,
    oldLogProbs: column,
    refLogProbs: column,
    entropy: column,
    tokenScores: column,
    values: column,
    returns: column,
    advantages,
  });
}

const options = { model: `${CONFORMANCE}/models/qwen2_tied/actor`, maxTokensPerMicroBatch: 4096 };
const critic = { ...options, model: `${CONFORMANCE}/models/qwen2_tied/critic` };

test.each([1, 4])('over %i ranks', async (worldSize) => {
  const group = groupOf(worldSize);
  const actor = await Actor.create({ ...options, group: group.asGroup(), device: 'cpu' });
  const value = await Critic.create({ ...critic, group: group.asGroup(), device: 'cpu' });
  const batch = batchOf();
  await actor.computeLogProb(batch);
  await value.computeValues(batch);
  await actor.updatePolicy(batch, {
    miniBatchSize: SEQUENCES / 2,
    loss: { useKlLoss: true, klLossCoef: 0.1 },
  });
  await value.updateCritic(batch, { miniBatchSize: SEQUENCES / 2 });
  const expected = {
    computeLogProb: TOKENS,
    computeValues: TOKENS,
    // oldLogProbs, refLogProbs
    updatePolicy: TOKENS + 2 * COLUMN,
    // values, returns
    updateCritic: TOKENS + 2 * COLUMN,
  };
  for (const [method, bytes] of Object.entries(expected)) {
    const beside = (group.bytes.get(method) as number) - bytes;
    expect({ method, beside, few: beside > 0 && beside < REST }).toMatchObject({ method, few: true });
  }
});
