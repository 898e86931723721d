// One agent on one task: time, attempts, failures, and what it leaves.
import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { notFinite } from '../base/not_finite';
import { printable } from '../base/printable';
import { StoppableTimers } from '../base/stoppable_timers';
import { reasonOf, show, toJson } from '../base/text';
import { thrownAt } from '../base/thrown_at';
import type { PromptImage } from '../batch/prompt_image';
import { TroupeError } from '../errors';
import { checkSize } from '../reward/contract/outcome';
import type { RolloutEngine } from '../rollout/engine';
import type { SamplingParams } from '../rollout/request';
import { defined } from '../serve/call/defined';
import type { ServedModel } from '../serve/call/served_model';
import { AgentChat } from './conversation/chat';
import type { History } from './conversation/conversation_ids';
import type { Agent, AgentResult, AgentTask } from './define';
import type { SessionAddress, SessionServer } from './endpoint/session_server';
import { AgentModel, type AgentTokenizer, concernsRun } from './model/agent_model';
import { BoundedEngine } from './model/bounded_engine';
import type { Tool } from './tools/tool';
import { Toolbox, type ToolboxOptions } from './tools/toolbox';
import type { Trajectory, TurnRecord } from './trajectory/trajectory';
import { TrajectoryEnded } from './trajectory_ended';

export interface AgentRunOptions {
  engine: RolloutEngine;
  tokenizer: AgentTokenizer;
  /** What conversations need; null: there are none. */
  chat: ChatParts | null;
  sampling: SamplingParams;
  /** All randomness of the trajectory. */
  seed: string;
  /** Prompt and response together, in tokens. */
  maxTokens?: number;
  /** The token that stands for images; left out: the model reads text alone. */
  imageToken?: number | undefined;
  tools: readonly Tool[];
  toolOptions: ToolboxOptions;
  /** Seconds for one attempt. */
  timeout: number;
  /** What they are measured by. Default: they never stand still. */
  timers?: StoppableTimers;
  /** Attempts after the first, where an agent fails; all but the last are forgotten. */
  retries: number;
  signal?: AbortSignal;
  session?: string;
  /** Of its calls, for engines that know priorities: 0. */
  priority?: number;
  /** For engines that know priorities: trajectories that have had fewer calls go first. Default: they do not. */
  behindFirst?: boolean;
}

/** Of a run. */
export interface ChatParts {
  served: Omit<ServedModel, 'engine'>;
  history: History;
  sessions: SessionServer;
  /** Further variables of the chat template. */
  variables: Readonly<Record<string, unknown>>;
}

/**
 * What the agent throws ends up in the trajectory; what concerns the run (the engine failed, the configuration is wrong, the
 * signal) is thrown.
 */
export async function runAgent(agent: Agent, task: AgentTask, options: AgentRunOptions): Promise<Trajectory> {
  for (let attempt = 0; ; attempt++) {
    const trajectory = await runOnce(agent, task, options);
    if (trajectory.error === null || attempt >= options.retries) return trajectory;
    const { signal } = options;
    // What broke it off, the next attempt throws before it begins.
    await sleep(Math.min(100 * 2 ** attempt, 5000), undefined, signal && { signal }).catch(() => undefined);
  }
}

