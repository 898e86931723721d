const WIDTH = 760;
const PANEL = { width: 300, height: 180, left: 64, top: 60 };
const COLOURS = {
  troupe: '#1f5fbf',
  'hf padded': '#b03a2e',
  'hf packed': '#d1730b',
  'hf compile': '#2a8c4a',
};
const colour = (side) => COLOURS[side] ?? '#555555';
const kilo = (value) =>
  value >= 1e3 ? `${Number((value / 1e3).toPrecision(3))}k` : String(Number(value.toPrecision(3)));

/** One chart: lines over sequence length (logarithmic), values from zero. */
function panel({ title, series, x0, y0 }) {
  const { width, height } = PANEL;
  const lengths = [...new Set(series.flatMap(({ points }) => points.map(([length]) => length)))].sort(
    (a, b) => a - b,
  );
  const highest = Math.max(...series.flatMap(({ points }) => points.map(([, value]) => value)));
  const span = Math.log(lengths.at(-1) / lengths[0]) || 1;
  const x = (length) =>
    x0 + (lengths.length === 1 ? width / 2 : (Math.log(length / lengths[0]) / span) * width);
  const y = (value) => y0 + height - (value / (highest * 1.08)) * height;
  const parts = [
    `<text x="${x0}" y="${y0 - 10}" font-weight="600">${title}</text>`,
    `<path d="M${x0} ${y0}V${y0 + height}H${x0 + width}" fill="none" stroke="#999999"/>`,
  ];
  for (const share of [0, 0.5, 1])
    parts.push(
      `<text x="${x0 - 6}" y="${(y(share * highest) + 4).toFixed(1)}" text-anchor="end">${kilo(share * highest)}</text>`,
    );
  for (const length of lengths)
    parts.push(
      `<text x="${x(length).toFixed(1)}" y="${y0 + height + 16}" text-anchor="middle">${kilo(length)}</text>`,
    );
  for (const { side, points } of series) {
    const path = points.map(([length, value]) => `${x(length).toFixed(1)},${y(value).toFixed(1)}`);
    parts.push(
      `<polyline points="${path.join(' ')}" fill="none" stroke="${colour(side)}" stroke-width="2"/>`,
    );
    for (const at of path) {
      const [cx, cy] = at.split(',');
      parts.push(`<circle cx="${cx}" cy="${cy}" r="2.6" fill="${colour(side)}"/>`);
    }
  }
  return parts.join('\n');
}

/**
 * Throughput and peak memory of every operation and side over sequence length, as an SVG.
 * @param {{ length: number, records: object[] }[]} points
 */
export function sweepPlot(points) {
  const measured = points.flatMap(({ length, records }) =>
    records.filter(({ seconds }) => seconds).map((record) => ({ length, ...record })),
  );
  const ops = [...new Set(measured.map(({ op }) => op))];
  const sides = [...new Set(measured.map(({ side }) => side))];
  const charts = ops.flatMap((op, row) =>
    [
      ['tokens per second', 'tokens_per_s'],
      ['peak memory (GB)', 'peak_gb'],
    ].map(([name, field], column) => {
      const series = sides.map((side) => ({
        side,
        points: measured
          .filter((record) => record.op === op && record.side === side && record[field] > 0)
          .map((record) => [record.length, record[field]]),
      }));
      const y0 = PANEL.top + row * (PANEL.height + 70);
      const x0 = PANEL.left + column * (PANEL.width + 80);
      const filled = series.filter((one) => one.points.length > 0);
      return filled.length === 0 ? '' : panel({ title: `${op}: ${name}`, series: filled, x0, y0 });
    }),
  );
  const legend = sides.map(
    (side, i) =>
      `<text x="${PANEL.left + i * 120}" y="24" fill="${colour(side)}" font-weight="600">${side}</text>`,
  );
  const height = PANEL.top + ops.length * (PANEL.height + 70);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}"
  font-family="system-ui, sans-serif" font-size="11" fill="#1a1a1a">
<rect width="${WIDTH}" height="${height}" fill="#ffffff"/>
${[...legend, ...charts].join('\n')}
</svg>
`;
}
