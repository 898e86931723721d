import { ALL_OPERATIONS } from './measure.mjs';

/** A change of less than this share is taken for noise. */
const NOISE = 0.05;

function table(head, rows) {
  const width = head.map((name, i) => Math.max(name.length, ...rows.map((row) => row[i].length)));
  const line = (cells) =>
    cells.map((cell, i) => (i < 2 ? cell.padEnd(width[i]) : cell.padStart(width[i]))).join('  ');
  return [line(head), line(width.map((size) => '-'.repeat(size))), ...rows.map(line)].join('\n');
}

const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

/** The measurements and the ratios as two tables of text. */
export function renderTables(records, comparison) {
  const timed = (record) => [
    record.op,
    record.side,
    record.seconds.toFixed(3),
    record.tokens_per_s?.toFixed(0) ?? `${(record.bytes / record.seconds / 1e9).toFixed(2)} GB/s`,
    record.peak_gb > 0 ? record.peak_gb.toFixed(2) : '',
    record.startup === undefined ? '' : record.startup.toFixed(1),
    record.overhead === undefined ? '' : percent(record.overhead, 2),
  ];
  // A side may have failed in one round and not in another.
  const measured = records.flatMap((record) => [
    ...(record.seconds === undefined ? [] : [timed(record)]),
    ...(record.seconds !== undefined && record.error === undefined
      ? []
      : [[record.op, record.side, 'error', (record.error ?? '').slice(0, 60), '', '', '']]),
  ]);
  measured.sort((a, b) => ALL_OPERATIONS.indexOf(a[0]) - ALL_OPERATIONS.indexOf(b[0]));
  const ratios = comparison.flatMap((ours) => [
    ...(ours.timesFloor === null
      ? []
      : [
          [
            ours.op,
            'the floor',
            `${(1 / ours.timesFloor).toFixed(2)}x`,
            '',
            '',
            '',
            ours.mfu === null ? '' : percent(ours.mfu, 1),
          ],
        ]),
    ...ours.peers.map((peer) => [
      ours.op,
      peer.side,
      `${peer.speedup.toFixed(2)}x`,
      Number.isFinite(peer.memory) ? percent(peer.memory) : '',
      peer.difference === null ? '' : peer.difference.toExponential(1),
      peer.gradNorm === null ? '' : peer.gradNorm.toExponential(1),
      '',
    ]),
  ]);
  return [
    table(['operation', 'side', 'seconds', 'tokens/s', 'peak GB', 'start-up', 'outside native'], measured),
    table(['troupe', 'against', 'speed', 'memory', 'difference', 'grad norm', 'MFU'], ratios),
  ].join('\n\n');
}

/** Our side now and in an earlier file: points of a sweep, or the one point of a plain run. */
export function renderChanges(before, now) {
  const keyed = (points) =>
    new Map(
      points.flatMap(({ length, records }) =>
        records
          .filter((record) => record.side.startsWith('troupe') && record.seconds)
          .map((record) => [[record.op, length].filter(Boolean).join(' '), record]),
      ),
    );
  const old = keyed(before);
  const rows = [...keyed(now)].map(([key, record]) => {
    const earlier = old.get(key);
    if (earlier === undefined) return [key, 'new', '', record.seconds.toFixed(3), ''];
    const ratio = earlier.seconds / record.seconds;
    const word = ratio > 1 + NOISE ? 'faster' : ratio < 1 / (1 + NOISE) ? 'slower' : 'same';
    return [key, word, earlier.seconds.toFixed(3), record.seconds.toFixed(3), `${ratio.toFixed(2)}x`];
  });
  for (const key of old.keys()) {
    if (!rows.some(([name]) => name === key))
      rows.push([key, 'gone', old.get(key).seconds.toFixed(3), '', '']);
  }
  return table(['operation', 'change', 'before', 'now', 'speed'], rows);
}
