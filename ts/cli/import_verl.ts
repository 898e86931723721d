import { writeFileSync } from 'node:fs';
import { dump } from 'js-yaml';
import { asTroupeError } from '../base/atomic_dir';
import { discard } from '../base/atomic_file';
import { printable } from '../base/printable';
import { missingFeatures } from '../config/checks/missing';
import { checkTree } from '../config/config';
import { type ImportNote, importVerl, type VerlImport } from '../config/verl/import';
import { readVerlSource, type VerlSource } from '../config/verl/source';
import { ConfigError, TroupeError } from '../errors';

/** Phrase of everything that says which feature is missing. */
const MISSING = /\bneeds [\s\S]*not there/;

export interface ImportOptions {
  /** null: YAML on stdout, with the report as comments. */
  out: string | null;
  /** Write the result though the run will differ. */
  allowMissing: boolean;
  /** Whose defaults hold for what the source does not say; null: see {@link readVerlSource}. */
  version: string | null;
  write?: (text: string) => void;
}

/**
 * `troupe import-verl`: writes our YAML, and what became of every key. Returns the exit code: 2 when something was asked for that
 * is missing here, and nothing is written then, unless `allowMissing`.
 * @throws ConfigError when the source cannot be read; TroupeError NO_SPACE, IO when `out` cannot be written
 */
export function importVerlCommand(
  file: string,
  overrides: readonly string[],
  options: ImportOptions,
): number {
  const { out, allowMissing, version } = options;
  const write = options.write ?? ((text: string) => process.stdout.write(text));
  const source = readVerlSource(file, overrides, { environment: process.env, version });
  const result = importVerl(source);
  const left = remaining(result);
  const report = importReport(file, source, result, left);
  const missing = result.notMapped.length + left.filter(({ why }) => MISSING.test(why)).length;
  if (missing > 0 && !allowMissing) {
    const refusal = `Nothing was written: ${missing} thing${missing === 1 ? '' : 's'} that change${missing === 1 ? 's' : ''} the run (see above)`;
    write(`${report.join('\n')}\n\n${refusal}. --allow-missing writes the rest.\n`);
    return 2;
  }
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
    if ((cause as NodeJS.ErrnoException).code === 'EEXIST')
      throw new TroupeError('IO', `cannot write ${out}: it is there already: choose another file`, { cause });
    discard(out);
    throw asTroupeError(cause, `write ${out}`);
  }
  write(`${report.join('\n')}\n\nwritten to ${out}\n`);
  return 0;
}

/** Lines for people: what could not be mapped first, then what changed, what has no effect, and what differs by default. */
function importReport(
  file: string,
  source: VerlSource,
  result: VerlImport,
  left: readonly ImportNote[],
): string[] {
  const { program, version, mapped, notMapped, changed, withoutEffect, defaults } = result;
  return [
    `From ${file}: ${mapped.length} keys mapped, for troupe ${program}; defaults of verl ${version}`,
    ...origin(source),
    ...list('NOT MAPPED: the run will differ in', notMapped),
    ...list('To be put right before it can run', left),
    ...list('Changed', changed),
    ...list('Left to defaults of verl that are not those of troupe; written', defaults),
    ...list('Accepted by troupe, without effect here; left out', withoutEffect),
  ].map((line) => printable(line, { max: Number.POSITIVE_INFINITY }));
}

/** What was run, or why it was not. */
function origin({ launch, launchCount, notRun }: VerlSource): string[] {
  const lines: string[] = [];
  if (launch !== null)
    lines.push(
      `The script was run in a sandbox, where it would have started: ${launch.program} (${launch.args.length} arguments)`,
    );
  if (notRun !== null)
    lines.push(
      `The script was read, not run (${notRun}): conditions and loops were not followed; compare every value with what it passes`,
    );
  if (launchCount > 1) lines.push(`It starts verl ${launchCount} times: the last one counts`);
  return lines;
}

/** Mistakes that are left in the result, as `troupe validate` would name them. */
function remaining({ config, program }: VerlImport): ImportNote[] {
  const features = missingFeatures(config).map(({ path, message }) => ({ key: path, why: message }));
  try {
    checkTree(config, program);
    return features;
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    const mistakes = error.message.split('\n').map((line) => {
      const [, key, why] = /^(?:unknown key )?([\w.]+): ([\s\S]*)$/.exec(line) ?? [];
      return { key: key ?? 'configuration', why: why ?? line };
    });
    return [...features, ...mistakes];
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
