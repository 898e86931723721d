// Curves as files: what is on the screen as PNG and SVG.

export interface Curve {
  label: string;
  color: string;
  x: readonly number[];
  y: readonly (number | null)[];
  smooth?: readonly (number | null)[] | undefined;
}

export function saveFile(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement('a');
  link.href = address;
  link.download = name.replace(/[^\w.@-]+/g, '_');
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const escaped = (text: string): string => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** A file of the server that is saved, not shown. */
export function openFile(address: string): void {
  const link = document.createElement('a');
  link.href = address;
  link.download = '';
  link.click();
}

/** Round numbers that divide a range. */
function ticks(low: number, high: number, count: number): number[] {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10) * power;
  const first = Math.ceil(low / step) * step;
  return Array.from({ length: Math.floor((high - first) / step) + 1 }, (_, i) =>
    Number((first + i * step).toPrecision(12)),
  );
}

/** A figure with axes and a legend, white ground, for papers. */
export function svgOf(title: string, axis: string, curves: readonly Curve[], log: boolean): string {
  const [width, height, left, right, top, bottom] = [720, 400, 70, 20, 40, 50];
  const up = (value: number): number => (log ? Math.log10(value) : value);
  const usable = (value: number | null): value is number => value !== null && (!log || value > 0);
  const xs = curves.flatMap(({ x }) => x);
  const ys = curves.flatMap(({ y, smooth }) => [...y, ...(smooth ?? [])].filter(usable).map(up));
  const range = (values: readonly number[]): [number, number] => {
    let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (low > high) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  };
  const [[x0, x1], [y0, y1]] = [range(xs), range(ys)];
  const px = (x: number): number => left + ((x - x0) / (x1 - x0)) * (width - left - right);
  const py = (y: number): number => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  const line = (x: readonly number[], y: readonly (number | null)[]): string => {
    let path = '';
    let pen = false;
    for (let i = 0; i < x.length; i++) {
      const value = y[i] ?? null;
      if (usable(value))
        path += `${pen ? 'L' : 'M'}${px(x[i] as number).toFixed(1)} ${py(up(value)).toFixed(1)}`;
      pen = usable(value);
    }
    return path;
  };
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12">`,
    `<rect width="${width}" height="${height}" fill="white"/>`,
    `<text x="${left}" y="24" font-size="15" font-weight="600">${escaped(title)}</text>`,
    ...ticks(y0, y1, 5).flatMap((tick) => [
      `<path d="M${left} ${py(tick).toFixed(1)}H${width - right}" stroke="#dde1e8"/>`,
      `<text x="${left - 8}" y="${(py(tick) + 4).toFixed(1)}" text-anchor="end" fill="#444">${log ? `1e${tick}` : tick}</text>`,
    ]),
    ...ticks(x0, x1, 7).map(
      (tick) =>
        `<text x="${px(tick).toFixed(1)}" y="${height - bottom + 18}" text-anchor="middle" fill="#444">${tick}</text>`,
    ),
    `<text x="${(left + width - right) / 2}" y="${height - 26 + 18}" text-anchor="middle" fill="#444">${escaped(axis)}</text>`,
    ...curves.flatMap(({ x, y, smooth, color }) => [
      `<path d="${line(x, y)}" fill="none" stroke="${color}" stroke-width="1.4" opacity="${smooth ? 0.3 : 1}"/>`,
      ...(smooth ? [`<path d="${line(x, smooth)}" fill="none" stroke="${color}" stroke-width="1.8"/>`] : []),
    ]),
    ...(curves.length > 1
      ? curves.map(
          ({ label, color }, i) =>
            `<circle cx="${left + 12}" cy="${top + 10 + 16 * i}" r="4" fill="${color}"/><text x="${left + 22}" y="${top + 14 + 16 * i}">${escaped(label)}</text>`,
        )
      : []),
    '</svg>',
  ];
  return parts.join('\n');
}
