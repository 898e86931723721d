import { parseHydraValue } from '../../../ts/config/reading/hydra_value';
import { applyOverride } from '../../../ts/config/reading/overrides';
import type { Tree } from '../../../ts/config/reading/tree';
import { integerExpression } from '../../../ts/config/verl/integer_expression';

/** As OmegaConf and shells write it. */
const ref = (name: string): string => `\${${name}}`;

it.each([
  ['[a,b]', ['a', 'b']],
  ['["console", \'wandb\']', ['console', 'wandb']],
  ['[]', []],
  ['[1,2.5,1e-6,-3,true,False,null,None]', [1, 2.5, 1e-6, -3, true, false, null, 'None']],
  ['[[0.9,0.999],{a:1}]', [[0.9, 0.999], { a: 1 }]],
  ['{a:1,b:{c:x y},"d e":[1]}', { a: 1, b: { c: 'x y' }, 'd e': [1] }],
  ['{a: 1}', { a: 1 }],
  // As YAML has null.
  ['~', null],
  ['[~,~a]', [null, '~a']],
  [`[${ref('x.y')},a]`, [ref('x.y'), 'a']],
  ["'7'", '7'],
  ['"it\\"s"', 'it"s'],
  // Backslashes count before a quote alone.
  [String.raw`'\\boxed{\d}'`, String.raw`\\boxed{\d}`],
  ["'a\\\\'", 'a\\'],
  [String.raw`"a\\\"b\\'c\\\\"`, String.raw`a\"b\\'c\\`],
  ["'a' and b", "'a' and b"],
  ['a=b', 'a=b'],
  ['foo: bar', 'foo: bar'],
  ['0.5', 0.5],
  ['.5', 0.5],
  ['1_000', 1000],
  ['1_000.5', 1000.5],
  ['0.5_5', 0.55],
  ['1_0E-1_0', 1e-9],
  ['-5.', -5],
  // As names may be.
  ['007', '007'],
  ['08.5', '08.5'],
  ['1_', '1_'],
  ['1__0', '1__0'],
  ['1e', '1e'],
  ['1e-6', 1e-6],
  ['1.2.3', '1.2.3'],
  ['NULL', null],
  ['/a/b-c.parquet', '/a/b-c.parquet'],
  ['', ''],
  [' ', ''],
  ['x\\,y', 'x,y'],
  ['[x\\,y,a\\]b]', ['x,y', 'a]b']],
  ['{a\\:b:c\\=d}', { 'a:b': 'c=d' }],
  ['\\(\\)\\[\\]\\{\\}\\:\\=\\,\\ \\\t\\\\', '()[]{}:=, \t\\'],
  [' \\ x\\  ', ' x '],
  ['x\\\\ ', 'x\\'],
  ['[a\\ ,b]', ['a ', 'b']],
  // No others.
  ['\\d+\\.', '\\d+\\.'],
  ['\\1', '\\1'],
  ['\\', '\\'],
  [`\\${ref('a')}`, `\\${ref('a')}`],
  [`\\,${ref('oc.select:a,x\\,y')}`, `,${ref('oc.select:a,x\\,y')}`],
])('%s', (text, value) => {
  expect(parseHydraValue(text, 'here')).toEqual(value);
});

it.each(['[a', '[a,,b]', '{a}', '{a:1', "['a]", '[a]b', '[:', '{{', "'open"])('%s is refused', (text) => {
  expect(() => parseHydraValue(text, 'here')).toThrow(/^here: /);
});

it('a dictionary may have any key', () => {
  const value = parseHydraValue('{__proto__:{x:1}}', 'here') as object;
  expect(Object.keys(value)).toEqual(['__proto__']);
  expect(({} as Record<string, unknown>)['x']).toBeUndefined();
});

describe('overrides', () => {
  const withOverrides = (...overrides: string[]): Tree => {
    const tree: Tree = { a: { b: 1, c: null }, d: 2 };
    for (const override of overrides) applyOverride(tree, override);
    return tree;
  };

  it('set, add and delete', () => {
    expect(withOverrides('a.b=2', '+a.new=[1]', '++d=3')).toEqual({ a: { b: 2, c: null, new: [1] }, d: 3 });
    expect(withOverrides('~a.b', '~d=2')).toEqual({ a: { c: null } });
    expect(withOverrides('a.c.deep=1')).toEqual({ a: { b: 1, c: { deep: 1 } }, d: 2 });
  });

  it('join a section that is given whole to the one that is there', () => {
    expect(withOverrides('a={b:3}', '+a={d:{e:1}}', 'a={d:{f:2}}')).toEqual({
      a: { b: 3, c: null, d: { e: 1, f: 2 } },
      d: 2,
    });
    expect(withOverrides('a={}', 'd={x:1}', 'a.c={x:1}', 'a.b=[1]')).toEqual({
      a: { b: [1], c: { x: 1 } },
      d: { x: 1 },
    });
  });

  it('with nothing after = are an empty text', () => {
    expect(withOverrides('a.b=', 'd= ')).toEqual({ a: { b: '', c: null }, d: '' });
  });

  it.each(['~a.none', 'd.e=1', 'a.b', '+=1'])('%s is refused', (override) => {
    expect(() => withOverrides(override)).toThrow(`override '${override}'`);
  });

  it.each(['__proto__.polluted=1', 'a.__proto__.polluted=1', 'constructor.prototype.polluted=1'])(
    '%s stays in the tree',
    (override) => {
      withOverrides(override);
      expect(({} as Tree)['polluted']).toBeUndefined();
      expect(Object.prototype).not.toHaveProperty('polluted');
    },
  );
});

it.each([
  ['1024 * 2', 2048],
  ['(a + b)*2 - -1', 25],
  ['$a / 5 % 3', 2],
  [ref('a'), 10],
  ['7 / 0', null],
  ['a b', null],
  ['nope + 1', null],
  ['1 ** 2', null],
  ['', null],
  ['(1', null],
])('the shell computes %s', (text, value) => {
  const variables: Record<string, string> = { a: '10', b: '2' };
  expect(integerExpression(text, (name) => variables[name] ?? null)).toBe(value);
});
