// The command lines of scripts and benchmarks: what is wrong with one is said in one line, with exit code 2. Needs no packages.
import path from 'node:path';
import { parseArgs } from 'node:util';

/** Ends the script with one line on stderr. */
export function refuse(message, code = 2) {
  console.error(`${path.basename(process.argv[1] ?? 'script', '.mjs')}: ${message}`);
  process.exit(code);
}

/** Ours and those of the system say what is wrong; of others the stack is needed. */
function tell(error) {
  const foreseen = ['TroupeError', 'ConfigError'].includes(error?.name) || error?.syscall !== undefined;
  if (foreseen) refuse(error.message, 1);
  console.error(error?.stack ?? error);
  process.exit(1);
}

/**
 * As parseArgs of Node, or the end of the script. An option with `least` is a whole number from there on, with `list` as well several between commas, and
 * stays a text. Errors that nobody catches later are told in one line as well, where they were foreseen. `words`: how many arguments there may be that are no options, 0 by default; `of`: what these are called.
 */
export function commandLine({ options = {}, words = 0, of = 'arguments without --', args }) {
  process.on('uncaughtException', tell);
  let given;
  try {
    given = parseArgs({ options, allowPositionals: true, ...(args === undefined ? {} : { args }) });
  } catch (error) {
    if (!String(error.code).startsWith('ERR_PARSE_ARGS')) throw error;
    // What follows is about options that are meant as words.
    refuse(error.message.replace(/\. To specify .*/s, ''));
  }
  const { values, positionals } = given;
  for (const [name, { least, list = false }] of Object.entries(options))
    if (least !== undefined && values[name] !== undefined)
      for (const text of list ? values[name].split(',') : [values[name]])
        wholeNumber(text, least, `--${name}`);
  if (positionals.length > words)
    refuse(`expected ${words === 0 ? 'no' : `at most ${words}`} ${of}, got ${positionals.join(' ')}`);
  return given;
}

/** @returns the number that `text` is; ends the script where it is none from `least` on */
export function wholeNumber(text, least, what) {
  if (/^\d{1,15}$/.test(text) && Number(text) >= least) return Number(text);
  refuse(`${what}: expected a whole number from ${least} on, got ${text}`);
}

/** `text`, which has to be one of `names`. */
export function oneOf(text, names, what) {
  if (names.includes(text)) return text;
  refuse(`${what}: expected one of ${names.join(', ')}, got ${text}`);
}
