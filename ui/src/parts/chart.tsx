// One metric of one or several runs as curves: drawn by uPlot, thinned out by the server to what the screen shows.
import '../styles/chart.css';
import type { JSX } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import type { XAxis } from '../../../ts/ui/protocol';
import { duration, number } from '../lib/format';
import { type Curve, openFile, saveFile, svgOf } from '../lib/save';
import { addressOf, useAnswer } from '../state/api';
import { useMetricsStamp } from '../state/live';
import { watchSeen } from '../state/seen';
import { askSeries, type Curves } from '../state/series';
import { cssColor, seriesColor, useTheme } from '../state/theme';
import { Icon } from './basics';

export interface View {
  x: XAxis;
  smoothing: number;
  log: boolean;
  /** null: all there is. */
  range: readonly [number, number] | null;
}

interface ChartProps {
  runs: readonly string[];
  /** Where the name is not the metric's. */
  title?: string;
  name: string;
  view: View;
  large?: boolean;
  onZoom: (range: readonly [number, number] | null) => void;
  onOpen?: () => void;
}

/** Milliseconds after which the points that are there are drawn into a new range: an answer that takes longer is not waited for. */
const PATIENCE = 60;

const AXES: Record<XAxis, string> = { step: 'step', time: 'time', tokens: 'tokens' };

export const axisText = (x: XAxis, value: number): string =>
  x === 'time' ? duration(value) : x === 'tokens' ? compact(value) : number(value);

const compact = (value: number): string =>
  Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 4 }).format(value);

/** Whether it is near the screen: what is not does not ask for anything. */
function useSeen(element: { current: HTMLElement | null }): boolean {
  const [seen, setSeen] = useState(false);
  useEffect(() => (element.current ? watchSeen(element.current, setSeen) : undefined), []);
  return seen;
}

/** All curves over the union of their x, as uPlot wants them. */
function aligned(curves: readonly Curve[]): uPlot.AlignedData {
  const tables = curves.flatMap(({ x, y, smooth }): uPlot.AlignedData[] =>
    smooth ? [[x as number[], y as number[], smooth as number[]]] : [[x as number[], y as number[]]],
  );
  if (tables.length === 0) return [[]];
  // 2: a gap in one curve is not one where another has a point.
  return tables.length === 1
    ? (tables[0] as uPlot.AlignedData)
    : uPlot.join(
        tables,
        tables.map((table) => table.map(() => 2)),
      );
}

