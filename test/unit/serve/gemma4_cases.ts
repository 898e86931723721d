// Responses of Gemma 4, and the text and calls that are read in them.

/** Family, what it is, response, text, calls. */
type ParserCase = ['gemma4', string, string, string, [string, unknown][]];

const weather: [string, unknown] = ['get_weather', { city: 'Pa"ris}', days: [1, { n: -2.5e3 }] }];
const time: [string, unknown] = ['time', {}];

export const GEMMA4_CASES: ParserCase[] = [
  [
    'gemma4',
    'one call',
    '<|tool_call>call:get_weather{city:<|"|>Pa"ris}<|"|>,days:[1,{n:-2.5e3}]}<tool_call|>',
    '',
    [weather],
  ],
  [
    'gemma4',
    'two calls after text',
    'Let me see.<|tool_call>call:get_weather{ city: <|"|>Pa"ris}<|"|>,\n days: [1, {n:-2.5e3,},] }<tool_call|><|tool_call>call:time{}<tool_call|> Well.',
    'Let me see. Well.',
    [weather, time],
  ],
  [
    'gemma4',
    'texts with brackets, commas, quotation marks, line breaks and tags in them',
    '<|tool_call>call:f{a:<|"|>{x:1},[y]\n\\"z" <|"|>,b:[<|"|><tool_call|><|"|>,<|"|><|<|"|>],c:<|"|><|"|>}<tool_call|>',
    '',
    [['f', { a: '{x:1},[y]\n\\"z" ', b: ['<tool_call|>', '<|'], c: '' }]],
  ],
  [
    'gemma4',
    'values of every kind',
    '<|tool_call>call:f{t:true,f:false,n:null,p:None,i:-42,d:2.5,e:1e-07,o:{},l:[],deep:{a:[{b:[[]]}]},\u00e4 b:1}<tool_call|>',
    '',
    [
      [
        'f',
        {
          ...{ t: true, f: false, n: null, p: null, i: -42, d: 2.5, e: 1e-7, o: {}, l: [] },
          ...{ deep: { a: [{ b: [[]] }] }, '\u00e4 b': 1 },
        },
      ],
    ],
  ],
  [
    'gemma4',
    'texts without their tokens, names of keys with them, numbers as Python reads them',
    '<|tool_call>call:f{a:New York,"b":"x\\n\\"}",<|"|>c:d<|"|>:http://x/?y=1,n:+007,m:.5,o:5.}<tool_call|>',
    '',
    [['f', { a: 'New York', b: 'x\n"}', 'c:d': 'http://x/?y=1', n: 7, m: 0.5, o: 5 }]],
  ],
  ['gemma4', 'an odd name', '<|tool_call>call:files/l\u00e4s{}<tool_call|>', '', [['files/l\u00e4s', {}]]],
  ['gemma4', 'the word that is left out', '<|tool_call>:time{}<tool_call|>', '', [time]],
  ['gemma4', 'a missing end', '<|tool_call>call:time{}', '', [time]],
  [
    'gemma4',
    'a text that never ends, before a call',
    '<|tool_call>call:f{a:<|"|>x}<tool_call|><|tool_call>call:time{}<tool_call|>',
    '<|tool_call>call:f{a:<|"|>x}<tool_call|>',
    [time],
  ],
  [
    'gemma4',
    'brackets that are missing, before a call',
    '<|tool_call>call:f{a:{b:1}<tool_call|><|tool_call>call:f{a:[1<|tool_call>call:time{}<tool_call|>',
    '<|tool_call>call:f{a:{b:1}<tool_call|><|tool_call>call:f{a:[1',
    [time],
  ],
  ...[
    '<|tool_call>call:f{a}<tool_call|>',
    '<|tool_call>call:f{a:}<tool_call|>',
    '<|tool_call>call:f{a:1 b:<|"|>x<|"|>}<tool_call|>',
    '<|tool_call>call:f{a:[1}]<tool_call|>',
    '<|tool_call>call:f{a:<|"|>x<|"|>y}<tool_call|>',
    '<|tool_call>call:f{a:"x}<tool_call|>',
    '<|tool_call>call:f{a:"\\x"}<tool_call|>',
    '<|tool_call>call:f{a:x<y}<tool_call|>',
    '<|tool_call>call:f(a=1)<tool_call|> then',
    '<|tool_call>call:{}<tool_call|>',
    '<|tool_call>time{}<tool_call|>',
    '<|tool_call>call:a b{}<tool_call|>',
    '<|tool_call>{"name": "time"}<tool_call|>',
    '<|tool_call>call:f{a:<|"|>x',
    `<|tool_call>call:f{a:${'['.repeat(200)}${']'.repeat(200)}}<tool_call|>`,
    '<|tool_call> <tool_call|>',
    'a <|"|> b <|tool_c',
  ].map((text): ParserCase => ['gemma4', `no call: ${text.slice(0, 60)}`, text, text, []]),
];
