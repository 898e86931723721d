import { printable } from '../../base/printable';
import { show } from '../../base/text';
import { ConfigError } from '../../errors';
import { parseHydraValue } from './hydra_value';
import { isName } from './names';
import { deletePath, getPath, mergePath, type Tree } from './tree';

const shown = (text: string): string => printable(text, { max: 100 });

/** One override of a command line, in Hydra's syntax. */
export type Override =
  | { kind: 'set'; key: string; value: unknown }
  /** `~key`: what the file says is dropped, so that the default holds. */
  | { kind: 'delete'; key: string };

const KEY = '[A-Za-z_]\\w*(?:\\.[A-Za-z_]\\w*)*';
const DELETE = new RegExp(`^~(${KEY})(?:=[\\s\\S]*)?$`);
/** `group@package=file`, `group/sub=file`. */
const GROUP = /^[+~]{0,2}[A-Za-z_]\w*(?:[/@][A-Za-z_][\w.]*)+=/;
const SET = new RegExp(`^\\+{0,2}(${KEY})=([\\s\\S]*)$`);

/**
 * `a.b=value`; Hydra's + and ++ (a key that its file does not have) mean the same here. Nothing after = is an empty text. A section that is given
 * whole (`a={b:1}`) joins what is there, as Hydra has it.
 * @throws ConfigError naming the override
 */
export function parseOverride(text: string): Override {
  const where = `override '${shown(text)}'`;
  const [, deleted] = DELETE.exec(text) ?? [];
  if (deleted !== undefined) return { kind: 'delete', key: deleted };
  const [, key, value] = SET.exec(text) ?? [];
  if (key === undefined || value === undefined) {
    if (GROUP.test(text))
      throw new ConfigError(
        `${where}: chooses a file of a group, and groups are composed by troupe import-verl alone: give the keys that the file has`,
      );
    throw new ConfigError(`${where}: expected key=value with a dotted key, as in trainer.seed=2`);
  }
  const parsed = parseHydraValue(value, where);
  return { kind: 'set', key, value: typeof parsed === 'number' && isName(key) ? value.trim() : parsed };
}

/** @throws ConfigError naming the override */
export function applyOverride(tree: Tree, text: string): void {
  const override = parseOverride(text);
  const { key } = override;
  if (override.kind === 'delete') {
    if (deletePath(tree, key)) return;
    throw new ConfigError(
      `override '${shown(text)}': ${shown(key)} is not given in the file, so there is nothing to delete`,
      key,
    );
  }
  const inTheWay = mergePath(tree, key, override.value);
  if (inTheWay === null) return;
  const found = show(getPath(tree, inTheWay));
  throw new ConfigError(`override '${shown(text)}': ${shown(inTheWay)} is ${found}, not a section`, inTheWay);
}
