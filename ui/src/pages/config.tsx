// The resolved configuration of a run; of several, where they differ.
import '../styles/pages/config.css';
import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { plural } from '../lib/format';
import { Empty, Problem } from '../parts/basics';
import { ask } from '../state/api';

type Tree = { readonly [key: string]: unknown };

/** As JSON; small numbers as people write them: 1e-6. */
const text = (value: unknown): string =>
  typeof value === 'number' && value !== 0 && Math.abs(value) < 1e-3
    ? value.toExponential()
    : JSON.stringify(value);

function flat(tree: Tree, path = ''): [string, string][] {
  return Object.entries(tree).flatMap(([key, value]): [string, string][] => {
    const name = path === '' ? key : `${path}.${key}`;
    const isTree = typeof value === 'object' && value !== null && !Array.isArray(value);
    return isTree && Object.keys(value).length > 0 ? flat(value as Tree, name) : [[name, text(value)]];
  });
}

export function ConfigPage({ runs }: { runs: readonly string[] }): JSX.Element {
  const [configs, setConfigs] = useState<readonly ReadonlyMap<string, string>[] | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [search, setSearch] = useState('');
  const [all, setAll] = useState(runs.length === 1);
  useEffect(() => {
    Promise.all(runs.map((id) => ask<Tree>('config', { run: id }))).then(
      (found) => setConfigs(found.map((tree) => new Map(flat(tree)))),
      (reason: Error) => setError(reason.message),
    );
  }, [runs.join('\n')]);
  if (error !== null) return <Problem text={error} />;
  const keys = [...new Set((configs ?? []).flatMap((config) => [...config.keys()]))];
  const differs = (key: string): boolean =>
    new Set((configs ?? []).map((config) => config.get(key))).size > 1;
  const wanted = search.toLowerCase();
  const shown = keys.filter(
    (key) =>
      (all || differs(key)) &&
      (key.toLowerCase().includes(wanted) ||
        (configs ?? []).some((config) => config.get(key)?.toLowerCase().includes(wanted))),
  );
  if (configs !== null && keys.length === 0)
    return (
      <Empty title="No configuration">
        Runs write <code>config.json</code> as they begin.
      </Empty>
    );
  return (
    <>
      <div class="head controls">
        <input
          type="search"
          class="find"
          placeholder="Find keys and values"
          aria-label="Find keys and values"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
        />
        {runs.length > 1 ? (
          <label class="check">
            <input type="checkbox" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} />{' '}
            also what is equal
          </label>
        ) : null}
        <span class="soft num">
          {configs === null ? '' : plural(shown.length, runs.length > 1 && !all ? 'difference' : 'key')}
        </span>
      </div>
      <div class="card scroll-x" tabIndex={0} role="region" aria-label="Configuration">
        <table class="table config">
          <thead>
            <tr>
              <th scope="col">Key</th>
              {runs.map((id) => (
                <th scope="col" key={id} class="mono">
                  {runs.length === 1 ? 'Value' : id}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((key) => (
              <tr key={key} class={runs.length > 1 && all && differs(key) ? 'differs' : ''}>
                <th scope="row" class="mono">
                  {key}
                </th>
                {(configs ?? []).map((config, i) => (
                  <td key={runs[i]} class="mono">
                    {runs.length > 1 ? <span class="of">{runs[i]}</span> : null}
                    {config.get(key) ?? <span class="soft">not there</span>}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
