// What the keys of data mean together, those of a class in Python among them.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';
import type { ResolvedSftConfig } from '../schema/sft_schema';

const SECTION = 'data.custom_cls';

/** A class may make its rows of something else. @throws ConfigError */
export function checkDataFiles(
  data: Pick<(ResolvedConfig | ResolvedSftConfig)['data'], 'train_files' | 'val_files'>,
  fromClass: boolean,
): void {
  if (fromClass) return;
  for (const name of ['train_files', 'val_files'] as const) {
    if (data[name]?.length !== 0) continue;
    const none = name === 'val_files' ? ', or null for no validation' : '';
    throw new ConfigError(`data.${name}: expected at least one file${none}, got []`, `data.${name}`);
  }
}

/** @throws ConfigError */
export function checkDatasetClass({ data }: ResolvedConfig): void {
  const { path, name, config } = data.custom_cls;
  if (path === null) {
    if (name === null) return;
    throw new ConfigError(
      `${SECTION}.path: expected the Python file of the class ${name}`,
      `${SECTION}.path`,
    );
  }
  if (!path.endsWith('.py'))
    throw new ConfigError(`${SECTION}.path: expected a Python file (.py), got ${path}`, `${SECTION}.path`);
  if (name === null)
    throw new ConfigError(`${SECTION}.name: expected the name of the class in ${path}`, `${SECTION}.name`);
  const twice = Object.keys(config).find((key) => Object.hasOwn(data, key));
  if (twice === undefined) return;
  const key = `${SECTION}.config.${twice}`;
  throw new ConfigError(
    `${key}: expected data.${twice} to be given instead, which the class sees as well`,
    key,
  );
}