async function runOnce(agent: Agent, task: AgentTask, options: AgentRunOptions): Promise<Trajectory> {
  const started = performance.now();
  const own = new AbortController();
  // One for each call and tool that runs.
  setMaxListeners(0, own.signal);
  const end = (): void => {
    const cause: unknown = options.signal?.reason;
    own.abort(new TrajectoryEnded(reasonOf(cause), { cause }));
  };
  options.signal?.throwIfAborted();
  options.signal?.addEventListener('abort', end, { once: true });
  const { tokenizer, sampling, seed, maxTokens, session, priority = 0, behindFirst = false } = options;
  const engine = maxTokens === undefined ? options.engine : new BoundedEngine(options.engine, maxTokens);
  const { imageToken } = options;
  const { images = [] } = task;
  const model = new AgentModel({
    engine,
    tokenizer,
    sampling,
    seed,
    signal: own.signal,
    priority,
    behindFirst,
    ...(session === undefined ? {} : { session }),
    ...(imageToken === undefined ? {} : { images: { token: imageToken, ofTask: images } }),
  });
  const talk = options.chat ? new Talk(options.chat, engine, model, own.signal, images) : null;
  const tools = new Toolbox(
    chosenTools(options.tools, task),
    options.toolOptions,
    own.signal,
    () => model.calls.length - 1,
    toolsKwargs(task),
  );
  const record: TurnRecord[] = [];
  const turnRewards = new Map<number, number>();
  let outcome: Outcome = { reward: null, answer: null, extra: {}, metrics: {} };
  let error: string | null = null;
  let inTime: () => void = () => undefined;
  try {
    const late = new Promise<never>((_, reject) => {
      const give = (): void => {
        const reason = new TrajectoryEnded(`the agent did not end within ${options.timeout} s`);
        reject(reason);
        own.abort(reason);
      };
      inTime = (options.timers ?? new StoppableTimers()).after(options.timeout * 1000, give);
      own.signal.addEventListener('abort', () => reject(own.signal.reason), { once: true });
    });
    late.catch(() => undefined);
    const work = async (): Promise<Outcome> => {
      const result = await agent.run(task, {
        model,
        get chat() {
          if (talk === null) throw new Error('chat: the tokenizer has no chat template');
          return talk.chat;
        },
        endpoint: async () => {
          if (talk === null) throw new Error('endpoint: the tokenizer has no chat template');
          return await talk.endpoint();
        },
        tools,
        signal: own.signal,
        note: (turn) => record.push(keptTurn(turn)),
        reward: (value) => {
          if (!Number.isFinite(value))
            throw new Error(`reward: expected a finite number, got ${show(value)}`);
          const call = model.calls.length - 1;
          if (call < 0) throw new Error('reward: the model was not called yet');
          turnRewards.set(call, (turnRewards.get(call) ?? 0) + value);
        },
      });
      const read = readResult(result);
      return agent.reward ? { ...read, reward: finite(await agent.reward(task, result)) } : read;
    };
    outcome = await Promise.race([work(), late]);
  } catch (cause) {
    options.signal?.throwIfAborted();
    if (concernsRun(cause)) throw (cause as { cause?: unknown }).cause ?? cause;
    error = printable(
      `${reasonOf(cause)}${cause instanceof TroupeError ? '' : thrownAt(cause, __filename)}`,
      { max: 2000 },
    );
  } finally {
    inTime();
    options.signal?.removeEventListener('abort', end);
    talk?.close();
    // What the agent has left running ends with it.
    own.abort(new TrajectoryEnded('the trajectory has ended'));
  }
  return {
    calls: [...model.calls],
    toolUses: [...tools.uses],
    record,
    turnRewards,
    ...outcome,
    error,
    seconds: (performance.now() - started) / 1000,
  };
}

/** The conversations of one trajectory, in this process and through HTTP. */
class Talk {
  readonly chat: AgentChat;
  private readonly served: ServedModel;
  private opened: ReturnType<SessionServer['open']> | null = null;

  constructor(
    private readonly parts: ChatParts,
    engine: RolloutEngine,
    model: AgentModel,
    private readonly signal: AbortSignal,
    images: readonly PromptImage[],
  ) {
    this.served = { ...parts.served, engine };
    this.chat = new AgentChat(this.served, model, signal, parts.history, parts.variables, images);
  }

  async endpoint(): Promise<SessionAddress> {
    const { served, signal } = this;
    const session = { served, signal, hooks: () => this.chat.hooks() };
    this.opened ??= this.parts.sessions.open(session).catch((error: unknown) => {
      this.opened = null;
      throw error;
    });
    return (await this.opened).address;
  }

  close(): void {
    // Who asked for a session that could not be opened was told.
    this.opened?.then(
      ({ close }) => close(),
      () => undefined,
    );
  }
}

/** Of an answer: those of a batch are written at once. */
const MOST_ANSWER = 2 ** 20;

