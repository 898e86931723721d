// The tools of one trajectory: calls with time-outs, limits on what comes back, and a record of every use.
import { reasonOf, show, toJson } from '../../base/text';
import { timerMs } from '../../base/timers';
import type { ToolUse } from '../trajectory/trajectory';
import { type Tool, ToolResult, type ToolSchema, toolSchemas } from './tool';

export type TruncateSide = 'left' | 'middle' | 'right';

export interface ToolboxOptions {
  /** Seconds for one call of a tool that has no time of its own. */
  timeout: number;
  /** Characters of a tool's answer that the model is told. */
  maxResponseLength: number;
  /** What is kept of a longer one: its head (right), its tail (left), or half of either (middle). */
  truncateSide: TruncateSide;
}

const MARK = '(truncated)';

/** verl's rule (since 0.8): `side` is where the cut is. Characters are Unicode code points. */
function truncateResponse(text: string, length: number, side: TruncateSide): string {
  if (text.length <= length) return text;
  const points = [...text.slice(0, length * 2 + 2)];
  const whole = text.length > length * 2 + 2 || points.length > length;
  if (!whole) return text;
  const head = (count: number): string => points.slice(0, count).join('');
  const tail = (count: number): string =>
    count === 0 ? '' : [...text.slice(-2 * count)].slice(-count).join('');
  if (side === 'left') return `${MARK}...${tail(length)}`;
  if (side === 'right') return `${head(length)}...${MARK}`;
  const half = Math.floor(length / 2);
  return `${head(half)}...${MARK}...${tail(half)}`;
}

/** What the model is told of a call. */
export interface ToolAnswer {
  text: string;
  error: string | null;
  seconds: number;
}

export class Toolbox {
  readonly uses: ToolUse[] = [];
  private readonly byName: ReadonlyMap<string, Tool>;

  constructor(
    readonly tools: readonly Tool[],
    private readonly options: ToolboxOptions,
    private readonly signal: AbortSignal,
    /** The number of the model call that was made last. */
    private readonly lastCall: () => number,
    private readonly kwargs: Readonly<Record<string, { create_kwargs?: Record<string, unknown> }>> = {},
  ) {
    this.byName = new Map(tools.map((tool) => [tool.name, tool]));
  }

  /** As chat templates and the OpenAI API have them. */
  get schemas(): ToolSchema[] {
    return toolSchemas(this.tools);
  }

  /**
   * Calls a tool. What goes wrong (no such tool, arguments that do not fit, an exception, no answer in time) comes back as text, for the
   * model to read, and is on record. @throws the signal's reason when the trajectory has ended
   */
  call(name: string, args: unknown): Promise<ToolAnswer> {
    return this.attempt(name, () => args);
  }

  /** The same with arguments that are still to be read: what that throws comes back as text, too. */
  async attempt(asked: string, read: () => unknown): Promise<ToolAnswer> {
    this.signal.throwIfAborted();
    // Agents in JavaScript ask for anything; what is on record is a text.
    const name = typeof (asked as unknown) === 'string' ? asked : show(asked);
    let args: unknown = null;
    const started = performance.now();
    const call = this.lastCall();
    let text: string;
    let reward: number | null = null;
    let error: string | null = null;
    try {
      args = read();
      const answer = await this.run(name, args);
      if (answer instanceof ToolResult) ({ text, reward } = answer);
      else text = typeof answer === 'string' ? answer : (toJson(answer) ?? '');
    } catch (cause) {
      this.signal.throwIfAborted();
      error = reasonOf(cause).slice(0, 10_000);
      text = `Error when executing tool: ${error}`;
    }
    const { maxResponseLength, truncateSide } = this.options;
    text = truncateResponse(text, maxResponseLength, truncateSide);
    const seconds = (performance.now() - started) / 1000;
    this.uses.push({ name, call, arguments: args, observation: text, reward, seconds, error });
    return { text, error, seconds };
  }

  private async run(name: string, args: unknown): Promise<unknown> {
    const tool = this.byName.get(name);
    if (tool === undefined) {
      const names = this.tools.map((one) => one.name).join(', ');
      throw new Error(`there is no tool ${JSON.stringify(name)}; there are: ${names || 'none'}`);
    }
    const seconds = tool.timeout ?? this.options.timeout;
    const own = new AbortController();
    const end = (): void => own.abort(this.signal.reason);
    this.signal.addEventListener('abort', end, { once: true });
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      const give = (reason: unknown): void => {
        reject(reason);
        own.abort(reason);
      };
      timer = setTimeout(() => give(new Error(`no answer within ${seconds} s`)), timerMs(seconds * 1000));
      own.signal.addEventListener('abort', () => reject(own.signal.reason), { once: true });
    });
    try {
      const createKwargs = this.kwargs[name]?.create_kwargs ?? {};
      return await Promise.race([tool.call(args, { signal: own.signal, createKwargs }), late]);
    } finally {
      clearTimeout(timer);
      this.signal.removeEventListener('abort', end);
    }
  }
}
