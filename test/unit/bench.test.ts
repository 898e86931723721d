/** The module, untyped. */
const measure = (name = 'measure') => import(`../../bench/${name}.mjs`);

const line = (peer: string, seconds: number[], extra: object = {}) => ({
  peer,
  variant: peer === 'troupe' ? 'core' : 'packed',
  op: 'update_policy',
  seconds_all: seconds,
  peak_gb: peer === 'troupe' ? 1 : 2,
  valid_tokens: 100,
  ...extra,
});

describe('bench/measure.mjs', () => {
  it('takes the median over all rounds, the largest peak and the first loss', async () => {
    const { combine } = await measure();
    const records = combine([
      line('hf', [4, 6], { loss: 0.5, peak_gb: 1 }),
      line('hf', [5], { loss: 0.4, peak_gb: 3 }),
    ]);
    expect(records).toHaveLength(1);
    expect(records[0]).toMatchObject({
      side: 'hf packed',
      seconds: 5,
      peak_gb: 3,
      loss: 0.5,
      valid_tokens_per_s: 20,
    });
  });

  it('reports the time outside the native call, the floor, speed and memory', async () => {
    const { combine, compare, renderTables } = await measure();
    const records = combine([
      line('troupe', [2, 2], { native_all: [1.98, 1.98], loss: 0.5, grad_norm: 2 }),
      line('hf', [8, 8], { loss: 0.5, grad_norm: 2.02 }),
    ]);
    const [result] = compare(records, () => 1e12, 1);
    expect(result).toMatchObject({ op: 'update_policy', floor: 1, timesFloor: 2 });
    expect(result.overhead).toBeCloseTo(0.01);
    expect(result.peers[0]).toMatchObject({ side: 'hf packed', speedup: 4, memory: 0.5, timesFloor: 8 });
    expect(result.peers[0].difference).toBe(0);
    expect(result.peers[0].gradNorm).toBeCloseTo(0.0099, 3);
    expect(renderTables(records, [result])).toContain('4.00x');
  });

  it('shows a side that failed', async () => {
    const { combine, compare, renderTables } = await measure();
    const records = combine([{ peer: 'hf', variant: 'padded', op: 'update_policy', error: 'out of memory' }]);
    expect(
      renderTables(
        records,
        compare(records, () => 1, 1),
      ),
    ).toContain('out of memory');
  });
});
