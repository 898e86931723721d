/**
 * Line charts as one SVG, for light and dark viewers alike (the background is white).
 * @typedef {[number, number][]} Points [step, value]
 * @typedef {{ title: string, unit?: string, percent?: boolean, lines: Points[] }} Panel one line per run, in the same order everywhere
 */

const PANEL = { width: 380, height: 220, left: 58, right: 14, top: 34, bottom: 40 };
const COLUMNS = 2;
const HEADER = 44;
const LINES = ['#1f5fbf', '#d1730b', '#2a8c4a', '#9b3fb5'];
const COLOR = { axis: '#444444', grid: '#e4e4e4', text: '#1a1a1a' };

const escapeXml = (text) =>
  text.replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);
const round = (value) => Number(value.toFixed(2));

/** Round numbers (1, 2 or 5 times a power of ten) that cover [low, high] in about `count` steps. */
export function ticks(low, high, count) {
  const span = high > low ? high - low : Math.max(Math.abs(low), 1);
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => span / size <= count);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

function label(value, percent) {
  if (percent) return `${Number((100 * value).toPrecision(6))} %`;
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(0) : String(value);
}

function text(x, y, content, attributes = '') {
  return `<text x="${round(x)}" y="${round(y)}" ${attributes}>${escapeXml(content)}</text>`;
}

function axes(panel, xTicks, yTicks, toX, toY) {
  const [left, right] = [toX(xTicks[0]), toX(xTicks.at(-1))];
  const [bottom, top] = [toY(yTicks[0]), toY(yTicks.at(-1))];
  const lines = yTicks.map((value) => {
    const y = round(toY(value));
    const grid = `<line x1="${left}" x2="${right}" y1="${y}" y2="${y}" stroke="${COLOR.grid}"/>`;
    return grid + text(left - 6, y + 4, label(value, panel.percent), 'text-anchor="end"');
  });
  for (const value of xTicks) lines.push(text(toX(value), bottom + 16, label(value), 'text-anchor="middle"'));
  lines.push(`<path d="M${left} ${top}V${bottom}H${right}" fill="none" stroke="${COLOR.axis}"/>`);
  lines.push(text((left + right) / 2, bottom + 32, 'step', 'text-anchor="middle"'));
  return lines;
}

function renderPanel(panel, x0, y0) {
  const points = panel.lines.flat();
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const xTicks = ticks(Math.min(...xs), Math.max(...xs), 6);
  const yTicks = panel.percent ? ticks(0, 1, 5) : ticks(Math.min(...ys), Math.max(...ys), 5);
  const width = PANEL.width - PANEL.left - PANEL.right;
  const height = PANEL.height - PANEL.top - PANEL.bottom;
  const scale = (all) => (value) => (value - all[0]) / (all.at(-1) - all[0]);
  const toX = (value) => round(x0 + PANEL.left + width * scale(xTicks)(value));
  const toY = (value) => round(y0 + PANEL.top + height * (1 - scale(yTicks)(value)));
  const title = panel.unit ? `${panel.title} (${panel.unit})` : panel.title;
  const line = (run, color) => {
    const path = run.map(([x, y]) => `${toX(x)},${toY(y)}`).join(' ');
    const dots = run.length <= 40 ? run : [];
    return [
      `<polyline points="${path}" fill="none" stroke="${color}" stroke-width="1.6" stroke-linejoin="round"/>`,
      ...dots.map(([x, y]) => `<circle cx="${toX(x)}" cy="${toY(y)}" r="2.4" fill="${color}"/>`),
    ];
  };
  return [
    text(x0 + PANEL.left, y0 + 20, title, 'font-weight="600" font-size="13"'),
    ...axes(panel, xTicks, yTicks, toX, toY),
    ...panel.lines.flatMap((run, i) => (run.length > 0 ? line(run, LINES[i % LINES.length]) : [])),
  ].join('\n');
}

