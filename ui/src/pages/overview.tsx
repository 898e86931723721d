// All runs of the directory: what state they are in, what they have reached, and which to compare.
import '../styles/pages/overview.css';
import type { JSX } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { RunSummary } from '../../../ts/ui/protocol';
import { ago, duration, number, plural } from '../lib/format';
import { Empty, Problem, StateBadge } from '../parts/basics';
import { ask, useAnswer } from '../state/api';
import { useLive } from '../state/live';
import { go, href } from '../state/route';

const ROW = 60;
const MOST_COMPARED = 8;

export function Overview(): JSX.Element {
  const { summaries, gone, regained, told } = useLive();
  const { data, error } = useAnswer<RunSummary[]>('runs', {}, regained);
  const [search, setSearch] = useState('');
  const [chosen, setChosen] = useState<readonly string[]>([]);
  const runs = useMemo(() => {
    const all = new Map((data ?? []).map((run) => [run.id, run]));
    for (const [id, run] of summaries) all.set(id, run);
    for (const id of gone) all.delete(id);
    const words = search.toLowerCase().split(/\s+/);
    return [...all.values()]
      .filter((run) =>
        words.every((word) =>
          `${run.id} ${run.state} ${run.algorithm} ${run.model}`.toLowerCase().includes(word),
        ),
      )
      .sort((a, b) => Number(b.state === 'running') - Number(a.state === 'running') || b.changed - a.changed);
  }, [data, told, search]);
  const running = runs.filter(({ state }) => state === 'running').length;
  if (error !== null && data === null) return <Problem text={error} />;
  if (data !== null && data.length === 0 && summaries.size === 0)
    return (
      <Empty title="No runs here yet">
        They appear as soon as one begins to write: <code>npx troupe train my.yaml</code>
      </Empty>
    );
  const toggle = (id: string): void =>
    setChosen((before) =>
      before.includes(id) ? before.filter((one) => one !== id) : [...before, id].slice(-MOST_COMPARED),
    );
  return (
    <>
      <div class="head">
        <h1>Runs</h1>
        <span class="soft num">
          {data === null ? ' ' : `${plural(runs.length, 'run')}${running > 0 ? `, ${running} running` : ''}`}
        </span>
        <span class="grow" />
        <input
          type="search"
          class="find"
          placeholder="Name, state, algorithm, model"
          aria-label="Find runs"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
        />
        <button
          type="button"
          class="primary"
          disabled={chosen.length < 2}
          onClick={() => go(href('curves', chosen))}
        >
          Compare{chosen.length > 1 ? ` ${chosen.length}` : ''}
        </button>
      </div>
      <RunTable runs={runs} chosen={chosen} onToggle={toggle} />
    </>
  );
}

interface TableProps {
  runs: readonly RunSummary[];
  chosen: readonly string[];
  onToggle: (id: string) => void;
}

/** Only the rows on the screen exist: there may be thousands of runs. */
function RunTable({ runs, chosen, onToggle }: TableProps): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [window, setWindow] = useState({ first: 0, last: 30 });
  const [sparks, setSparks] = useState<Readonly<Record<string, readonly [number, number][]>>>({});
  const asked = useRef(new Map<string, number>());
  useEffect(() => {
    const look = (): void => {
      const top = box.current?.getBoundingClientRect().top ?? 0;
      const first = Math.max(0, Math.floor(-top / ROW) - 5);
      setWindow({ first, last: first + Math.ceil(innerHeight / ROW) + 10 });
    };
    look();
    addEventListener('scroll', look, { passive: true });
    addEventListener('resize', look);
    return () => {
      removeEventListener('scroll', look);
      removeEventListener('resize', look);
    };
  }, []);
  const shown = runs.slice(window.first, window.last);
  const wanted = shown.filter(({ id, step }) => asked.current.get(id) !== step);
  useEffect(() => {
    if (wanted.length === 0) return;
    for (const { id, step } of wanted) asked.current.set(id, step);
    void ask<{ id: string; points: [number, number][] }[]>('sparklines', {
      run: wanted.map(({ id }) => id),
    }).then(
      (found) =>
        setSparks((before) => ({
          ...before,
          ...Object.fromEntries(found.map(({ id, points }) => [id, points])),
        })),
      // Asked again with their next step.
      () => undefined,
    );
  }, [wanted.map(({ id, step }) => `${id}@${step}`).join()]);
  return (
    <div class="card runs" role="table" aria-label="Runs" aria-rowcount={runs.length}>
      <div class="run titles" role="row">
        <span role="columnheader" class="hidden">
          Compare
        </span>
        <span role="columnheader" class="c-name">
          Run
        </span>
        <span role="columnheader" class="c-state">
          State
        </span>
        <span role="columnheader" class="c-step">
          Step
        </span>
        <span role="columnheader" class="c-value">
          Newest
        </span>
        <span role="columnheader" class="c-spark">
          Reward
        </span>
        <span role="columnheader" class="c-time">
          Time
        </span>
      </div>
      <div ref={box} role="rowgroup" class="run-rows" style={{ height: `${runs.length * ROW}px` }}>
        {shown.map((run, i) => (
          <RunRow
            key={run.id}
            run={run}
            top={(window.first + i) * ROW}
            index={window.first + i}
            chosen={chosen.includes(run.id)}
            spark={sparks[run.id] ?? []}
            onToggle={() => onToggle(run.id)}
          />
        ))}
      </div>
    </div>
  );
}