type Outcome = Pick<Trajectory, 'reward' | 'answer' | 'extra' | 'metrics'>;

function finite(value: unknown, name = 'reward'): number {
  if (typeof value === 'boolean') return Number(value);
  if (typeof value === 'number' && Number.isFinite(value)) return value;
  throw new Error(`${name}: expected a finite number, got ${show(value)}`);
}

/** As the samples files will have it: what becomes of the agent's own object later is not looked at. */
function keptTurn(turn: TurnRecord): TurnRecord {
  const wrong = (why = ''): Error =>
    new Error(`note: expected {role, content, seconds?, tool?, error?}, got ${show(turn)}${why}`);
  let kept: Record<string, unknown>;
  try {
    kept = JSON.parse(toJson(turn) ?? 'null');
  } catch (cause) {
    throw wrong(`, which JSON cannot hold (${reasonOf(cause)})`);
  }
  if (!isRecord(kept)) throw wrong();
  // What is null is not there, as the error of a tool that has answered.
  const { role, seconds, tool, error, ...rest } = Object.fromEntries(
    Object.entries(kept).filter(([, value]) => value !== null),
  );
  const isText = (value: unknown): boolean => value === undefined || typeof value === 'string';
  const isTime = seconds === undefined || typeof seconds === 'number';
  // A content that is no text is shown as JSON.
  if (typeof role !== 'string' || rest['content'] === undefined || !isTime || !isText(tool) || !isText(error))
    throw wrong();
  return defined({ role, ...rest, seconds, tool, error }) as TurnRecord;
}

function readResult(result: AgentResult): Outcome {
  if (result === undefined || result === null) return { reward: null, answer: null, extra: {}, metrics: {} };
  if (typeof result === 'number' || typeof result === 'boolean')
    return { reward: finite(result), answer: null, extra: {}, metrics: {} };
  if (!isRecord(result))
    throw new Error(`expected a number, an object or nothing from the agent, got ${show(result)}`);
  const { reward, answer, metrics = {}, ...extra } = result;
  if (answer !== undefined && typeof answer !== 'string')
    throw new Error(`expected a text as the answer, got ${show(answer)}`);
  if (answer !== undefined && answer.length > MOST_ANSWER)
    throw new Error(`expected an answer of at most ${MOST_ANSWER} characters, got ${answer.length}`);
  if (!isRecord(metrics)) throw new Error(`metrics: expected an object of numbers, got ${show(metrics)}`);
  try {
    toJson(extra);
  } catch (error) {
    throw new Error(
      `expected JSON values beside the reward, but got some that are none (${reasonOf(error)})`,
    );
  }
  checkSize([extra]);
  const found = notFinite(extra);
  if (found !== null)
    throw new Error(`expected finite numbers beside the reward, got ${found.at} = ${found.number}`);
  return {
    reward: reward === undefined ? null : finite(reward),
    answer: answer ?? null,
    extra,
    metrics: Object.fromEntries(
      Object.entries(metrics).map(([name, value]) => [name, finite(value, `metrics.${name}`)]),
    ),
  };
}

const isRecord = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function toolsKwargs({ extraInfo }: AgentTask): Record<string, { create_kwargs?: Record<string, unknown> }> {
  const { tools_kwargs: given } = extraInfo;
  if (given === undefined || given === null) return {};
  if (typeof given === 'object' && !Array.isArray(given))
    return given as Record<string, { create_kwargs?: Record<string, unknown> }>;
  throw new TroupeError(
    'INVALID_DATA',
    `[agent] extra_info.tools_kwargs: expected {tool: {create_kwargs: {...}}}, got ${show(given)}`,
  );
}

/** Of `extra_info.tool_selection`, in its order, where a row has one; else all. */
function chosenTools(tools: readonly Tool[], { extraInfo }: AgentTask): readonly Tool[] {
  const { tool_selection: selection } = extraInfo;
  if (!Array.isArray(selection) || selection.length === 0) return tools;
  return [...new Set(selection)].flatMap((chosen) => tools.find(({ name }) => name === chosen) ?? []);
}
