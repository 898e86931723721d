import { reasonOf } from '../../base/text';
import { parseOverride } from '../reading/overrides';
import { deletePath, getPath, mergePath, type Tree } from '../reading/tree';
import { type GroupChoice, groupChoice } from './compose';
import type { ConfigFiles } from './config_files';
import type { Word } from './shell';

/** What could not be read. */
export interface Unread {
  /** Key or argument. */
  key: string;
  why: string;
}

/** The words of a command, by what Hydra makes of them. */
export interface HydraArguments {
  configName: string | null;
  configPath: string | null;
  choices: GroupChoice[];
  /** Arguments that set, add or take away a key. */
  overrides: string[];
  unread: Unread[];
}

const FLAG = /^(--config-(?:name|path|dir)|-c[npd])(?:=([\s\S]*))?$/;

export function hydraArguments(
  words: readonly Word[],
  files: (path: string | null) => ConfigFiles,
): HydraArguments {
  const result: HydraArguments = {
    configName: null,
    configPath: null,
    choices: [],
    overrides: [],
    unread: [],
  };
  const keys: string[] = [];
  for (let at = 0; at < words.length; at++) {
    const { text, problem } = words[at] as Word;
    const [, flag, value] = FLAG.exec(text) ?? [];
    if (problem !== null) {
      const key = (/^[^=]+/.exec(text)?.[0] ?? text).replace(/^[+~]*/, '');
      result.unread.push({ key: key === '' ? 'an argument' : key, why: problem });
    } else if (flag !== undefined) {
      const given = value ?? words[++at]?.text ?? '';
      if (/name$|n$/.test(flag)) result.configName = given.replace(/\.yaml$/, '');
      else result.configPath = given;
    } else keys.push(text);
  }
  const found = files(result.configPath);
  for (const text of keys) {
    const choice = groupChoice(text, found);
    if (choice !== null) result.choices.push(choice);
    else if (text.startsWith('-'))
      result.unread.push({ key: text, why: 'is not an argument of Hydra that is known here' });
    else result.overrides.push(text);
  }
  return result;
}

const REFERENCE = /^\$\{.*\}$/;

/** Puts overrides on a tree; `given` gets what they set. Returns the keys that were taken away. */
export function applyArguments(
  tree: Tree,
  given: Tree,
  overrides: readonly string[],
  unread: Unread[],
): string[] {
  const removed: string[] = [];
  for (const text of overrides) {
    try {
      const override = parseOverride(text);
      if (override.kind === 'delete') {
        deletePath(tree, override.key);
        deletePath(given, override.key);
        removed.push(override.key);
        continue;
      }
      let inTheWay = mergePath(tree, override.key, override.value);
      if (inTheWay !== null && REFERENCE.test(String(getPath(tree, inTheWay)))) {
        // OmegaConf puts a section of its own in the place of one that is taken over from elsewhere.
        mergePath(tree, inTheWay, {});
        inTheWay = mergePath(tree, override.key, override.value);
      }
      if (inTheWay !== null && getPath(tree, inTheWay) !== undefined)
        unread.push({ key: override.key, why: `${inTheWay} is already a value, not a section` });
      else mergePath(given, override.key, override.value);
    } catch (error) {
      unread.push({ key: text, why: reasonOf(error).replace(/^override '[^']*': /, '') });
    }
  }
  return removed;
}