function RunRow(props: {
  run: RunSummary;
  top: number;
  index: number;
  chosen: boolean;
  spark: readonly [number, number][];
  onToggle: () => void;
}): JSX.Element {
  const { run, chosen } = props;
  const value = run.headline;
  return (
    <div
      class={`run ${chosen ? 'chosen' : ''}`}
      role="row"
      aria-rowindex={props.index + 1}
      style={{ transform: `translateY(${props.top}px)` }}
    >
      <span role="cell" class="c-check">
        <input
          type="checkbox"
          checked={chosen}
          onChange={props.onToggle}
          aria-label={`Compare ${run.name}`}
        />
      </span>
      <span role="cell" class="c-name">
        <a href={href('curves', [run.id])} class="mono name">
          {run.name}
        </a>
        <span class="soft sub">
          {[run.program, run.algorithm, run.model?.split('/').filter(Boolean).slice(-2).join('/')]
            .filter(Boolean)
            .join(' · ')}
        </span>
      </span>
      <span role="cell" class="c-state">
        <StateBadge state={run.state} />
      </span>
      <span role="cell" class="c-step num">
        <span>
          {number(run.step)}
          <span class="soft">{run.totalSteps === null ? '' : ` / ${number(run.totalSteps)}`}</span>
          <span class="soft left">{run.eta === null ? '' : ` · ${duration(run.eta)} left`}</span>
        </span>
        {run.totalSteps ? (
          <span
            class="progress"
            role="progressbar"
            aria-label="Steps done"
            aria-valuenow={run.step}
            aria-valuemax={run.totalSteps}
          >
            <i style={{ width: `${Math.min(100, (100 * run.step) / run.totalSteps)}%` }} />
          </span>
        ) : null}
      </span>
      <span role="cell" class="c-value num" title={value?.name}>
        <b>{number(value?.value)}</b>
        <span class="soft sub">{value?.name.replace(/^val-core\//, '') ?? ''}</span>
      </span>
      <span role="cell" class="c-spark">
        <Spark points={props.spark} />
      </span>
      <span role="cell" class="c-time num">
        <span>{run.eta === null ? ago(run.changed) : `${duration(run.eta)} left`}</span>
        <span class="soft sub">
          {run.secondsPerStep === null ? '' : `${duration(run.secondsPerStep)} per step`}
        </span>
      </span>
    </div>
  );
}

function Spark({ points }: { points: readonly [number, number][] }): JSX.Element {
  const [width, height] = [120, 30];
  const ys = points.map(([, y]) => y);
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const last = points.at(-1)?.[0] ?? 1;
  const path = points
    .map(
      ([x, y], i) =>
        `${i === 0 ? 'M' : 'L'}${((x / (last || 1)) * width).toFixed(1)} ${(height - 3 - ((y - low) / (high - low || 1)) * (height - 6)).toFixed(1)}`,
    )
    .join('');
  return (
    <svg viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
      {points.length > 1 ? (
        <path
          d={path}
          fill="none"
          stroke="var(--accent)"
          stroke-width="1.5"
          vector-effect="non-scaling-stroke"
        />
      ) : null}
    </svg>
  );
}
