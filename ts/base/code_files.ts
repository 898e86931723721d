/** Of a config.json: what Python loads a model of another library's class with, the files that `auto_map` names where they are not in another repository. */
export function codeFiles({ auto_map: map }: Readonly<Record<string, unknown>>): string[] {
  if (typeof map !== 'object' || map === null) return [];
  const classes = Object.values(map).filter((name) => typeof name === 'string');
  const modules = classes.flatMap((name) => /^(\w+)\.\w+$/.exec(name)?.[1] ?? []);
  return [...new Set(modules)].map((name) => `${name}.py`);
}