export function Chart(props: ChartProps): JSX.Element {
  const { runs, name, view, large } = props;
  const box = useRef<HTMLDivElement>(null);
  const frame = useRef<HTMLElement>(null);
  const plot = useRef<uPlot | null>(null);
  const seen = useSeen(frame);
  const [theme] = useTheme();
  const [width, setWidth] = useState(0);
  const [at, setAt] = useState<number | null>(null);
  const stamp = useMetricsStamp(runs);
  const points = Math.max(300, Math.round(width * 1.5));
  const { data, error, old } = useAnswer<Curves>(
    // Before that is known the first news would ask again, though they hold nothing new.
    seen && width > 0 && stamp !== null ? 'series' : null,
    {
      run: runs,
      name: [name],
      x: view.x,
      smoothing: view.smoothing,
      points,
      from: view.range?.[0] ?? null,
      to: view.range?.[1] ?? null,
    },
    stamp,
    askSeries,
  );
  const curves = useMemo(
    () =>
      (data ?? []).flatMap(({ run, series }): Curve[] =>
        series.map((one) => ({
          label: run,
          color: seriesColor(runs.indexOf(run)),
          x: one.x,
          y: one.y,
          smooth: one.smooth,
        })),
      ),
    [data, theme],
  );
  const bad = (data ?? []).flatMap(({ series }) => series.flatMap((one) => one.bad));

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(Math.floor(element.clientWidth)));
    observer.observe(element);
    setWidth(Math.floor(element.clientWidth));
    return () => observer.disconnect();
  }, []);

  const shape = `${curves.map(({ smooth, color }) => `${color}${smooth ? 's' : ''}`).join()}|${theme}|${view.x}|${view.log}|${large}`;
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || width === 0 || curves.length === 0) return;
    const options = optionsOf(curves, view, { width, height: element.clientHeight }, setAt, props.onZoom);
    const made = new uPlot(options, aligned(curves), element);
    plot.current = made;
    return () => {
      made.destroy();
      plot.current = null;
    };
  }, [shape, width > 0]);

  useLayoutEffect(() => {
    const made = plot.current;
    if (!made || width === 0) return;
    const draw = (): void => {
      made.batch(() => {
        if (made.width !== width) made.setSize({ width, height: box.current?.clientHeight ?? 190 });
        made.setData(aligned(curves));
        const range = view.range ?? extent(curves);
        if (range) made.setScale('x', { min: range[0], max: range[1] });
      });
      frame.current?.setAttribute('data-drawn', String(performance.now()));
    };
    if (!old || made.width !== width) {
      draw();
      return;
    }
    // Points that are about to be replaced: their frame would only keep the new ones waiting.
    const late = setTimeout(draw, PATIENCE);
    return () => clearTimeout(late);
  }, [curves, width, view.range, old, shape]);

  const keys = (event: KeyboardEvent): void => {
    const range = view.range ?? extent(curves);
    if (!range || event.target !== event.currentTarget) return;
    const span = range[1] - range[0];
    const moves: Record<string, readonly [number, number] | null> = {
      ArrowLeft: [range[0] - span / 5, range[1] - span / 5],
      ArrowRight: [range[0] + span / 5, range[1] + span / 5],
      '+': [range[0] + span / 4, range[1] - span / 4],
      '-': [range[0] - span / 2, range[1] + span / 2],
      '0': null,
      Escape: null,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    props.onZoom(moves[event.key] ?? null);
  };
  const file = (kind: string): string => `${name}.${kind}`;
  const title = props.title ?? name;
  return (
    <section
      ref={frame}
      class={`card chart ${large ? 'large' : ''} ${runs.length > 1 ? 'several' : ''}`}
      tabIndex={0}
      onKeyDown={keys}
      aria-label={`${title}, last value ${number(lastOf(curves[0]))}. Arrow keys move, plus and minus zoom, 0 shows all.`}
      data-metric={name}
    >
      <header>
        <h3 class="mono" title={title}>
          {title}
        </h3>
        <span class="last num">{curves.length === 1 ? number(lastOf(curves[0])) : ''}</span>
      </header>
      <div class="plot" ref={box} onDblClick={() => props.onZoom(null)}>
        {data !== null && curves.length === 0 ? <p class="soft pad">no values</p> : null}
      </div>
      <footer>
        <div class="readout num" aria-hidden="true">
          {error ?? <Readout plot={plot.current} at={at} curves={curves} x={view.x} bad={bad.length} />}
        </div>
        <div class="tools">
          <button
            type="button"
            class="plain small"
            title="Save as PNG"
            onClick={() => savePng(plot.current, file('png'))}
          >
            PNG
          </button>
          <button
            type="button"
            class="plain small"
            title="Save as SVG"
            onClick={() =>
              saveFile(
                file('svg'),
                new Blob([svgOf(title, AXES[view.x], curves, view.log)], { type: 'image/svg+xml' }),
              )
            }
          >
            SVG
          </button>
          <button
            type="button"
            class="plain small"
            title="Save every value of what is shown as CSV"
            onClick={() => openFile(csvAddress(props))}
          >
            CSV
          </button>
          {props.onOpen ? (
            <button
              type="button"
              class="plain small"
              title="Large"
              aria-label={`Show ${title} large`}
              onClick={props.onOpen}
            >
              <Icon name="expand" />
            </button>
          ) : null}
        </div>
      </footer>
    </section>
  );
}

const lastOf = (curve: Curve | undefined): number | null =>
  curve?.y.findLast((value) => value !== null) ?? null;

function Readout(props: {
  plot: uPlot | null;
  at: number | null;
  curves: readonly Curve[];
  x: XAxis;
  bad: number;
}): JSX.Element | null {
  const { plot, at, curves } = props;
  if (props.bad > 0 && at === null) return <span>{props.bad} values are not finite</span>;
  if (plot === null || at === null)
    return curves.length > 1 ? <LastValues curves={curves} /> : <Span curves={curves} />;
  const x = plot.data[0][at];
  if (x === undefined) return null;
  let column = 1;
  const values = curves.map((curve) => {
    const raw = plot.data[column]?.[at] ?? null;
    column += curve.smooth ? 2 : 1;
    return raw;
  });
  return (
    <span>
      {AXES[props.x]} {axisText(props.x, x)}
      {curves.map(({ label, color }, i) => (
        <span key={label}>
          {' '}
          {curves.length > 1 ? <i class="swatch" style={{ background: color }} /> : null}{' '}
          <b>{number(values[i] as number | null)}</b>
        </span>
      ))}
    </span>
  );
}

