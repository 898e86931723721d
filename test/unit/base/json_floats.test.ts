import { markFloats, restoreFloats } from '../../../ts/base/json_floats';
import { parseObject } from '../../../ts/checkpoint/json_object';

test('floats stay floats through parsing and writing', () => {
  const json = '{"a":12.0,"b":12,"c":[1.0,-2.0,1e4,1e-06],"d":"1.0 \\" 2.0","e":{"f":0.5},"g":null,"h":true}';
  const marked = markFloats(json);
  const value = JSON.parse(marked) as Record<string, unknown>;
  expect(value).toMatchObject({ b: 12, d: '1.0 " 2.0', e: { f: 0.5 } });
  // 1e-06 is written as 0.000001: a float in any notation.
  expect(restoreFloats(JSON.stringify(value))).toBe(json.replace('1e-06', '0.000001'));
});

test('numbers beyond doubles are written as they were', () => {
  const json = '{"a":1e400,"b":[-1e999]}';
  expect(restoreFloats(JSON.stringify(JSON.parse(markFloats(json))))).toBe(json);
});

test('Infinity, as Python writes it', () => {
  const json = '{"a":[0.0,Infinity],"b":-Infinity,"c":"to Infinity","d":"-Infinity"}';
  expect(restoreFloats(JSON.stringify(JSON.parse(markFloats(json))))).toBe(json);
  expect(parseObject(json, 'config.json', 'model')).toEqual({
    a: [0, Infinity],
    b: -Infinity,
    c: 'to Infinity',
    d: '-Infinity',
  });
  for (const text of ['{"a":Infinity1}', '{"a":xInfinity}', '{Infinity:1}', '{"a":NaN}', '{"a":--Infinity}'])
    expect(() => parseObject(text, 'config.json', 'model')).toThrow(
      /^\[model\] config.json is not valid JSON/,
    );
});
