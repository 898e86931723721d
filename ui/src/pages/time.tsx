// Where the time goes: phases of the trainer and work of the ranks over the wall clock; memory, speed.
import '../styles/pages/time.css';
import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import type { RunDetail, TracePage } from '../../../ts/ui/protocol';
import { duration } from '../lib/format';
import { type Bar, ganttOf, hueOf, totals } from '../lib/gantt';
import { Empty, Problem } from '../parts/basics';
import { Chart, type View } from '../parts/chart';
import { useAnswer } from '../state/api';
import { useStamp } from '../state/live';

const CHARTS = /^(perf\/|timing_s\/(step|gen|update_actor|old_log_prob|reward)$)/;
const ROW = 26;
const NAME = 92;

const colorOf = (name: string): string => `var(--series-${hueOf(name)})`;

export function TimePage({ id, detail }: { id: string; detail: RunDetail | null }): JSX.Element {
  const stamp = useStamp([id], 'trace');
  const [from, setFrom] = useState('');
  const [count, setCount] = useState(3);
  const steps = detail?.traceSteps ?? null;
  const first = from === '' ? Math.max(1, (steps?.last ?? 1) - count + 1) : Number(from);
  const { data, error } = useAnswer<TracePage>(
    steps === null ? null : 'trace',
    { run: id, from: first, to: first + count - 1 },
    from === '' ? stamp : 0,
  );
  const [view, setView] = useState<View>({ x: 'step', smoothing: 0, log: false, range: null });
  const names = detail?.metrics.map(({ name }) => name).filter((name) => CHARTS.test(name)) ?? [];
  if (detail === null) return <p class="soft">…</p>;
  return (
    <>
      {steps === null ? (
        <Empty title="No trace">
          Runs write <code>trace.jsonl</code> unless logging.trace is false.
        </Empty>
      ) : (
        <>
          <div class="head controls">
            <h1>Phases and ranks</h1>
            <span class="grow" />
            <label class="field">
              From step
              <input
                type="number"
                class="from-step"
                min={steps.first}
                max={steps.last}
                placeholder="newest"
                value={from}
                onInput={(event) => setFrom(event.currentTarget.value)}
              />
            </label>
            <button
              type="button"
              class="icon"
              aria-label="Earlier steps"
              disabled={first <= steps.first}
              onClick={() => setFrom(String(Math.max(steps.first, first - count)))}
            >
              ‹
            </button>
            <button
              type="button"
              class="icon"
              aria-label="Later steps"
              disabled={from === ''}
              onClick={() => setFrom(first + count > steps.last - count + 1 ? '' : String(first + count))}
            >
              ›
            </button>
            <label class="field">
              Steps
              <select value={String(count)} onChange={(event) => setCount(Number(event.currentTarget.value))}>
                {[1, 2, 3, 5, 10, 20].map((one) => (
                  <option key={one} value={String(one)}>
                    {one}
                  </option>
                ))}
              </select>
            </label>
          </div>
          <Problem text={error} />
          {data ? <GanttView page={data} /> : <div class="card gantt-empty" />}
        </>
      )}
      <div class="charts below">
        {names.map((name) => (
          <Chart
            key={name}
            runs={[id]}
            name={name}
            view={view}
            onZoom={(range) => setView({ ...view, range })}
          />
        ))}
      </div>
    </>
  );
}

function GanttView({ page }: { page: TracePage }): JSX.Element {
  const gantt = useMemo(() => ganttOf(page.lines), [page]);
  const [over, setOver] = useState<{ bar: Bar; lane: string } | null>(null);
  const { lanes, steps, end } = gantt;
  const names = [...new Set(lanes[0]?.bars.map(({ name }) => name))];
  const percent = (seconds: number): string => `${((100 * seconds) / (end || 1)).toFixed(3)}%`;
  return (
    <div class="card pad">
      <div class="legend">
        {names.map((name) => (
          <span key={name}>
            <i class="swatch" style={{ background: colorOf(name) }} />
            {name}
          </span>
        ))}
        <span>
          <i class="swatch waiting" />
          waits
        </span>
      </div>
      <div class="gantt scroll-x" role="group" tabIndex={0} aria-label="Timeline of phases and ranks">
        <div class="gantt-inner">
          {lanes.map((lane) => (
            <div class="lane" key={lane.name} style={{ height: `${ROW}px` }}>
              <span class="lane-name" style={{ width: `${NAME}px` }}>
                {lane.name}
              </span>
              <div class="lane-bars" onMouseLeave={() => setOver(null)}>
                {lane.bars.map((bar, i) => (
                  <i
                    key={i}
                    class={`bar-piece ${bar.waits === null ? '' : 'waiting'}`}
                    style={{
                      left: percent(bar.start),
                      width: percent(bar.end - bar.start),
                      ...(bar.waits === null ? { background: colorOf(bar.name) } : {}),
                    }}
                    onMouseEnter={() => setOver({ bar, lane: lane.name })}
                  />
                ))}
              </div>
            </div>
          ))}
          <div class="lane axis">
            <span class="lane-name" style={{ width: `${NAME}px` }} />
            <div class="lane-bars">
              {steps.map(({ step, start }) => (
                <span key={step} class="tick num" style={{ left: percent(start) }}>
                  step {step}
                </span>
              ))}
            </div>
          </div>
        </div>
      </div>
      <p class="readout num" role="status">
        {over === null ? (
          <span class="soft">{duration(end)} in all</span>
        ) : (
          <>
            {over.lane}: <b>{over.bar.waits === null ? over.bar.name : `waits for ${over.bar.waits}`}</b>{' '}
            {duration(over.bar.end - over.bar.start)}{' '}
            <span class="soft">
              from {duration(over.bar.start)}, step {over.bar.step}
            </span>
          </>
        )}
      </p>
      <Shares gantt={gantt} />
    </div>
  );
}

/** The same as a table, which also says it to those who do not see the bars. */
function Shares({ gantt: { lanes, end } }: { gantt: ReturnType<typeof ganttOf> }): JSX.Element {
  const share = (seconds: number): string => `${((100 * seconds) / (end || 1)).toFixed(1)} %`;
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label="Shares of the time">
      <table class="table shares">
        <thead>
          <tr>
            <th scope="col">Lane</th>
            <th scope="col" class="right">
              Busy
            </th>
            <th scope="col" class="right">
              Waits for others
            </th>
            <th scope="col">Longest</th>
          </tr>
        </thead>
        <tbody>
          {lanes.map(({ name, bars }) => {
            const work = bars.filter(({ waits }) => waits === null);
            const sum = (some: readonly Bar[]): number =>
              some.reduce((total, bar) => total + bar.end - bar.start, 0);
            const waiting = bars.filter(({ waits }) => waits !== null);
            return (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td class="right num">{share(sum(work))}</td>
                <td class="right num">{name === 'trainer' ? '' : share(sum(waiting))}</td>
                <td class="num soft">
                  {totals(work)
                    .slice(0, 4)
                    .map(([what, seconds]) => `${what} ${share(seconds)}`)
                    .join(', ')}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
