// The turns of a trajectory, from what an agent or a reward function has put into a row.
import type { Turn } from './protocol';

const KEYS = ['turns', 'trajectory', 'messages'];

type Given = Readonly<Record<string, unknown>>;

export const textOf = (value: unknown): string =>
  typeof value === 'string' ? value : value === undefined ? '' : (JSON.stringify(value) ?? '');

export const numberOf = (value: unknown): number | null =>
  typeof value === 'number' && Number.isFinite(value) ? value : null;

const isObject = (value: unknown): value is Given => typeof value === 'object' && value !== null;

/** Of a row, under the first key that has some; null: there are none. */
export function turnsOf(row: Given): Turn[] | null {
  const found = KEYS.map((key) => row[key]).find(
    (value) => Array.isArray(value) && value.length > 0 && isObject(value[0]),
  );
  return found === undefined ? null : (found as unknown[]).map(turnOf);
}

/** Whether a row has its turns under this key, or under another one. */
export const isTurnsKey = (key: string): boolean => KEYS.includes(key);

/** Texts of a row that may be in its turns. */
export const turnTexts = (row: Given): string[] => KEYS.map((key) => textOf(row[key]));

/** What the page shows of a turn; what has another form than it shows is left out. */
function turnOf(given: unknown): Turn {
  const turn: Given = isObject(given) ? given : { content: given };
  const { versions, tool, error, tool_calls: calls } = turn;
  const seconds = numberOf(turn['seconds']);
  return {
    role: textOf(turn['role'] ?? 'turn'),
    content: textOf(turn['content'] ?? turn['text']),
    ...(seconds === null ? {} : { seconds }),
    ...(Array.isArray(versions) && versions.length === 2 && versions.every((one) => numberOf(one) !== null)
      ? { versions: versions as [number, number] }
      : {}),
    ...(typeof tool === 'string' ? { tool } : {}),
    ...(error === undefined || error === null ? {} : { error: textOf(error) }),
    ...(Array.isArray(calls) && calls.length > 0 ? { tool_calls: calls.map(callOf) } : {}),
  };
}

/** Also as messages of the OpenAI API have it: {function: {name, arguments}}. */
function callOf(given: unknown): { name: string; arguments: unknown } {
  const call = isObject(given) ? given : {};
  const { name, arguments: args } = isObject(call['function']) ? call['function'] : call;
  return { name: textOf(name), arguments: args };
}
