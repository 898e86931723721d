import { writeFileSync } from 'node:fs';
import { dump } from 'js-yaml';
import { reasonOf } from '../base/text';
import { checkTree } from '../config/config';
import { type ImportNote, importVerl, type VerlImport } from '../config/verl/import';
import { readVerlSource } from '../config/verl/source';
import { ConfigError, TroupeError } from '../errors';

/**
 * `troupe import-verl`: writes our YAML, and what became of every key. Returns the exit code.
 * @param out null: YAML on stdout, with the report as comments
 * @throws ConfigError when the source cannot be read; TroupeError IO when `out` cannot be written
 */
export function importVerlCommand(
  file: string,
  overrides: readonly string[],
  out: string | null,
  write: (text: string) => void = (text) => process.stdout.write(text),
): number {
  const result = importVerl(readVerlSource(file, overrides, process.env));
  const report = importReport(file, result);
  const yaml = dump(result.written, { lineWidth: 120 });
  const comments = report.map((line) => `# ${line}`.trimEnd()).join('\n');
  const text = `${comments}\n\n${yaml}`;
  if (out === null) {
    write(text);
    return 0;
  }
  try {
    // Never over a file that someone may have worked on.
    writeFileSync(out, text, { flag: 'wx' });
  } catch (cause) {
    throw new TroupeError('IO', `cannot write ${out}: ${reasonOf(cause)}: choose another file`, { cause });
  }
  write(`${report.join('\n')}\n\nwritten to ${out}\n`);
  return 0;
}

/** Lines for people: what could not be mapped first, then what changed, what has no effect, and what differs by default. */
function importReport(file: string, result: VerlImport): string[] {
  const { program, mapped, notMapped, changed, withoutEffect, defaults } = result;
  return [
    `From ${file}: ${mapped.length} keys mapped, for troupe ${program}`,
    ...list('NOT MAPPED: the run will differ in', notMapped),
    ...list('To be put right before it can run', remaining(result)),
    ...list('Changed', changed),
    ...list('Left to defaults that differ', defaults),
    ...list('Accepted by troupe, without effect here; left out', withoutEffect),
  ].map((line) => line.replaceAll('\n', '\\n'));
}

/** Mistakes that are left in the result, as `troupe validate` would name them. */
function remaining({ config, program }: VerlImport): ImportNote[] {
  try {
    checkTree(config, program);
    return [];
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.message.split('\n').map((line) => {
      const [, key, why] = /^(?:unknown key )?([\w.]+): ([\s\S]*)$/.exec(line) ?? [];
      return { key: key ?? 'configuration', why: why ?? line };
    });
  }
}

/** Keys that share a reason stand on one line. */
function list(title: string, notes: readonly ImportNote[]): string[] {
  if (notes.length === 0) return [];
  const byReason = new Map<string, string[]>();
  for (const { key, why } of notes) {
    const keys = byReason.get(why) ?? [];
    byReason.set(why, keys);
    keys.push(key);
  }
  return ['', `${title}:`, ...Array.from(byReason, ([why, keys]) => `  ${keys.join(', ')}: ${why}`)];
}