/** Of several curves: where each stands. */
const LastValues = ({ curves }: { curves: readonly Curve[] }): JSX.Element => (
  <span>
    {curves.map((curve) => (
      <span key={curve.label} title={curve.label}>
        <i class="swatch" style={{ background: curve.color }} /> <b>{number(lastOf(curve))}</b>{' '}
      </span>
    ))}
  </span>
);

/** Of one curve: between what it moves. The server keeps the smallest and the largest whatever it leaves out. */
function Span({ curves }: { curves: readonly Curve[] }): JSX.Element | null {
  const values = (curves[0]?.y ?? []).filter((value) => value !== null);
  if (values.length < 2) return null;
  const [low, high] = values.reduce(([a, b], y) => [Math.min(a, y), Math.max(b, y)], [Infinity, -Infinity]);
  return (
    <span>
      {number(low)} to {number(high)}
    </span>
  );
}

function extent(curves: readonly Curve[]): readonly [number, number] | null {
  const [low, high] = curves.reduce(
    ([low, high], { x }) => [Math.min(low, x[0] ?? low), Math.max(high, x.at(-1) ?? high)],
    [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY],
  );
  if (low > high) return null;
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

function optionsOf(
  curves: readonly Curve[],
  view: View,
  size: { width: number; height: number },
  onCursor: (index: number | null) => void,
  onZoom: ChartProps['onZoom'],
): uPlot.Options {
  const few = (u: uPlot): boolean => (u.data[0]?.length ?? 0) < 60;
  const line = (color: string, width: number, alpha = 1): uPlot.Series => ({
    stroke: alpha === 1 ? color : `color-mix(in srgb, ${color} ${alpha * 100}%, transparent)`,
    width,
    spanGaps: false,
    points: { show: (u) => few(u) && alpha === 1, size: 4, fill: color },
  });
  const axis: uPlot.Axis = {
    stroke: cssColor('soft'),
    font: '11px system-ui, sans-serif',
    grid: { stroke: cssColor('line'), width: 1 },
    ticks: { show: false },
  };
  return {
    ...size,
    legend: { show: false },
    padding: [6, 18, 0, 0],
    cursor: {
      sync: { key: 'curves', setSeries: false },
      drag: { x: true, y: false, setScale: false },
      points: { size: 7 },
    },
    scales: { x: { time: false }, y: view.log ? { distr: 3 } : {} },
    axes: [
      { ...axis, size: 24, values: (_, ticks) => ticks.map((tick) => axisText(view.x, tick)), space: 70 },
      {
        ...axis,
        size: 56,
        values: (_, ticks) => ticks.map((tick) => (tick === null ? '' : shortNumber(tick))),
      },
    ],
    series: [
      {},
      ...curves.flatMap(({ color, smooth }) =>
        smooth ? [line(color, 1, 0.3), line(color, 2)] : [line(color, 1.5)],
      ),
    ],
    hooks: {
      setCursor: [(u) => onCursor(u.cursor.idx ?? null)],
      setSelect: [
        (u) => {
          if (u.select.width < 4) return;
          onZoom([u.posToVal(u.select.left, 'x'), u.posToVal(u.select.left + u.select.width, 'x')]);
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
    },
  };
}

const shortNumber = (value: number): string =>
  value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3)
    ? value.toExponential(1).replace('.0', '')
    : String(Number(value.toPrecision(5)));

function savePng(plot: uPlot | null, name: string): void {
  if (!plot) return;
  const { canvas } = plot.ctx;
  const copy = document.createElement('canvas');
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const context = copy.getContext('2d') as CanvasRenderingContext2D;
  context.fillStyle = cssColor('surface');
  context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(canvas, 0, 0);
  copy.toBlob((blob) => blob && saveFile(name, blob));
}

/** Every value in the range that is shown, also those that the screen has no room for. */
const csvAddress = ({ runs, name, view }: ChartProps): string =>
  addressOf('csv', {
    run: runs,
    name: [name],
    x: view.x,
    smoothing: view.smoothing,
    from: view.range?.[0] ?? null,
    to: view.range?.[1] ?? null,
  });