/** The names of the runs in their colours, at the right end of the header. */
function renderLegend(names, width) {
  const [entry, mark] = [84, 18];
  return names.flatMap((name, i) => {
    const x = width - PANEL.right - (names.length - i) * entry;
    const color = LINES[i % LINES.length];
    const line = `<line x1="${x}" x2="${x + mark}" y1="24" y2="24" stroke="${color}" stroke-width="2.4"/>`;
    return [line, text(x + mark + 6, 28, name)];
  });
}

/**
 * @param {string} title
 * @param {Panel[]} panels those without a point are left out
 * @param {string[]} names of the runs; none for a single one
 * @returns {string} an SVG document
 */
export function renderCurves(title, panels, names = []) {
  const shown = panels.filter((panel) => panel.lines.flat().length > 0);
  const width = COLUMNS * PANEL.width;
  const height = HEADER + Math.ceil(shown.length / COLUMNS) * PANEL.height;
  const body = shown.map((panel, i) =>
    renderPanel(panel, (i % COLUMNS) * PANEL.width, HEADER + Math.floor(i / COLUMNS) * PANEL.height),
  );
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`,
    `  font-family="system-ui, sans-serif" font-size="11" fill="${COLOR.text}">`,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    text(PANEL.left, 28, title, 'font-weight="600" font-size="16"'),
    ...renderLegend(names, width),
    ...body,
    '</svg>',
  ].join('\n')}\n`;
}

/** One line per run with the finite values of the first of these metrics that a record has. */
function series(runs, ...keys) {
  return runs.map((records) =>
    records.flatMap((record) => {
      const key = keys.find((candidate) => Number.isFinite(record[candidate]));
      return key === undefined ? [] : [[record.step, record[key]]];
    }),
  );
}

/**
 * @param {string} title
 * @param {readonly Record<string, number>[]} records lines of metrics.jsonl
 * @param {string} accuracyKey the metric with the held-out accuracy
 */
export function trainingCurves(title, records, accuracyKey) {
  const lines = (...keys) => series([records], ...keys);
  return renderCurves(title, [
    { title: 'Held-out accuracy', percent: true, lines: lines(accuracyKey) },
    { title: 'Mean reward of the samples', percent: true, lines: lines('critic/score/mean') },
    { title: 'KL to the warm start', unit: 'nats per token', lines: lines('actor/kl_loss') },
    { title: 'Entropy of the policy', unit: 'nats per token', lines: lines('actor/entropy') },
    { title: 'Response length', unit: 'tokens', lines: lines('response_length/mean') },
    { title: 'Gradient norm of the policy', lines: lines('actor/grad_norm') },
    { title: 'Value loss of the critic', lines: lines('critic/vf_loss') },
    { title: 'Variance explained by the critic', lines: lines('critic/vf_explained_var') },
  ]);
}

/**
 * Several runs in the same panels. The mean reward is that of everything generated, what dynamic sampling left out included.
 * @param {string} title
 * @param {{ name: string, records: readonly Record<string, number>[] }[]} runs
 * @param {string} accuracyKey the metric with the held-out accuracy
 */
export function comparisonCurves(title, runs, accuracyKey) {
  const lines = (...keys) =>
    series(
      runs.map(({ records }) => records),
      ...keys,
    );
  const panels = [
    { title: 'Held-out accuracy', percent: true, lines: lines(accuracyKey) },
    {
      title: 'Mean reward of the samples',
      percent: true,
      lines: lines('train/gen_score_mean', 'critic/score/mean'),
    },
    { title: 'Entropy of the policy', unit: 'nats per token', lines: lines('actor/entropy') },
    { title: 'Gradient norm of the policy', lines: lines('actor/grad_norm') },
    { title: 'Response length', unit: 'tokens', lines: lines('response_length/mean') },
    { title: 'Generation batches per step', lines: lines('train/num_gen_batches') },
  ];
  return renderCurves(
    title,
    panels,
    runs.map(({ name }) => name),
  );
}
