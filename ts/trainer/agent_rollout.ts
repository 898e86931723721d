// From prompts to scored trajectories, where an agent works on them instead of answering once.
import { type CollectOptions, checkSomeWorked, collectTrajectories } from '../agent/collect';
import type { Agent, AgentTask } from '../agent/define';
import type { AgentTokenizer } from '../agent/model/agent_model';
import type { ChatParts } from '../agent/run_agent';
import type { Tool } from '../agent/tools/tool';
import { numTurns, type Trajectory, type TurnRecord, toolRewards } from '../agent/trajectory/trajectory';
import { trajectoryBatch, trajectoryRows, turnScores } from '../agent/trajectory/trajectory_batch';
import { toJson } from '../base/text';
import type { Batch } from '../batch/batch';
import type { ChatMessage } from '../data/chat_template';
import { withImageParts } from '../data/image_places';
import type { RewardManager, RewardSample, Rewards } from '../reward/contract/types';
import type { RewardModelEngine } from '../reward_model/reward_model';
import type { RolloutEngine } from '../rollout/engine';
import type { SamplingOptions } from '../rollout/sampling';
import { type Decoder, imagesOf, type Prompt, type Scored } from './rollout';

/** What a run collects trajectories with. */
export interface AgentRollout {
  agent: Agent;
  tokenizer: AgentTokenizer;
  chat: ChatParts | null;
  tools: readonly Tool[];
  /** The token that stands for images; left out: the model reads text alone. */
  imageToken?: number | undefined;
  options: Pick<
    CollectOptions,
    'toolOptions' | 'timeout' | 'retries' | 'onError' | 'maxTokens' | 'behindFirst' | 'concurrency'
  >;
  close(): Promise<void>;
}

export interface Collected {
  batch: Batch;
  /** In the order of the batch; null: without an agent. */
  trajectories: readonly Trajectory[] | null;
}

/** Of prompts that are a part of a batch. */
export interface PartOptions extends Partial<Pick<CollectOptions, 'signal' | 'timers' | 'priority'>> {
  /** Place of the first one in the batch, 0. */
  first?: number;
}

/**
 * `n` trajectories per prompt, grouped by prompt: their sequences with the columns of trajectoryBatch, and uid (equal for trajectories of
 * one prompt), dataSource, groundTruth, extraInfo and rawPrompt.
 */
export async function collectResponses(
  rollout: AgentRollout,
  engine: RolloutEngine,
  prompts: readonly Prompt[],
  { n = 1, seed = 0, maxTokens = Number.POSITIVE_INFINITY, ...sampling }: SamplingOptions,
  uidPrefix: string,
  validation: boolean,
  { first = 0, ...part }: PartOptions = {},
): Promise<Collected> {
  const imagesOfPrompts = await imagesOf(prompts);
  const tasks = prompts.flatMap((prompt, i) =>
    Array.from({ length: n }, (_, sample): AgentTask => {
      const { tokens, rawPrompt, dataSource, groundTruth, extraInfo } = prompt;
      const promptIds = Int32Array.from(tokens);
      // Which of the two it is was checked when the row was read.
      const asked = rawPrompt as AgentTask['prompt'];
      const task = { prompt: asked, promptIds, dataSource, groundTruth, extraInfo, sample, validation };
      const images = imagesOfPrompts?.[i];
      if (images === undefined) return task;
      return {
        ...task,
        images,
        ...(images.length > 0 ? { prompt: withImageParts(asked as ChatMessage[]) } : {}),
      };
    }),
  );
  const { agent, tokenizer, chat, tools, imageToken, options } = rollout;
  const trajectories = await collectTrajectories(agent, tasks, {
    ...options,
    ...part,
    maxTokens: Math.min(options.maxTokens ?? maxTokens, maxTokens),
    first: first * n,
    engine,
    tokenizer,
    chat,
    sampling,
    tools,
    imageToken,
    seed,
  });
  const batch = trajectoryBatch(
    trajectories.map((trajectory, i) => {
      const { promptIds, images } = tasks[i] as AgentTask;
      return { trajectory, promptIds, images };
    }),
  );
  const index = batch.get('trajectory') as Int32Array;
  const perSequence = <T>(value: (prompt: Prompt, index: number) => T): T[] =>
    Array.from(index, (k) => value(prompts[Math.floor(k / n)] as Prompt, Math.floor(k / n)));
  const columns = {
    uid: perSequence((_, i) => `${uidPrefix}-${first + i}`),
    dataSource: perSequence((prompt) => prompt.dataSource),
    groundTruth: perSequence((prompt) => prompt.groundTruth),
    extraInfo: perSequence((prompt) => prompt.extraInfo),
    rawPrompt: perSequence((prompt) => prompt.rawPrompt),
    // Trajectories of several batches may come together: their numbers must not.
    trajectory: Array.from(index, (k) => `${uidPrefix}-${first * n + k}`),
  };
  const granularity = { extraInfo: 'sequence', rawPrompt: 'sequence', trajectory: 'sequence' } as const;
  return { batch: batch.drop('trajectory').with(columns, { granularity }), trajectories };
}

