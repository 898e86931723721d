import { resolve, small } from './small_config';

const exaone = { ...small, model_type: 'exaone4', num_hidden_layers: 5 };

test('EXAONE 4: norms of each head, and behind attention and MLP alone; layers that see all do not turn', () => {
  const c = resolve({ ...exaone, sliding_window: 6 });
  expect(c).toMatchObject({
    inputNorms: false,
    postNorms: true,
    qkNorm: true,
    wholeQkNorm: false,
    slidingWindows: [6, 6, 6, 0, 6],
    secondRopeLayers: [false, false, false, true, false],
    secondRopeInvFreq: new Float64Array(0),
  });
  expect(c.ropeInvFreq).toHaveLength(8);
  const layer_types = c.slidingWindows.map((window) => (window > 0 ? 'sliding_attention' : 'full_attention'));
  const hub = { ...exaone, sliding_window: 6, sliding_window_pattern: 'LLLG' };
  expect(resolve({ ...hub, layer_types })).toEqual(c);
  expect(resolve({ ...exaone, sliding_window: 6, sliding_window_pattern: 2 }).slidingWindows).toEqual([
    6, 0, 6, 0, 6,
  ]);
});

test('EXAONE 4 without windows turns on all layers', () => {
  const c = resolve({ ...exaone, sliding_window: null });
  expect(c.slidingWindows).toEqual([0, 0, 0, 0, 0]);
  expect(c.secondRopeLayers).toEqual([]);
  expect(
    resolve({ ...exaone, sliding_window: null, layer_types: new Array(5).fill('full_attention') }),
  ).toEqual(c);
});

test.each<[object, RegExp]>([
  [{ sliding_window_pattern: 'LLLG' }, /layer_types is missing: .*sliding_window_pattern "LLLG"/],
  [{ sliding_window_pattern: 0 }, /layer_types is missing: .*sliding_window_pattern 0/],
  [{ sliding_window_pattern: null }, /layer_types is missing: .*sliding_window_pattern null/],
  [{ sliding_window_pattern: -1 }, /sliding_window_pattern/],
  [
    { sliding_window: null, layer_types: new Array(5).fill('sliding_attention') },
    /layer_types\[0\] is sliding_attention but no sliding_window/,
  ],
])('EXAONE 4 with %j', (change, message) => {
  expect(() => resolve({ ...exaone, ...change })).toThrow(message);
});

test("K-EXAONE: the same attention behind norms, and DeepSeek-V3's experts on the layers that it says", () => {
  const mixture = { ...exaone, model_type: 'exaone_moe', sliding_window: 6 };
  const c = resolve(mixture);
  expect(c).toMatchObject({
    inputNorms: true,
    postNorms: false,
    qkNorm: true,
    slidingWindows: [6, 6, 6, 0, 6],
    secondRopeLayers: [false, false, false, true, false],
    moeLayers: [false, true, true, true, true],
  });
  expect(c.moe).toMatchObject({
    numExperts: 64,
    topK: 8,
    intermediateSize: 1024,
    sharedIntermediateSize: 1024,
    score: 'sigmoid',
    correctionBias: true,
    normalizeTopK: true,
    routedScale: 2.5,
  });
  const mlp_layer_types = ['sparse', 'dense', 'sparse', 'dense', 'sparse'];
  // transformers looks at the types first.
  expect(resolve({ ...mixture, mlp_layer_types, first_k_dense_replace: 3 }).moeLayers).toEqual([
    true,
    false,
    true,
    false,
    true,
  ]);
  expect(resolve({ ...mixture, first_k_dense_replace: 5 })).toMatchObject({ moe: null, moeLayers: [] });
  expect(() => resolve({ ...mixture, n_group: 3 })).toThrow(
    /n_group 3: expected a divisor of the 64 experts/,
  );
});
