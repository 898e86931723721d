/** The operations of the peers, in the order in which they run. */
export const OPERATIONS = [
  'compute_log_prob',
  'compute_log_prob_entropy',
  'update_policy',
  'compute_values',
  'update_critic',
];

/** The binding function that each operation calls once. */
export const NATIVE_CALL = {
  compute_log_prob: 'computeLogProb',
  compute_log_prob_entropy: 'computeLogProb',
  update_policy: 'updatePolicy',
  compute_values: 'computeValues',
  update_critic: 'updateCritic',
};

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const side = (line) => (line.peer === 'troupe' ? 'troupe' : `${line.peer} ${line.variant}`);

/**
 * One record per side and operation over all rounds: the median of every timed run, the largest peak, and the first
 * round's loss and checksums (later updates start from updated weights).
 * @param {object[]} lines JSON lines of our runs and the peers'
 */
export function combine(lines) {
  const records = new Map();
  for (const line of lines) {
    const key = `${side(line)}\t${line.op}`;
    const { seconds_all = [], native_all = [], ...rest } = line;
    const record = records.get(key) ?? {
      ...rest,
      side: side(line),
      seconds_all: [],
      native_all: [],
      peak_gb: 0,
    };
    record.seconds_all.push(...seconds_all);
    record.native_all.push(...native_all);
    record.peak_gb = Math.max(record.peak_gb, line.peak_gb ?? 0);
    records.set(key, record);
  }
  for (const record of records.values()) {
    if (record.seconds_all.length === 0) continue;
    record.seconds = median(record.seconds_all);
    record.valid_tokens_per_s = record.valid_tokens / record.seconds;
    if (record.native_all.length === record.seconds_all.length) {
      record.overhead = median(record.seconds_all.map((total, i) => (total - record.native_all[i]) / total));
    }
  }
  return [...records.values()];
}

/**
 * How each operation of ours compares: with the floor (useful FLOPs over the GEMM rate) and with every peer.
 * @param {ReturnType<typeof combine>} records
 * @param {(operation: string) => number} flops
 * @param {number} gemmTflops
 */
export function compare(records, flops, gemmTflops) {
  return records
    .filter((record) => record.side === 'troupe' && record.seconds)
    .map((ours) => {
      const floor = flops(ours.op) / (gemmTflops * 1e12);
      const peers = records.filter((peer) => peer.side !== 'troupe' && peer.op === ours.op && peer.seconds);
      return {
        op: ours.op,
        seconds: ours.seconds,
        floor,
        timesFloor: ours.seconds / floor,
        overhead: ours.overhead ?? null,
        peers: peers.map((peer) => ({
          side: peer.side,
          speedup: peer.seconds / ours.seconds,
          memory: ours.peak_gb / peer.peak_gb,
          difference: difference(ours, peer),
          gradNorm: relative(ours.grad_norm, peer.grad_norm)[0] ?? null,
          timesFloor: peer.seconds / floor,
        })),
      };
    });
}

function relative(x, y, scale = Math.max(Math.abs(x), Math.abs(y), 1e-12)) {
  return x === undefined || y === undefined ? [] : [Math.abs(x - y) / scale];
}

/** The largest relative difference of loss and checksums between two sides; null when they have nothing in common. */
function difference(a, b) {
  const differences = [
    relative(a.loss, b.loss),
    relative(a.checksum?.mean, b.checksum?.mean),
    // The weighted mean is close to zero by design: what counts is its error on the scale of the values.
    relative(a.checksum?.weighted, b.checksum?.weighted, Math.abs(b.checksum?.mean)),
    relative(a.entropy_checksum?.mean, b.entropy_checksum?.mean),
  ].flat();
  return differences.length === 0 ? null : Math.max(...differences);
}

function table(head, rows) {
  const width = head.map((name, i) => Math.max(name.length, ...rows.map((row) => row[i].length)));
  const line = (cells) =>
    cells.map((cell, i) => (i < 2 ? cell.padEnd(width[i]) : cell.padStart(width[i]))).join('  ');
  return [line(head), line(width.map((size) => '-'.repeat(size))), ...rows.map(line)].join('\n');
}

/** The measurements and the ratios as two tables of text. */
export function renderTables(records, comparison) {
  const measured = records.map((record) =>
    record.seconds === undefined
      ? [record.op, record.side, 'error', (record.error ?? '').slice(0, 40), '', '']
      : [
          record.op,
          record.side,
          record.seconds.toFixed(3),
          record.valid_tokens_per_s.toFixed(0),
          record.peak_gb.toFixed(2),
          record.overhead === undefined ? '' : `${(100 * record.overhead).toFixed(2)} %`,
        ],
  );
  measured.sort((a, b) => OPERATIONS.indexOf(a[0]) - OPERATIONS.indexOf(b[0]));
  const ratios = comparison.flatMap((ours) => [
    [ours.op, 'the floor', `${(1 / ours.timesFloor).toFixed(2)}x`, '', '', ''],
    ...ours.peers.map((peer) => [
      ours.op,
      peer.side,
      `${peer.speedup.toFixed(2)}x`,
      `${(100 * peer.memory).toFixed(0)} %`,
      peer.difference === null ? '' : peer.difference.toExponential(1),
      peer.gradNorm === null ? '' : peer.gradNorm.toExponential(1),
    ]),
  ]);
  return [
    table(['operation', 'side', 'seconds', 'valid tokens/s', 'peak GB', 'outside native'], measured),
    table(['troupe', 'against', 'speed', 'memory', 'difference', 'grad norm'], ratios),
  ].join('\n\n');
}
