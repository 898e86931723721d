import { pythonArguments } from '../../../ts/serve/tools/python_literals';

test.each([
  ['', '{}'],
  ['a = 1 , b= -2.50,c=+3e4', '{"a": 1, "b": -2.50, "c": 3e4}'],
  // Numbers keep their digits.
  [
    'n=12345678901234567890123, m=1_000, h=-0xFF, z=007, p=.5, q=1., r=1.e3',
    '{"n": 12345678901234567890123, "m": 1000, "h": -255, "z": 7, "p": 0.5, "q": 1.0, "r": 1.0e3}',
  ],
  [
    't=True, f=False, n=None, j=[true, false, null]',
    '{"t": true, "f": false, "n": null, "j": [true, false, null]}',
  ],
  [
    'a=(), b=(1,), c=(1), d=(1, "x"), e=[ ], f=[1,]',
    '{"a": [], "b": [1], "c": 1, "d": [1, "x"], "e": [], "f": [1]}',
  ],
  [`d={'k': {"x": 1,}, 2: [], True: ""}`, '{"d": {"k": {"x": 1}, "2": [], "true": ""}}'],
  ['city-name="K\u00f6ln", \u65e5="\u{1f44d}"', '{"city-name": "K\u00f6ln", "\u65e5": "\u{1f44d}"}'],
])('%s', (source, json) => {
  expect(pythonArguments(source)).toBe(json);
});

// As ast.literal_eval of Python 3.11 reads them.
test.each<[string, object]>([
  [
    `a='it\\'s', b="\\"q\\"", c='''two\n'lines' ''', d="""x"y""", e='', f=""`,
    { a: "it's", b: '"q"', c: "two\n'lines' ", d: 'x"y', e: '', f: '' },
  ],
  [
    `e='\\n\\t\\\\\\x41\\u00e4\\U0001f44d\\101\\d', r=r'\\n\\'', u=u"x", two='a' "b", cut='a\\\nb'`,
    { e: '\n\t\\A\u00e4\u{1f44d}A\\d', r: "\\n\\'", u: 'x', two: 'ab', cut: 'ab' },
  ],
])('texts: %s', (source, values) => {
  expect(JSON.parse(pythonArguments(source) as string)).toEqual(values);
});

test.each([
  '1',
  'a',
  'a=',
  'a=b',
  'a=1 b=2',
  'a="x',
  'a=[1',
  'a={1}',
  'a={"k" 1}',
  'a=f(1)',
  'a=b"x"',
  'a=1+2',
  'a=nan',
  'a=.',
  'a=0x',
  'a="\\U99999999"',
  ',',
  `a=${'['.repeat(5000)}`,
])('no literals by keyword: %s', (source) => {
  expect(pythonArguments(source)).toBeNull();
});
