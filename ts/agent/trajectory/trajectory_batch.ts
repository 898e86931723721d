// Trajectories as a Batch: their sequences one after another, with the columns that training needs.
import { Batch } from '../../batch/batch';
import type { PromptImage } from '../../batch/prompt_image';
import { TroupeError } from '../../errors';
import { tokenVersions } from './model_call';
import { joinCalls, type Sequence } from './sequences';
import { numTurns, type Trajectory } from './trajectory';

/** A trajectory and the task that it is of. */
export interface Row {
  /** The task's prompt: the sequence of a trajectory whose agent never called its model. */
  promptIds: ArrayLike<number>;
  /** Of that; of a model that reads images. */
  images?: readonly PromptImage[] | undefined;
  trajectory: Trajectory;
}

interface TrainedTokens {
  responseMask: Uint8Array;
  rolloutLogProbs: Float32Array;
  turn: Int32Array;
  version: Int32Array;
}

/** Of tokens that nobody sampled. */
const NO_VERSION = -1;

/** [R] of one sequence. */
function trainedTokens({ tokens, promptLength, turns }: Sequence, { calls }: Trajectory): TrainedTokens {
  const length = tokens.length - promptLength;
  const columns = {
    responseMask: new Uint8Array(length),
    rolloutLogProbs: new Float32Array(length),
    turn: new Int32Array(length),
    version: new Int32Array(length).fill(NO_VERSION),
  };
  let at = 0;
  for (const { call, start, end } of turns) {
    const made = calls[call] as Trajectory['calls'][number];
    const from = start - promptLength;
    columns.responseMask.fill(1, from, end - promptLength);
    columns.rolloutLogProbs.set(made.logProbs, from);
    columns.version.set(tokenVersions(made), from);
    // Context belongs to the turn that it leads to.
    columns.turn.fill(call, at, end - promptLength);
    at = end - promptLength;
  }
  return columns;
}

function concatenated<T extends Float32Array | Int32Array | Uint8Array>(
  parts: T[],
  into: (n: number) => T,
): T {
  const out = into(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/**
 * A batch of all sequences of all trajectories, in order: those of one trajectory follow each other. Columns per response token:
 * responseMask (1: sampled), rolloutLogProbs (0 where nothing was sampled), turn (number of the call in its trajectory), version (of the
 * weights; -1 where nothing was sampled). Per sequence: trajectory (its index), numTurns, numToolCalls, and images where a row has some.
 * @throws TroupeError INVALID_ARGUMENT without trajectories
 */
export function trajectoryBatch(rows: readonly Row[]): Batch {
  if (rows.length === 0)
    throw new TroupeError('INVALID_ARGUMENT', '[agent] expected at least one trajectory, got none');
  const sequences: { sequence: Sequence; index: number }[] = rows.flatMap(
    ({ promptIds, images = [], trajectory }, index) => {
      const joined = joinCalls(trajectory.calls);
      const empty = { tokens: Int32Array.from(promptIds), promptLength: promptIds.length, turns: [], images };
      return (joined.length > 0 ? joined : [empty]).map((sequence) => ({ sequence, index }));
    },
  );
  const columns = sequences.map(({ sequence, index }) =>
    trainedTokens(sequence, (rows[index] as Row).trajectory),
  );
  const perSequence = (value: (row: Row, index: number) => number): Int32Array =>
    Int32Array.from(sequences, ({ index }) => value(rows[index] as Row, index));
  const pictured = rows.some(({ images }) => images !== undefined);
  return Batch.fromRagged(
    {
      tokens: concatenated(
        sequences.map(({ sequence }) => sequence.tokens),
        (n) => new Int32Array(n),
      ),
      promptLens: sequences.map(({ sequence }) => sequence.promptLength),
      responseLens: sequences.map(({ sequence }) => sequence.tokens.length - sequence.promptLength),
      columns: {
        responseMask: concatenated(
          columns.map(({ responseMask }) => responseMask),
          (n) => new Uint8Array(n),
        ),
        rolloutLogProbs: concatenated(
          columns.map(({ rolloutLogProbs }) => rolloutLogProbs),
          (n) => new Float32Array(n),
        ),
        turn: concatenated(
          columns.map(({ turn }) => turn),
          (n) => new Int32Array(n),
        ),
        version: concatenated(
          columns.map(({ version }) => version),
          (n) => new Int32Array(n),
        ),
        trajectory: perSequence((_, index) => index),
        numTurns: perSequence(({ trajectory }) => numTurns(trajectory)),
        numToolCalls: perSequence(({ trajectory }) => trajectory.toolUses.length),
        ...(pictured ? { images: sequences.map(({ sequence: { images = [] } }) => images) } : {}),
      },
    },
    { adopt: true, granularity: { trajectory: 'sequence', numTurns: 'sequence', numToolCalls: 'sequence' } },
  );
}

/** First and last + 1 row of each trajectory of a batch. */
export function trajectoryRows(batch: Batch): { start: number; end: number }[] {
  const ids = batch.get('trajectory') as ArrayLike<unknown>;
  const rows: { start: number; end: number }[] = [];
  for (let i = 0; i < batch.size; i++) {
    const last = rows.at(-1);
    if (last && ids[last.start] === ids[i]) last.end = i + 1;
    else rows.push({ start: i, end: i + 1 });
  }
  return rows;
}

/**
 * tokenScores [ΣR]: the score of trajectory k on the last sampled token of its last sequence, and the rewards of single calls each on the
 * last token of the call.
 * @param scores [T] of the trajectories of the batch, in order
 */
export function turnScores(
  batch: Batch,
  scores: ArrayLike<number>,
  turnRewards: readonly ReadonlyMap<number, number>[],
): Float32Array {
  const out = new Float32Array(batch.numResponseTokens);
  const mask = batch.get('responseMask');
  const turn = batch.get('turn') as Int32Array;
  const { responseOffsets } = batch;
  trajectoryRows(batch).forEach(({ start, end }, k) => {
    let final = -1;
    const lastOf = new Map<number, number>();
    for (let t = responseOffsets[start] as number; t < (responseOffsets[end] as number); t++) {
      if (!mask[t]) continue;
      final = t;
      lastOf.set(turn[t] as number, t);
    }
    if (final < 0) return; // Nothing was sampled that could carry the score: group statistics take it from the column `score`.
    out[final] = scores[k] as number;
    for (const [call, reward] of turnRewards[k] ?? []) {
      const t = lastOf.get(call);
      if (t !== undefined) out[t] = (out[t] as number) + reward;
    }
  });
  return out;
}
