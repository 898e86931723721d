// What an agent is: code that works on a task with the policy as its model, and says what came of it.
import type { PromptImage } from '../batch/prompt_image';
import type { ChatMessage } from '../data/chat_template';
import { TroupeError } from '../errors';
import type { AgentChat } from './conversation/chat';
import type { SessionAddress } from './endpoint/session_server';
import type { AgentModel } from './model/agent_model';
import type { Toolbox } from './tools/toolbox';
import type { TurnRecord } from './trajectory/trajectory';

/** One row of the data set. */
export interface AgentTask {
  /** The prompt as the row has it: text, or messages. Of a row with images each of their places is a part `{type: 'image'}`. */
  prompt: string | readonly ChatMessage[];
  /** The same as token ids, with the chat template's opening of the assistant's turn. */
  promptIds: Int32Array;
  /** Of the prompt, in order, as the model reads them. */
  images?: readonly PromptImage[];
  dataSource: string;
  groundTruth: unknown;
  extraInfo: Readonly<Record<string, unknown>>;
  /** Which of the samples of the task, from 0. */
  sample: number;
  /** Whether this is a validation: the model answers as `rollout.val_kwargs` say. */
  validation: boolean;
}

export interface AgentContext {
  model: AgentModel;
  /** The policy as a partner in conversations. */
  chat: AgentChat;
  /**
   * Where clients of the OpenAI and Anthropic APIs find the policy, for this trajectory. The first use opens the session.
   */
  endpoint(): Promise<SessionAddress>;
  /** The tools of the configuration; every use is on record. */
  tools: Toolbox;
  /** Aborts when time is up, or the run ends: pass it on to whatever waits. */
  signal: AbortSignal;
  /** Adds a turn to what the samples files show. */
  note(turn: TurnRecord): void;
  /** Adds to the reward of the model call made last. */
  reward(value: number): void;
}

/**
 * A number is the reward. Without one, the reward function of the run scores `answer`, or else the text of the response. Other keys go
 * to metrics (numbers, booleans) and samples files (any JSON value), as those of reward functions.
 */
export type AgentResult =
  | number
  // biome-ignore lint/suspicious/noConfusingVoidType: an agent may return nothing
  | void
  | ({ reward?: number; answer?: string; metrics?: Readonly<Record<string, number>> } & Record<
      string,
      unknown
    >);

export interface Agent {
  name?: string;
  /** Works on one task. What it throws costs its trajectory, by `rollout.agent.on_error`. */
  run(task: AgentTask, context: AgentContext): Promise<AgentResult> | AgentResult;
  /** The reward of what `run` returned; wins over it. */
  reward?(task: AgentTask, result: AgentResult): Promise<number> | number;
  /** Ends what it keeps, such as servers. The run is over then: what it throws changes nothing. */
  close?(): Promise<void> | void;
}

const KEYS = ['name', 'run', 'reward', 'close'];

/**
 * An agent, checked: `export default defineAgent({ run(task, { model, tools, signal }) { ... } })`.
 * @throws TroupeError INVALID_ARGUMENT
 */
export function defineAgent(agent: Agent): Agent {
  const given: unknown = agent;
  if (typeof given !== 'object' || given === null)
    throw new TroupeError('INVALID_ARGUMENT', `[agent] expected an object with run, got ${String(given)}`);
  const unknown = Object.keys(given).find((key) => !KEYS.includes(key));
  if (unknown !== undefined) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[agent] unknown key '${unknown}': expected some of ${KEYS.join(', ')}`,
    );
  }
  for (const key of ['run', 'reward', 'close'] as const) {
    const value = (given as Record<string, unknown>)[key];
    if (typeof value === 'function' || (key !== 'run' && value === undefined)) continue;
    throw new TroupeError('INVALID_ARGUMENT', `[agent] ${key}: expected a function, got ${typeof value}`);
  }
  return agent;
}
