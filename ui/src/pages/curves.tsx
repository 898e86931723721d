// All metrics of a run, or of several over each other.
import '../styles/pages/curves.css';
import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import type { RunDetail, XAxis } from '../../../ts/ui/protocol';
import { duration, number, plural } from '../lib/format';
import { Empty, Fact, Icon, Segments } from '../parts/basics';
import { axisText, Chart, type View } from '../parts/chart';
import { ask, type Query, useAnswer } from '../state/api';
import { useMetricsStamp } from '../state/live';
import { replaceParam } from '../state/route';
import { seriesColor, useTheme } from '../state/theme';

/** What is looked at first. */
const FIRST = [
  /^critic\/score\/mean$/,
  /^val-core\//,
  /^train\/loss$/,
  /^val\/loss$/,
  /^actor\/entropy$/,
  /^actor\/grad_norm$/,
  /^response_length\/mean$/,
  /^actor\/(ppo_kl|kl_loss|pg_loss)$/,
];
const ORDER = [
  'val-core',
  'critic',
  'reward',
  'actor',
  'response_length',
  'training',
  'rollout_corr',
  'perf',
  'timing_s',
];
const SMOOTHINGS = [0, 0.6, 0.9, 0.97, 0.99];

interface Props {
  runs: readonly string[];
  detail: RunDetail | null;
  params: URLSearchParams;
}

/** Of several runs, in their order. */
const askEach = (path: string, { run }: Query, signal: AbortSignal): Promise<RunDetail[]> =>
  Promise.all((run as readonly string[]).map((id) => ask<RunDetail>(path, { run: id }, signal)));

/** Metrics of any of the runs: one of them may have what the first lacks. */
function useNames(runs: readonly string[], first: RunDetail | null): string[] {
  const others = runs.slice(1);
  const stamp = useMetricsStamp(others);
  const { data } = useAnswer(others.length > 0 ? 'run' : null, { run: others }, stamp, askEach);
  const details = [...(first === null ? [] : [first]), ...(data ?? [])];
  return [...new Set(details.flatMap(({ metrics }) => metrics.map(({ name }) => name)))];
}

function groupsOf(names: readonly string[]): [string, string[]][] {
  const groups = new Map<string, string[]>();
  const first = FIRST.flatMap((pattern) => names.filter((name) => pattern.test(name))).slice(0, 9);
  if (first.length > 0) groups.set('first', first);
  for (const name of names) {
    const group = name.includes('/') ? (name.split('/')[0] as string) : 'other';
    groups.set(group, [...(groups.get(group) ?? []), name]);
  }
  const place = (group: string): number =>
    group === 'first' ? -1 : ORDER.includes(group) ? ORDER.indexOf(group) : ORDER.length;
  return [...groups].sort(([a], [b]) => place(a) - place(b) || a.localeCompare(b));
}

