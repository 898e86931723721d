/** The operations of each role, in the order in which they run: what needs optimiser state comes last. */
export const ROLE_OPERATIONS = {
  actor: ['compute_log_prob', 'compute_log_prob_entropy', 'generate', 'export_weights', 'update_policy'],
  critic: ['compute_values', 'update_critic'],
};
export const OPERATIONS = Object.values(ROLE_OPERATIONS).flat();
/** With those of the head alone. */
export const ALL_OPERATIONS = [...OPERATIONS, 'linear_log_prob', 'linear_log_prob_backward'];

/** The binding function that each operation calls, once unless its result has `native_calls`. */
export const NATIVE_CALL = {
  generate: 'generate',
  export_weights: 'exportWeights',
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
 * One record per side and operation over all rounds: the median of every timed run, the largest peak, the first
 * round's loss and checksums (later updates start from updated weights), and the error of a round that failed.
 * @param {object[]} lines JSON lines of our runs and the peers'
 */
export function combine(lines) {
  const records = new Map();
  for (const line of lines) {
    const key = `${side(line)}\t${line.op}`;
    const { seconds_all = [], native_all = [], error, ...rest } = line;
    const found = records.get(key) ?? { seconds_all: [], native_all: [], peak_gb: 0 };
    // What a round that failed lacks, a later one has.
    const record = { ...rest, ...found, side: side(line) };
    if (error !== undefined) record.error ??= error;
    record.seconds_all.push(...seconds_all);
    record.native_all.push(...native_all);
    record.peak_gb = Math.max(record.peak_gb, line.peak_gb ?? 0);
    records.set(key, record);
  }
  for (const record of records.values()) {
    if (record.seconds_all.length === 0) continue;
    record.seconds = median(record.seconds_all);
    // Weights that are exported are no tokens.
    if (record.bytes === undefined)
      record.tokens_per_s = (record.new_tokens ?? record.valid_tokens) / record.seconds;
    if (record.native_all.length === record.seconds_all.length) {
      record.overhead = median(record.seconds_all.map((total, i) => (total - record.native_all[i]) / total));
    }
  }
  return [...records.values()];
}

/**
 * How each operation of ours compares: with the floor (useful FLOPs over the GEMM rate) and with every peer.
 * @param {ReturnType<typeof combine>} records
 * @param {(operation: string) => number | null} flops
 * @param {number} gemmTflops
 * @param {number | null} peakTflops of the device, for MFU
 */
export function compare(records, flops, gemmTflops, peakTflops) {
  return records
    .filter((record) => record.side === 'troupe' && record.seconds)
    .map((ours) => {
      const work = flops(ours.op) ?? (ours.tflops === undefined ? null : ours.tflops * 1e12 * ours.seconds);
      const floor = work === null ? null : work / (gemmTflops * 1e12);
      const timesFloor = (seconds) => (floor === null ? null : seconds / floor);
      const peers = records.filter((peer) => peer.side !== 'troupe' && peer.op === ours.op && peer.seconds);
      return {
        op: ours.op,
        seconds: ours.seconds,
        floor,
        timesFloor: timesFloor(ours.seconds),
        mfu: work === null || peakTflops === null ? null : work / ours.seconds / peakTflops / 1e12,
        overhead: ours.overhead ?? null,
        peers: peers.map((peer) => ({
          side: peer.side,
          speedup: peer.seconds / ours.seconds,
          memory: ours.peak_gb / peer.peak_gb,
          difference: difference(ours, peer),
          gradNorm: relative(ours.grad_norm, peer.grad_norm)[0] ?? null,
          timesFloor: timesFloor(peer.seconds),
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
