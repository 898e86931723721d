// JSON.parse takes 12.0 for the number 12 and JSON.stringify writes 12, which readers with typed fields (transformers 5) refuse
// where they expect a float; and 1e400 for an infinity, which it writes as null. Python also writes Infinity by name.

const STRING_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\bInfinity\b)/g;
const MARK = '\u0000';
const MARKED = /"\\u0000([^"]*)"/g;

/** The same JSON with every float of integral value, and every number beyond doubles, as a marked string, which survives parsing; `restoreFloats` undoes it. */
export function markFloats(json: string): string {
  return json.replace(STRING_OR_NUMBER, (token) =>
    !token.startsWith('"') && isChanged(token, Number(token)) ? JSON.stringify(`${MARK}${token}`) : token,
  );
}

/** The same JSON with the numbers that Python calls Infinity as others beyond doubles. */
export const withoutNames = (json: string): string =>
  json.replace(STRING_OR_NUMBER, (token) =>
    token.endsWith('Infinity') ? token.replace('Infinity', '1e400') : token,
  );

const isChanged = (token: string, number: number): boolean =>
  !Number.isFinite(number) || (/[.eE]/.test(token) && Number.isInteger(number));

/** After JSON.stringify. */
export const restoreFloats = (json: string): string => json.replace(MARKED, '$1');