export function CurvesPage({ runs, detail, params }: Props): JSX.Element {
  useTheme();
  const [search, setSearch] = useState(params.get('find') ?? '');
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set(['first', 'val-core', 'critic']));
  const [view, setView] = useState<View>({ x: 'step', smoothing: 0, log: false, range: null });
  const [large, setLarge] = useState<string | null>(params.get('metric'));
  const names = useNames(runs, detail);
  const joined = names.join('\n');
  const wanted = search.toLowerCase().trim();
  const groups = useMemo(
    (): [string, string[]][] =>
      wanted === ''
        ? groupsOf(names)
        : [
            [
              'found',
              names.filter((name) => wanted.split(/\s+/).every((word) => name.toLowerCase().includes(word))),
            ],
          ],
    [joined, wanted],
  );
  const show = (name: string | null): void => {
    setLarge(name);
    replaceParam('metric', name);
  };
  const set = (change: Partial<View>): void => setView((before) => ({ ...before, ...change }));
  const zoom = (range: View['range']): void => set({ range });
  const hasTokens = detail === null || names.includes('perf/total_num_tokens');
  return (
    <>
      {runs.length === 1 ? <Facts detail={detail} /> : <Legend runs={runs} />}
      <div class="head controls">
        <input
          type="search"
          class="find"
          placeholder={detail === null ? 'Find metrics' : `Find among ${plural(names.length, 'metric')}`}
          aria-label="Find metrics"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
        />
        <Segments
          label="Horizontal axis"
          value={view.x}
          options={(['step', 'time', ...(hasTokens ? ['tokens'] : [])] as XAxis[]).map(
            (x) => [x, x] as const,
          )}
          onChange={(x) => set({ x, range: null })}
        />
        <label class="field">
          Smoothing
          <input
            type="range"
            min="0"
            max={SMOOTHINGS.length - 1}
            value={SMOOTHINGS.indexOf(view.smoothing)}
            aria-valuetext={String(view.smoothing)}
            onInput={(event) => set({ smoothing: SMOOTHINGS[Number(event.currentTarget.value)] ?? 0 })}
          />
          <span class="num smoothing">{view.smoothing}</span>
        </label>
        <label class="check">
          <input
            type="checkbox"
            checked={view.log}
            onChange={(event) => set({ log: event.currentTarget.checked })}
          />{' '}
          log
        </label>
        <button
          type="button"
          disabled={view.range === null}
          onClick={() => zoom(null)}
          title="Or a double click on a curve"
        >
          <Icon name="reset" />
          {view.range === null
            ? 'all'
            : `${axisText(view.x, view.range[0])} – ${axisText(view.x, view.range[1])}`}
        </button>
      </div>
      {large === null ? null : (
        <div class="large-box">
          <button type="button" class="small" onClick={() => show(null)}>
            <Icon name="back" /> all curves
          </button>
          <Chart runs={runs} name={large} view={view} onZoom={zoom} large />
        </div>
      )}
      {large !== null
        ? null
        : groups.map(([group, members]) => {
            const opened = wanted !== '' || open.has(group);
            return (
              <section class="group" key={group}>
                <h2>
                  <button
                    type="button"
                    class="plain fold"
                    aria-expanded={opened}
                    onClick={() =>
                      setOpen((before) => {
                        const next = new Set(before);
                        if (!next.delete(group)) next.add(group);
                        return next;
                      })
                    }
                  >
                    <Icon name="forward" />
                    {group === 'first' ? 'At a glance' : group === 'found' ? 'Found' : group}
                    <span class="badge">{members.length}</span>
                  </button>
                </h2>
                {opened ? (
                  <div class="charts">
                    {members.map((name) => (
                      <Chart
                        key={name}
                        runs={runs}
                        name={name}
                        view={view}
                        onZoom={zoom}
                        onOpen={() => show(name)}
                      />
                    ))}
                  </div>
                ) : null}
              </section>
            );
          })}
      {detail !== null && names.length === 0 ? (
        <Empty title="No metrics yet">The first line comes with the first step.</Empty>
      ) : null}
    </>
  );
}

function Facts({ detail }: { detail: RunDetail | null }): JSX.Element {
  const summary = detail?.summary;
  const value = (name: string): number | null =>
    detail?.metrics.find((metric) => metric.name === name)?.last ?? null;
  return (
    <div class="facts">
      <Fact
        name="Step"
        value={number(summary?.step)}
        unit={summary?.totalSteps ? `of ${number(summary.totalSteps)}` : ''}
      />
      <Fact
        name={summary?.headline?.name.replace(/^val-core\//, '') ?? 'Newest'}
        value={number(summary?.headline?.value)}
      />
      <Fact name={summary?.reward?.name ?? 'Reward'} value={number(summary?.reward?.value)} />
      <Fact name="Per step" value={duration(summary?.secondsPerStep)} />
      {summary?.state === 'running' ? (
        <Fact name="Left" value={duration(summary.eta)} />
      ) : (
        <Fact name="Tokens per second" value={number(value('perf/throughput'))} unit="per device" />
      )}
      <Fact name="Warnings" value={number(detail?.warnings ?? null)} />
    </div>
  );
}

const Legend = ({ runs }: { runs: readonly string[] }): JSX.Element => (
  <div class="legend card pad" role="list" aria-label="Runs compared">
    {runs.map((id, i) => (
      <span role="listitem" key={id} class="mono">
        <i class="swatch" style={{ background: seriesColor(i) }} />
        {id}
      </span>
    ))}
  </div>
);
