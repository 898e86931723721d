import { reasonOf } from '../../base/text';
import { ConfigError } from '../../errors';
import type { Hidden } from '../reading/hidden';
import { parseOverride } from '../reading/overrides';
import { parseYamlTree, readConfigText } from '../reading/read';
import { resolveReferences } from '../reading/references';
import { deletePath, getPath, setPath, type Tree } from '../reading/tree';
import { allWords, launchWords, type Word } from './shell';

/** What a configuration of verl says, and what of it could not be read. */
export interface VerlSource {
  tree: Tree;
  /** Key or argument, and why it could not be read. */
  unread: { key: string; why: string }[];
  /** Keys taken away with ~. */
  removed: string[];
  /** What the environment has a part in by ${oc.env:...}. */
  hidden: Hidden[];
}

/**
 * Reads a YAML file of verl (.yaml, .yml), or a script or text with its launch command, and puts `overrides` on top.
 * @throws ConfigError when there is nothing of the kind in the file
 */
export function readVerlSource(
  file: string,
  overrides: readonly string[],
  environment: Readonly<Record<string, string | undefined>>,
): VerlSource {
  const text = readConfigText(file);
  try {
    return sourceOf(file, text, overrides, environment);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new ConfigError(
      `${file}: expected a configuration, got one that is nested too deeply, or in itself`,
    );
  }
}

function sourceOf(
  file: string,
  text: string,
  overrides: readonly string[],
  environment: Readonly<Record<string, string | undefined>>,
): VerlSource {
  const source: VerlSource = { tree: {}, unread: [], removed: [], hidden: [] };
  if (/\.ya?ml$/.test(file)) source.tree = parseYamlTree(text, file);
  else addWords(source, launchWords(text, environment) ?? bareWords(file, text, environment));
  addWords(
    source,
    overrides.map((word) => ({ text: word, problem: null })),
  );
  const note = (key: string, why: string): void => void source.unread.push({ key, why });
  source.tree = resolveReferences(source.tree, note, source.hidden);
  return source;
}

function bareWords(
  file: string,
  text: string,
  environment: Readonly<Record<string, string | undefined>>,
): Word[] {
  const words = allWords(text, environment);
  if (words.some(({ text: word }) => /^\+{0,2}[A-Za-z_]\w*(\.\w+)+=/.test(word))) return words;
  throw new ConfigError(
    `${file}: expected a YAML file (.yaml), a shell script that starts verl (python3 -m verl.trainer.main_ppo key=value ...), ` +
      'or a list of key=value',
  );
}

function addWords({ tree, unread, removed }: VerlSource, words: readonly Word[]): void {
  for (const { text, problem } of words) {
    const key = (/^[^=]+/.exec(text)?.[0] ?? text).replace(/^[+~]*/, '');
    if (problem !== null) {
      unread.push({ key: key === '' ? 'an argument' : key, why: problem });
      continue;
    }
    if (/^--config-(name|path|dir)\b/.test(text)) {
      unread.push({
        key: text,
        why: 'names a file of verl: its keys that differ from the defaults must be given here',
      });
      continue;
    }
    if (key.includes('@') || /^[+~]*\w+(\/\w+)+=/.test(text)) {
      unread.push({ key: text, why: 'chooses a configuration group of verl, which is not composed here' });
      continue;
    }
    try {
      const override = parseOverride(text);
      if (override.kind === 'delete') {
        // Mostly of what verl's own files give, which is not here.
        deletePath(tree, override.key);
        removed.push(override.key);
      } else {
        const inTheWay = setPath(tree, override.key, override.value);
        if (inTheWay !== null && getPath(tree, inTheWay) !== undefined)
          unread.push({ key: override.key, why: `${inTheWay} is already a value, not a section` });
      }
    } catch (error) {
      unread.push({ key: text, why: reasonOf(error).replace(/^override '[^']*': /, '') });
    }
  }
}

/** Whether a tree is one of verl's (or our) SFT trainers: a top-level model, and no actor_rollout_ref. */
export const isSftTree = (tree: Tree): boolean => 'model' in tree && !('actor_rollout_ref' in tree);
