import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { WorkerGroup } from '../../ts/controller/worker_group';
import type { NativeMiniBatches, NativePolicyBatch, NativePolicyLossOptions } from '../../ts/native/bridge';
import { batchOf, CONFORMANCE } from '../helpers/conformance';
import { floats, maxDifference, readSafetensors } from '../helpers/safetensors';
import { tinyPolicyLoss } from '../helpers/tiny_model';

// Adapters that PEFT made: log-probs with and without them, and the gradients of their matrices, against PEFT in float64.
const CASES = path.join(CONFORMANCE, 'lora');

let group: WorkerGroup;
beforeAll(async () => {
  group = await WorkerGroup.launch({ worldSize: 1, device: 'cpu' });
});
afterAll(() => group.close());

/** A loss that is linear in the log-probs, so that gradients come out as they are. */
const LINEAR: NativePolicyLossOptions = { ...tinyPolicyLoss, mode: 'linear' };

describe.each(readdirSync(CASES))('%s', (name) => {
  const dir = path.join(CASES, name);
  const meta = JSON.parse(readFileSync(path.join(dir, 'meta.json'), 'utf8')) as {
    model: string;
    rank: number;
    alpha: number;
  };
  const expected = readSafetensors(path.join(dir, 'expected.safetensors'));
  const modelDir = path.join(CONFORMANCE, 'models', meta.model);
  const { batch, responseLength } = batchOf(readSafetensors(path.join(modelDir, 'batch.safetensors')));
  const create = (gradientCheckpointing = false) =>
    Actor.create({
      model: path.join(modelDir, 'actor'),
      group,
      gradientCheckpointing,
      lora: { adapter: path.join(dir, 'adapter') },
    });
  const withActor = async (body: (actor: Actor) => Promise<void>, checkpointing = false) => {
    const actor = await create(checkpointing);
    try {
      await body(actor);
    } finally {
      await actor.close();
    }
  };

  test('log-probs with the adapter and without it', async () => {
    await withActor(async (actor) => {
      expect(actor.engine.lora).toMatchObject({ rank: meta.rank, alpha: meta.alpha });
      for (const [disableAdapter, key] of [
        [false, 'log_probs'],
        [true, 'log_probs_adapter_disabled'],
        [false, 'log_probs'],
      ] as const) {
        const { logProbs } = await actor.computeLogProb(batch, { disableAdapter });
        // Stored as 0 where the mask is 0.
        const masked = logProbs.map((x, t) => (batch.get('responseMask')[t] ? x : 0));
        const padded = batch.with({ logProbs: masked }).toPadded('logProbs', responseLength);
        expect(maxDifference(padded, floats(expected, key))).toBeLessThan(1e-4);
      }
    });
  });

  test.each([false, true])('gradients, with gradient checkpointing: %s', async (checkpointing) => {
    await withActor(async (actor) => {
      const R = responseLength;
      const weights = new Float32Array(batch.numResponseTokens);
      for (let i = 0; i < batch.size; i++) {
        const start = batch.responseOffsets[i] as number;
        for (let t = 0; start + t < (batch.responseOffsets[i + 1] as number); t++)
          weights[start + t] = -1 + (2 * t) / (R - 1);
      }
      const zeros = new Float32Array(batch.numResponseTokens);
      const native: NativePolicyBatch = {
        tokens: {
          tokens: batch.get('tokens'),
          seqOffsets: batch.seqOffsets,
          promptLens: batch.promptLens,
          routedExperts: null,
          images: null,
        },
        responseMask: batch.get('responseMask'),
        oldLogProbs: zeros,
        advantages: zeros,
        refLogProbs: null,
        rolloutIsWeights: null,
        givenLoss: { values: zeros, byLogProb: weights, byEntropy: null },
        hasGradient: null,
        teacherLogProbs: null,
        teacherIds: null,
      };
      // Divided by 1: the sum over tokens.
      const mini: NativeMiniBatches = {
        offsets: [0, batch.size],
        globalTokens: [1],
        globalSequences: [batch.size],
        epochs: 1,
      };
      await group.callAll(actor.name, 'updatePolicy', () => [native, mini, LINEAR, 1]);
      const mapping = actor.engine.lora?.mapping ?? [];
      const names = Object.keys(expected).filter((key) => key.startsWith('grad.'));
      expect(names).toHaveLength(mapping.length);
      for (const key of names) {
        const entry = mapping.find(({ hf }) => `grad.${hf}` === key.replace('.default.', '.'));
        if (entry === undefined) throw new Error(`no parameter maps to ${key}`);
        const [ours] = await group.callAll(actor.name, 'getTensor', () => ['grad', entry.param]);
        const theirs = Array.from(floats(expected, key));
        const largest = theirs.reduce((m, v) => Math.max(m, Math.abs(v)), 0);
        expect(largest).toBeGreaterThan(0);
        expect(maxDifference(ours as Float32Array, theirs)).toBeLessThan(1e-4 * largest);
      }
    }, checkpointing);
  });
});
