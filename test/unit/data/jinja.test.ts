import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { strftime } from '../../../ts/data/jinja/clock';
import { JinjaTemplate } from '../../../ts/data/jinja/template';

interface Cases {
  values: Record<string, unknown>;
  /** What transformers renders; null: it refuses. */
  cases: { template: string; results: Record<string, string | null> }[];
  programs: { template: string; result: string | null }[];
  conversations: Record<string, unknown>;
  tools: unknown;
  chats: { template: string; results: Record<string, string | null> }[];
}

const { values, cases, programs, conversations, tools, chats } = JSON.parse(
  readFileSync(join(__dirname, '../../fixtures/templates/cases.json'), 'utf8'),
) as Cases;

function rendered(template: string, variables: Record<string, unknown>): string | null {
  try {
    return new JinjaTemplate(template).render(variables);
  } catch {
    return null;
  }
}

const none = { messages: [], tools: null, documents: null };

/** Of 3335: what the reference renders and we refuse, such as arithmetic with truth values. No text is wrong in silence. */
const REFUSED_HERE_ALONE = 64;

test('small templates over all kinds of values give what transformers gives, or are refused', () => {
  const wrong: unknown[] = [];
  let refused = 0;
  for (const { template, results } of cases) {
    for (const [name, expected] of Object.entries(results)) {
      const got = rendered(template, { v: values[name], w: values[name], ...none });
      if (got === null && expected !== null) refused++;
      else if (got !== expected) wrong.push({ template, name, expected, got });
    }
  }
  expect(wrong).toEqual([]);
  expect(refused).toBe(REFUSED_HERE_ALONE);
});

const ofPrograms = programs.map(({ template, result }) => [template, result] as const);

test.each(ofPrograms)('%s gives what transformers gives', (template, result) => {
  expect(rendered(template, {})).toBe(result);
});

const ofChats = chats.flatMap(({ template, results }, i) =>
  Object.entries(results).map(([name, result]) => [i, name, template, result] as const),
);

test.each(ofChats)(
  'chat template %i over "%s" gives what transformers gives',
  (_, name, template, result) => {
    const [conversation = ''] = name.split(' ');
    const got = rendered(template, {
      messages: conversations[conversation],
      tools: name.includes(' with tools') ? tools : null,
      documents: null,
      add_generation_prompt: name.endsWith(' to go on'),
      bos_token: '<s>',
      eos_token: '</s>',
    });
    expect(got).toBe(result);
  },
);

test.each([
  ["{{ 'a'.swapcase() }}", "a str has no method 'swapcase' here"],
  ['{{ {}.copy() }}', "a dict has no method 'copy' here"],
  ['{{ open() }}', "'open' is called, expected a function, got: Undefined"],
  ["{{ [1] | map('nope') }}", 'nope'],
  ["{{ [1] | select('nope') }}", 'Unknown test: nope'],
  ["{{ [1] | select('eq') }}", 'test eq: expected one argument'],
  ["{{ '{:>3}'.format(1) }}", 'format() does not know the field {:>3}'],
  ['{% set 1 = 2 %}', 'expected names to set, got a IntegerLiteral'],
  ["{{ [1] | join(attribute='x') }}", 'filter join: the argument attribute is not supported'],
  ["{{ [1] | join('-', 'x') }}", 'filter join: expected one argument'],
  ['{{ [1] | tojson(2) }}', 'filter tojson: arguments are supported by name only'],
  ['{{ [1] | tojson(default=1) }}', 'filter tojson: the argument default is not supported'],
  ["{{ ['a'] | selectattr('title') }}", 'the attribute title of a str is not supported'],
  ['{% for a, b in [[1]] %}{% endfor %}', 'expected 2 values for 2 names, got 1'],
  ["{{ [1] | map('is eq', 1) }}", "'is eq' is no name of a filter"],
  ['{% with a %}{% endwith %}', '{% with %}: expected name = value'],
  ['{% raw %}{% endra %}', 'Unknown statement type: raw'],
  ['{% raw %}{# endraw #}', '{% raw %} has no {% endraw %}'],
  ['{% if true %}{% break %}{% endif %}', '{% break %} stands outside of a loop'],
])('%s is refused by name', (template, message) => {
  expect(() => new JinjaTemplate(template).render({})).toThrow(message);
});

test('what an argument does is done once', () => {
  const template =
    "{% set ns = namespace(n=0) %}{% macro m() %}{% set ns.n = ns.n + 1 %}a{% endmacro %}{{ 'abc'.replace(m(), 'x') }}{{ ns.n }}";
  expect(new JinjaTemplate(template).render({})).toBe('xbc1');
});

test('integers beyond 2^53 have the digits that Python writes', () => {
  const v = { id: 12345678901234567891n, others: [9007199254740993n, 9007199254740992, -0.5], text: 'x' };
  const of = (template: string) => new JinjaTemplate(template).render({ v });
  expect(of('{{ v.id }} {{ v }} {{ v | tojson }}')).toBe(
    "12345678901234567891 {'id': 12345678901234567891, 'others': [9007199254740993, 9007199254740992, -0.5], 'text': 'x'} " +
      '{"id": 12345678901234567891, "others": [9007199254740993, 9007199254740992, -0.5], "text": "x"}',
  );
  expect(
    of('{{ v.others[0] == v.others[1] }} {{ v.others[0] == v.others[0] }} {{ v.others[0] > v.others[1] }}'),
  ).toBe('False True True');
  expect(of('{{ v.others | unique | length }} {{ v.id is integer }} {{ v.id in [v.id] }}')).toBe(
    '3 True True',
  );
  expect(() => of('{{ v.id + 1 }}')).toThrow('cannot compute with integers beyond 2^53 (+)');
});

