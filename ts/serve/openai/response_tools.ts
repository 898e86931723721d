// Tools of the responses API, of which a model knows functions alone.
import { z } from 'zod';
import { badField } from '../call/api_error';
import { defined } from '../call/defined';
import type { FunctionTool } from '../tools/families';
import { byType } from './by_type';
import { anyObject } from './fields';
import { list } from './lists';

/** Of a request, those of namespaces among them. */
const MOST = 512;

const named = {
  name: z.string().regex(/^[\w.-]{1,256}$/, 'expected letters, digits, _, . and -'),
  description: z.string().nullish(),
};
const functionTool = z.looseObject({
  type: z.literal('function'),
  ...named,
  parameters: anyObject.nullish(),
  strict: z.boolean().nullish(),
});
/** Its calls are texts, here of any form: the model is told the one that they should have. */
const customTool = z.looseObject({
  type: z.literal('custom'),
  ...named,
  format: z.looseObject({ definition: z.string().nullish() }).nullish(),
});
const callable = z.discriminatedUnion('type', [functionTool, customTool]);
const namespace = z.looseObject({
  type: z.literal('namespace'),
  ...named,
  tools: list(callable, { max: MOST }),
});
/** What OpenAI's servers do by themselves, and clients offer with every request: no model here is told of it. */
const LEFT_OUT = /^(web_search|image_generation|tool_search)/;
const leftOut = z.unknown().transform(() => null);
type Callable = z.infer<typeof callable>;
type Given = Callable | z.infer<typeof namespace>;

const KINDS: ReadonlyMap<string | undefined, z.ZodType<Given>> = new Map<string, z.ZodType<Given>>([
  ['function', functionTool],
  ['custom', customTool],
  ['namespace', namespace],
]);
/** null: left out. */
const tool = byType<Given | null>(
  (type = '') => KINDS.get(type) ?? (LEFT_OUT.test(type) ? leftOut : null),
  () => `expected one of ${[...KINDS.keys()].join(', ')}: this server has no tools of its own`,
);

export const responseTools = list(tool, { max: MOST });

/** What a call of a function is to the client. */
export interface CalledTool {
  type: 'function' | 'custom';
  name: string;
  namespace: string | undefined;
}

export interface OfferedTools {
  functions: FunctionTool[];
  /** Of each of them: its place in the request, and whether its schema holds word for word. */
  fields: string[];
  strict: boolean[];
  /** By the names that the model knows. */
  called: ReadonlyMap<string, CalledTool>;
}

/** The name of a tool of a namespace to the model: as clients of MCP write the two in one. */
export const nameWithin = (space: string | null | undefined, name: string): string =>
  space ? `${space}__${name}` : name;

/** The arguments of what is called with a text. */
const TEXT = { type: 'object', properties: { input: { type: 'string' } }, required: ['input'] };

/** @throws ApiError 400 where different tools would have one name, or there are too many */
export function offeredTools(given: readonly (Given | null)[]): OfferedTools {
  const offered = { functions: [] as FunctionTool[], fields: [] as string[], strict: [] as boolean[] };
  const called = new Map<string, CalledTool>();
  const add = (one: Callable, field: string, space: string | undefined): void => {
    if (offered.functions.length === MOST) throw badField(field, `expected at most ${MOST} tools`);
    const { type, name } = one;
    const full = nameWithin(space, name);
    const other = called.get(full);
    if (other !== undefined && (other.type !== type || other.namespace !== space))
      throw badField(`${field}.name`, `another tool is ${JSON.stringify(full)} to the model already`);
    called.set(full, { type, name, namespace: space });
    offered.functions.push({ type: 'function', function: functionOf(one, full) });
    offered.fields.push(field);
    offered.strict.push(type === 'function' && one.strict === true);
  };
  for (const [i, one] of given.entries()) {
    if (one === null) continue;
    if (one.type !== 'namespace') add(one, `tools.${i}`, undefined);
    else for (const [k, inner] of one.tools.entries()) add(inner, `tools.${i}.tools.${k}`, one.name);
  }
  return { ...offered, called };
}

function functionOf(one: Callable, name: string): FunctionTool['function'] {
  if (one.type === 'function')
    return defined({
      name,
      description: one.description ?? undefined,
      parameters: one.parameters ?? undefined,
    });
  const words = [one.description, one.format?.definition].filter((text) => text);
  return defined({
    name,
    description: words.length > 0 ? words.join('\n\n') : undefined,
    parameters: TEXT,
  });
}

/** The text that a custom tool is called with; anything else that the model wrote is that text itself. */
export function calledText(source: string): string {
  try {
    const { input } = JSON.parse(source) as { input?: unknown };
    if (typeof input === 'string') return input;
  } catch {
    // It is none of the form that it was to have.
  }
  return source;
}
