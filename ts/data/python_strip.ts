import type { Template } from '@huggingface/jinja';

/** Ends of a text that a method takes characters off. */
const METHODS: ReadonlyMap<string, { start: boolean; end: boolean }> = new Map([
  ['strip', { start: true, end: true }],
  ['lstrip', { start: true, end: false }],
  ['rstrip', { start: false, end: true }],
]);

const functionName = (method: string): string => `python_${method}`;

interface Node {
  type?: unknown;
  [key: string]: unknown;
}

/**
 * Python's text.strip(characters) takes off those characters; the library's takes off white space, whatever it is given. Turns
 * such calls of a parsed template, as Qwen3's has them (`content.lstrip('\n')`), into calls of {@link stripFunctions}.
 */
export function usePythonStrip({ parsed }: Template): void {
  visit(parsed as unknown as Node);
}

function visit(node: Node): void {
  const { type, callee, args } = node;
  if (type === 'CallExpression' && Array.isArray(args) && args.length === 1) {
    const { type: kind, object, property, computed } = callee as Node;
    const method = (property as Node | undefined)?.['value'];
    if (kind === 'MemberExpression' && computed === false && METHODS.has(method as string)) {
      node['callee'] = { type: 'Identifier', value: functionName(method as string) };
      node['args'] = [object, args[0]];
    }
  }
  for (const child of Object.values(node))
    if (typeof child === 'object' && child !== null) visit(child as Node);
}

/** What {@link usePythonStrip} calls, by name: variables of the template. */
export const stripFunctions: Readonly<Record<string, (text: unknown, characters: unknown) => string>> =
  Object.fromEntries(
    Array.from(METHODS, ([method, ends]) => [
      functionName(method),
      (text: unknown, characters: unknown): string => {
        if (typeof text === 'string' && typeof characters === 'string')
          return stripped(text, characters, ends);
        throw new Error(`${method}() expects texts`);
      },
    ]),
  );

function stripped(text: string, characters: string, ends: { start: boolean; end: boolean }): string {
  const taken = new Set(characters);
  const points = Array.from(text);
  let [from, to] = [0, points.length];
  while (ends.start && from < to && taken.has(points[from] as string)) from++;
  while (ends.end && to > from && taken.has(points[to - 1] as string)) to--;
  return points.slice(from, to).join('');
}