const big = (count: number): string => `{% set s = 'x' * ${count} %}`;
const doubled = (start: string, grow: string, show: string): string =>
  `{% set ns = namespace(s=${start}) %}{% for i in range(64) %}{% set ns.s = ${grow} %}{% endfor %}{{ ${show} }}`;

/** 100 of two million characters in ns.l. */
const texts = (part: string): string =>
  `{% set s = ${part} * 2000000 %}{% set ns = namespace(l=[]) %}{% for i in range(100) %}{% set ns.l = ns.l + [s] %}{% endfor %}`;

test.each<[string, string, RegExp]>([
  ['a range', '{{ range(1000000000) }}', /range\(\) of 1000000000 numbers: expected at most 100000/],
  ['a range that is joined', '{{ range(100000000) | join }}', /expected at most 100000/],
  [
    'loops within loops that do nothing',
    '{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}',
    /not ended after 2000000 steps/,
  ],
  [
    'a macro that calls itself twice',
    '{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}',
    /not ended after/,
  ],
  ['a macro that calls itself for ever', '{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}', /./],
  ['a text that doubles', doubled("'x'", 'ns.s ~ ns.s', 'ns.s'), /more than 16777216 characters/],
  ['a list that doubles', doubled('[1]', 'ns.s + ns.s', 'ns.s | length'), /more than 262144 entries/],
  ['a list of itself twice', doubled('[1]', '[ns.s, ns.s]', 'ns.s'), /not ended after/],
  ['JSON of such a list', doubled('[1]', '[ns.s, ns.s]', 'ns.s | tojson'), /not ended after/],
  ['a repeated text', big(1e9), /more than 16777216 characters/],
  ['a replacement of everything', `${big(1e7)}{{ s | replace('x', s) }}`, /too long|not ended/],
  ['a search for a long text', `${big(8e6)}{{ (s ~ 'y') in (s ~ s) }}`, /not ended after/],
  [
    'sorting again and again',
    '{% for i in range(100000) %}{% set x = range(100000) | sort %}{% endfor %}',
    /not ended/,
  ],
  ['a text in many parts', `${big(1e7)}{{ s }}{{ s }}`, /more than 16777216 characters/],
  ['a list of long texts', `${texts("'x\\n'")}{{ ns.l }}`, /not ended after/],
  ['JSON of long texts', `${texts("'x\\n'")}{{ ns.l | tojson }}`, /not ended after/],
  ['long texts in order', `${texts("'x'")}{{ (ns.l | sort) | length }}`, /not ended after/],
  ['what a doubling list holds', doubled('[1]', '[ns.s, ns.s]', '[(ns.s, 1)] | unique'), /not ended after/],
  ['a wide indent', "{{ 'a\nb' | indent(1000000000) }}", /too long/],
  [
    'JSON with a wide indent',
    '{{ [1] | tojson(indent=1000000000) }}',
    /indent to be an integer from 0 to 64/,
  ],
  ['blanks', ' '.repeat(200_000), /run of more than 1000 blanks/],
  ['brackets', `{{ ${'('.repeat(50_000)}1${')'.repeat(50_000)} }}`, /nested too deeply/],
  ['tests in tests', `{{ ${'1 is in ['.repeat(20_000)}1${']'.repeat(20_000)} }}`, /nested too deeply/],
  ['with in with', '{% with a = 1 %}'.repeat(15_000), /nested too deeply/],
  ['quotes in raw', `{{ "${'\\"'.repeat(100_000)}{% raw %}{% endraw %}`, /Unexpected end of input/],
  ['length', 'x'.repeat(1_000_000), /1000000 characters, expected at most 262144/],
])('%s ends with a reason', (_, source, message) => {
  expect(() => new JinjaTemplate(source).render({})).toThrow(message);
});

test('what it costs does not count over renderings', () => {
  const template = new JinjaTemplate('{% for i in range(50000) %}{{ i }}{% endfor %}');
  const lengths = Array.from({ length: 20 }, () => template.render({}).length);
  expect(new Set(lengths)).toEqual(new Set([238_890]));
});

test.each([
  ['%Y-%m-%d %H:%M:%S', '2026-03-05 14:07:09'],
  ['%d %b %Y, %A %-d %B', '05 Mar 2026, Thursday 5 March'],
  ['%y %a %I %p 100%%', '26 Thu 02 PM 100%'],
])('strftime_now writes %s', (format, expected) => {
  expect(strftime(new Date(2026, 2, 5, 14, 7, 9), format)).toBe(expected);
});

test('strftime_now refuses what it does not know', () => {
  expect(() => strftime(new Date(), '%Q')).toThrow('strftime_now: %Q is not supported');
});

test('characters that are stripped are whole ones, also those of two halves', () => {
  const rest = (call: string): string =>
    new JinjaTemplate(`{{ v.${call} }}`).render({ v: '😀x😁😀', ...none });
  expect([rest("strip('😀')"), rest("lstrip('😀')"), rest("rstrip('😀😁')")]).toEqual([
    'x😁',
    'x😁😀',
    '😀x',
  ]);
  // U+1F600 and U+1F601 begin with the same half.
  expect(rest("rstrip('😁')")).toBe('😀x😁😀');
});
