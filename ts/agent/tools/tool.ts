// A tool: a function that a model may call, with a schema of its arguments.
import { z } from 'zod';
import { checkOptionNames } from '../../base/check_options';
import { printable } from '../../base/printable';
import { reasonOf, show } from '../../base/text';
import { TroupeError } from '../../errors';

export interface ToolContext {
  /** Aborts when the tool's time is up, or its trajectory has ended. */
  signal: AbortSignal;
  /** `extra_info.tools_kwargs.{name}.create_kwargs` of the task's row; {} when it has none. */
  createKwargs: Readonly<Record<string, unknown>>;
}

/** An answer with a reward, which reward functions see (`toolRewards`, in Python `extra_info['tool_rewards']`). */
export class ToolResult {
  /** @throws TroupeError INVALID_ARGUMENT: modules in JavaScript are not checked before they run */
  constructor(
    /** What the model is told. */
    readonly text: string,
    readonly reward: number,
  ) {
    if (typeof text === 'string' && Number.isFinite(reward)) return;
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[agent] ToolResult: expected a text and a finite number as reward, got ${show(text)} and ${show(reward)}`,
    );
  }
}

/** What a tool is, whoever runs it. */
export interface Tool {
  name: string;
  description: string;
  /** JSON schema of the arguments. */
  parameters: Readonly<Record<string, unknown>>;
  /** Seconds; null: those of the configuration. */
  timeout: number | null;
  /** Text, a ToolResult, or any JSON value. @throws whatever is wrong: it is told to the model */
  call(args: unknown, context: ToolContext): Promise<unknown>;
  close?(): Promise<void>;
}

export const isTool = (value: unknown): value is Tool =>
  typeof value === 'object' &&
  value !== null &&
  typeof (value as Partial<Tool>).call === 'function' &&
  typeof (value as Partial<Tool>).name === 'string' &&
  typeof (value as Partial<Tool>).parameters === 'object';

export interface ToolDefinition<S extends z.ZodType> {
  name: string;
  description: string;
  /** Of the arguments: an object. */
  parameters: S;
  /** Seconds that one call may take; default: `rollout.agent.tool_timeout`. */
  timeout?: number;
  /** What it returns is told to the model: text as it is, the text of a ToolResult, anything else as JSON. */
  run(args: z.infer<S>, context: ToolContext): unknown;
}

const NAME = /^[\w.-]{1,64}$/;
const KEYS = ['name', 'description', 'parameters', 'timeout', 'run'] as const;

/**
 * A tool from a function and a zod schema of its arguments, which are checked before the function sees them.
 * @throws TroupeError INVALID_ARGUMENT
 */
export function defineTool<S extends z.ZodType>(definition: ToolDefinition<S>): Tool {
  checkOptionNames('defineTool', definition, KEYS);
  const { name, description, parameters, timeout = null, run } = definition;
  const bad = (what: string): TroupeError =>
    new TroupeError('INVALID_ARGUMENT', `[agent] tool ${printable(String(name))}: ${what}`);
  if (typeof name !== 'string' || !NAME.test(name))
    throw bad(`name: expected 1 to 64 letters, digits, _, . or -, got ${show(name)}`);
  if (typeof description !== 'string') throw bad(`description: expected a text, got ${show(description)}`);
  if (typeof run !== 'function') throw bad(`run: expected a function, got ${typeof run}`);
  // More than a timer can count is counted by several.
  if (timeout !== null && !(typeof timeout === 'number' && timeout > 0))
    throw bad(`timeout: expected seconds > 0, got ${show(timeout)}`);
  const schema = jsonSchema(parameters, bad);
  return {
    name,
    description,
    parameters: schema,
    timeout,
    call: async (args, context) => {
      const parsed = await parameters.safeParseAsync(args);
      if (!parsed.success) {
        const [issue] = parsed.error.issues;
        throw new Error(
          `arguments${issue?.path.map((key) => `.${String(key)}`).join('') ?? ''}: ${issue?.message}`,
        );
      }
      return await run(parsed.data, context);
    },
  };
}

/** What models are shown of the arguments. */
function jsonSchema(parameters: z.ZodType, bad: (what: string) => TroupeError): Record<string, unknown> {
  if (typeof parameters !== 'object' || parameters === null || !('_zod' in parameters))
    throw bad(
      `parameters: expected a schema of zod 4, such as z.object({ a: z.number() }), got ${show(parameters)}`,
    );
  let schema: Record<string, unknown>;
  try {
    schema = z.toJSONSchema(parameters, { io: 'input' }) as Record<string, unknown>;
  } catch (cause) {
    throw bad(`parameters: ${reasonOf(cause)}: expected what JSON can hold`);
  }
  if (schema['type'] !== 'object') throw bad('parameters: expected a schema of an object');
  delete schema['$schema'];
  return schema;
}

/** A tool as chat templates and the OpenAI API have it. */
export interface ToolSchema {
  type: 'function';
  function: { name: string; description: string; parameters: Record<string, unknown> };
}

export const toolSchemas = (tools: readonly Tool[]): ToolSchema[] =>
  tools.map(({ name, description, parameters }) => ({
    type: 'function',
    function: { name, description, parameters: { ...parameters } },
  }));
