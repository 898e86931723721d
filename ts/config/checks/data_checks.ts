// What the keys of a data set class in Python mean together.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';

const SECTION = 'data.custom_cls';

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
