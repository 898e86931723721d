/**
 * The first key that appears twice in the outermost object of a valid JSON text, or null. JSON.parse keeps the last one
 * silently, which in a tensor file would hide a tensor.
 */
export function duplicateKey(json: string): string | null {
  const seen = new Set<string>();
  let depth = 0;
  for (let i = 0; i < json.length; i++) {
    const c = json[i];
    if (c === '{' || c === '[') depth++;
    else if (c === '}' || c === ']') depth--;
    else if (c === '"') {
      const end = stringEnd(json, i);
      if (depth === 1 && isKey(json, end)) {
        const key = JSON.parse(json.slice(i, end)) as string;
        if (seen.has(key)) return key;
        seen.add(key);
      }
      i = end - 1;
    }
  }
  return null;
}

/** Index after the closing quote of the string that opens at `start`. */
function stringEnd(json: string, start: number): number {
  let i = start + 1;
  while (i < json.length && json[i] !== '"') i += json[i] === '\\' ? 2 : 1;
  return i + 1;
}

function isKey(json: string, end: number): boolean {
  let i = end;
  while (i < json.length && /\s/.test(json[i] as string)) i++;
  return json[i] === ':';
}