/** As collectResponses of a whole batch. @throws TroupeError AGENT_FAILED where the agent failed on all of it */
export async function collectBatch(...args: Parameters<typeof collectResponses>): Promise<Collected> {
  const collected = await collectResponses(...args);
  checkSomeWorked(args[0].agent, collected.trajectories ?? []);
  return collected;
}

/**
 * As scoreResponses: an agent's own reward, or that of the reward function on its answer; a failed trajectory has 0. Every row of a
 * trajectory has its score, and what the samples files show of it.
 */
export async function scoreTrajectories(
  { batch, trajectories }: { batch: Batch; trajectories: readonly Trajectory[] },
  decoder: Decoder,
  manager: RewardManager,
  rewardModel: RewardModelEngine | null,
): Promise<Scored> {
  const rows = trajectoryRows(batch);
  const modelScores = await rewardModel?.score(batch);
  const texts = rows.map(({ start, end }, k) => ({
    input: decoder.decode(batch.prompt(start), { skipSpecialTokens: false }),
    output:
      (trajectories[k] as Trajectory).answer ??
      decoder.decode(batch.response(end - 1), { skipSpecialTokens: true }),
  }));
  const open = rows.flatMap((_, k) => {
    const { reward, error } = trajectories[k] as Trajectory;
    return reward === null && error === null ? [k] : [];
  });
  const samples = open.map((k): RewardSample => {
    const { start, end } = rows[k] as { start: number; end: number };
    return {
      prompt: texts[k]?.input as string,
      response: texts[k]?.output as string,
      responseTokens: batch.response(end - 1),
      groundTruth: batch.get('groundTruth')[start],
      dataSource: batch.get('dataSource')[start] as string,
      extraInfo: batch.get('extraInfo')[start] as Record<string, unknown>,
      numTurns: numTurns(trajectories[k] as Trajectory),
      toolRewards: toolRewards(trajectories[k] as Trajectory),
      ...(modelScores ? { rewardModelScore: modelScores[end - 1] as number } : {}),
    };
  });
  const given: Rewards =
    samples.length > 0
      ? await manager.score(samples)
      : { scores: new Float64Array(), extras: {}, failures: 0 };
  const placeOf = new Map(open.map((k, i) => [k, i]));
  const scores = trajectories.map(({ reward, error }, k) => {
    const i = placeOf.get(k);
    if (i !== undefined) return given.scores[i] as number;
    return error === null ? (reward as number) : 0;
  });
  const turnRewards = trajectories.map((one) => (one.error === null ? one.turnRewards : new Map()));
  const tokenScores = turnScores(batch, scores, turnRewards);
  const totals = scores.map((score, k) =>
    [...(turnRewards[k] as Map<number, number>).values()].reduce((a, b) => a + b, score),
  );
  const keys = new Set([
    ...Object.keys(given.extras),
    ...trajectories.flatMap(({ extra }) => Object.keys(extra)),
  ]);
  const spread = <T>(values: readonly T[]): T[] =>
    rows.flatMap(({ start, end }, k) => new Array<T>(end - start).fill(values[k] as T));
  const extras = [...keys].map((key): [string, unknown[]] => {
    const own = trajectories.map(({ extra }, k) => {
      const i = placeOf.get(k);
      return Object.hasOwn(extra, key) ? extra[key] : i === undefined ? undefined : given.extras[key]?.[i];
    });
    return [key, spread(own)];
  });
  const all = spread(totals);
  return {
    batch: batch.with({ tokenScores, score: all }, { adopt: true }),
    inputs: spread(texts.map(({ input }) => input)),
    outputs: spread(texts.map(({ output }) => output)),
    rewards: { scores: Float64Array.from(all), extras: Object.fromEntries(extras), failures: given.failures },
    notes: {
      num_turns: spread(trajectories.map(({ calls }) => 2 * calls.length)),
      turns: spread(trajectories.map(shownTurns)),
      error: spread(trajectories.map(({ error }) => error ?? undefined)),
    },
  };
}

/** What agents noted; of those that noted nothing the calls of tools. Texts are cut: a step has thousands of them. */
function shownTurns({ record, toolUses }: Trajectory): TurnRecord[] {
  const turns: readonly TurnRecord[] =
    record.length > 0
      ? record
      : toolUses.map(({ name, observation, seconds }) => ({
          role: 'tool',
          tool: name,
          content: observation,
          seconds,
        }));
  return turns.map((turn) => ({
    ...turn,
    content: shownContent(turn.content),
    ...(turn.seconds === undefined ? {} : { seconds: Number(turn.seconds.toFixed(3)) }),
  }));
}

/** An agent may note what is no text: short enough, it stays what it is. */
function shownContent(content: string): string {
  const text = typeof (content as unknown) === 'string' ? content : toJson(content);
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : content;
}

const MAX_SHOWN = 8192;
