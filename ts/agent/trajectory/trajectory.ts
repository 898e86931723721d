// What one run of an agent left: the calls of its model and tools, its result, and what went wrong.
import type { ModelCall } from './model_call';

/** One use of a tool. */
export interface ToolUse {
  name: string;
  /** The model call that asked for it, from 0; -1: none did. */
  call: number;
  arguments: unknown;
  /** What the model was told, cut as it was. */
  observation: string;
  /** What the tool gave for it; null: nothing. */
  reward: number | null;
  seconds: number;
  /** null: it succeeded. */
  error: string | null;
}

/** What the samples files show of one turn. */
export interface TurnRecord {
  role: string;
  content: string;
  seconds?: number;
  /** Weight versions of its tokens, oldest and newest. */
  versions?: [number, number];
  tool?: string;
  error?: string;
}

export interface Trajectory {
  calls: readonly ModelCall[];
  toolUses: readonly ToolUse[];
  /** In order of time. */
  record: readonly TurnRecord[];
  /** What the agent gave itself; null: the reward function of the run decides. */
  reward: number | null;
  /** Rewards of single calls, by their number; added to the end's. */
  turnRewards: ReadonlyMap<number, number>;
  /** What the agent returned besides its reward: metrics and dumps, as of reward functions. */
  extra: Readonly<Record<string, unknown>>;
  /** Numbers of the agent's own kind, each reported as mean, max and min over trajectories under its name. */
  metrics: Readonly<Record<string, number>>;
  /** The text that reward functions are given as the response; null: the decoded response tokens. */
  answer: string | null;
  /** Why the agent failed; null: it ended by itself. */
  error: string | null;
  /** Seconds from start to end. */
  seconds: number;
}

/** As verl counts: what the model was told and what it said, the prompt included. */
export const numTurns = ({ calls }: Pick<Trajectory, 'calls'>): number => 2 * calls.length;

/** Of the calls of tools in their order, as verl lists them: 0 for one that failed, and none where a tool gave none. */
export const toolRewards = ({ toolUses }: Pick<Trajectory, 'toolUses'>): number[] =>
  toolUses.flatMap(({ reward, error }) => reward ?? (error === null ? [] : 0));
