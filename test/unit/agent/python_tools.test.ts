// Tools in Python: the real processes, with verl's interface (its own where verl is installed, else ours).
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PythonTools } from '../../../ts/agent/tools/python_tools';
import { Toolbox } from '../../../ts/agent/tools/toolbox';
import { toolRewards } from '../../../ts/agent/trajectory/trajectory';
import { until } from '../../helpers/counting_servers';

const fixtures = join(__dirname, '../../fixtures/python_tools');
const python = process.env['TROUPE_TEST_VERL_PYTHON'] ?? 'python3';
let directory: string;
const opened: PythonTools[] = [];

beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'troupe-python-tools-'));
  process.env['PYTHONPATH'] = fixtures;
});
afterAll(async () => {
  await Promise.all(opened.map((one) => one.close()));
  delete process.env['PYTHONPATH'];
  rmSync(directory, { recursive: true });
});

const schema = (name: string, properties: object, required: string[] = []): object => ({
  type: 'function',
  function: { name, description: `The tool ${name}`, parameters: { type: 'object', properties, required } },
});
const SUM = {
  class_name: 'sum_tools.SumTool',
  config: { type: 'native', unit: 2 },
  tool_schema: schema('sum', { a: { type: 'integer', minimum: 0 }, b: { type: 'integer' } }, ['a', 'b']),
};
const ODD = {
  class_name: 'sum_tools.OddTool',
  config: { type: 'native' },
  tool_schema: schema('odd', { what: { type: 'string', enum: ['raise', 'exit'] } }),
};

function configFile(...tools: object[]): string {
  const file = join(directory, 'tools.yaml');
  writeFileSync(file, JSON.stringify({ tools }));
  return file;
}

function open(configPath: string | null, functionPath: string | null = null, processes = 1): PythonTools {
  const tools = new PythonTools({ configPath, functionPath, python, processes });
  opened.push(tools);
  return tools;
}

async function boxOf(
  tools: PythonTools,
  { timeout = 60, kwargs = {} }: { timeout?: number; kwargs?: Record<string, object> } = {},
): Promise<Toolbox> {
  return new Toolbox(
    await tools.tools(),
    { timeout, maxResponseLength: 400, truncateSide: 'right' },
    new AbortController().signal,
    () => 0,
    kwargs,
  );
}

test('classes of a tool_config_path: schemas as verl shows them, calls, rewards, and instances that are released', async () => {
  const left = join(directory, 'left');
  process.env['SUM_TOOL_LEFT'] = left;
  const box = await boxOf(open(configFile(SUM, ODD)), {
    kwargs: { sum: { create_kwargs: { start: 1, truth: 11 } } },
  });
  delete process.env['SUM_TOOL_LEFT'];
  // verl's schemas have type, description and enum of a property, and nothing else.
  expect(JSON.stringify(box.schemas)).toBe(
    JSON.stringify([
      {
        type: 'function',
        function: {
          name: 'sum',
          description: 'The tool sum',
          parameters: {
            type: 'object',
            properties: { a: { type: 'integer' }, b: { type: 'integer' } },
            required: ['a', 'b'],
          },
        },
      },
      {
        type: 'function',
        function: {
          name: 'odd',
          description: 'The tool odd',
          parameters: {
            type: 'object',
            properties: { what: { type: 'string', enum: ['raise', 'exit'] } },
            required: [],
          },
        },
      },
    ]),
  );
  const answers = await Promise.all([box.call('sum', { a: 2, b: 3 }), box.call('sum', { a: 0, b: 0 })]);
  expect(answers.map(({ text, error }) => [text, error])).toEqual([
    ['11', null],
    ['1', null],
  ]);
  expect((await box.call('sum', { a: 'x' })).error).toMatch(/KeyError: 'b'/);
  expect((await box.call('sum', { a: 1, b: 1, messages: 1 })).error).toMatch(/agent_data.messages/);
  expect((await box.call('odd', { what: 'old' })).text).toBe('text alone');
  expect((await box.call('odd', { what: 'none' })).text).toBe('');
  expect(toolRewards({ toolUses: box.uses })).toEqual([1, 0, 0, 0, 0.5]);
  expect(readFileSync(left, 'utf8')).toBe('0');
});

test('functions of a function_tool_path, beside each other and beside classes', async () => {
  const box = await boxOf(open(configFile(SUM), join(fixtures, 'functions.py')));
  expect(box.schemas.map(({ function: { name } }) => name)).toEqual(['sum', 'double', 'wait']);
  expect(box.schemas[1]?.function.parameters).toEqual({
    type: 'object',
    properties: { a: { type: 'integer' } },
    required: ['a'],
  });
  expect((await box.call('double', { a: 21 })).text).toBe('{"double": 42}');
  expect((await box.call('double', { b: 1 })).error).toMatch(/TypeError: .*unexpected keyword/);
  const waits = await Promise.all(Array.from({ length: 8 }, () => box.call('wait', {})));
  expect(new Set(waits.map(({ text }) => text))).toEqual(new Set(['waited']));
  expect(toolRewards({ toolUses: box.uses })).toEqual([0, 0, ...new Array(8).fill(0.25)]);
});

test.each([
  ['raise', /KeyError: 'no luck'/],
  ['exit', /SystemExit: 3/],
  ['cancel', /CancelledError/],
  ['nan', /gave a reward of nan/],
  ['image', /images or videos/],
  ['bytes', /text of its answer is expected to be a str, and it is of type bytes/],
  ['number', /expected to be a str, and it is of type int/],
  ['other', /AttributeError/],
  ['kill', /closed/i],
])('a tool that does what it may not (%s) costs its call', async (what, error) => {
  const box = await boxOf(open(configFile(SUM, ODD)));
  expect((await box.call('odd', { what })).error).toMatch(error);
  expect((await box.call('sum', { a: 1, b: 1 })).text).toBe('4');
});

test('a call that is late is given up, and a process that a tool blocks ends and is started again', async () => {
  const tools = open(configFile(SUM, ODD));
  const box = await boxOf(tools, { timeout: 1 });
  const patient = await boxOf(tools);
  const before = (await patient.call('odd', { what: 'process' })).text;
  expect((await box.call('odd', { what: 'sleep' })).error).toMatch(/no answer within 1 s/);
  expect((await patient.call('odd', { what: 'process' })).text).toBe(before);
  expect((await box.call('odd', { what: 'block' })).error).toMatch(/no answer within 1 s/);
  const waits = patient.call('odd', { what: 'process' });
  expect((await waits).error).toMatch(/closed/i);
  expect(Number((await patient.call('odd', { what: 'process' })).text)).not.toBe(Number(before));
});

test('further processes are started for calls that come while others wait, and all end', async () => {
  const tools = open(configFile(ODD), join(fixtures, 'functions.py'), 3);
  const box = await boxOf(tools);
  const pids = async (): Promise<Set<string>> =>
    new Set(
      await Promise.all(
        [1, 2, 3, 4].map(async () => {
          const wait = box.call('wait', {});
          const { text } = await box.call('odd', { what: 'process' });
          await wait;
          return text;
        }),
      ),
    );
  expect((await box.call('odd', { what: 'process' })).error).toBeNull();
  const found = await pids();
  expect(found.size).toBeGreaterThan(1);
  expect(found.size).toBeLessThanOrEqual(3);
  await tools.close();
  const alive = (): string[] =>
    [...found].filter((pid) => spawnSync('kill', ['-0', pid], { stdio: 'ignore' }).status === 0);
  await until('end of all processes', () => alive().length === 0, alive);
});

test.each([
  [[{ ...SUM, class_name: 'sum_tools.Nothing' }], /could not import sum_tools.Nothing: AttributeError/],
  [[{ ...SUM, class_name: 'no_such.Tool' }], /could not import no_such.Tool: ModuleNotFoundError/],
  [[{ ...SUM, tool_schema: null }], /could not make a tool of sum_tools.SumTool/],
  [[{ ...SUM, tool_schema: { type: 'function' } }], /could not make a tool of sum_tools.SumTool/],
  [[SUM, SUM], /two tools have the name sum/],
])('tools that cannot be loaded are told, with the key and the Python (%#)', async (tools, message) => {
  const error = await open(configFile(...tools))
    .tools()
    .catch((cause: Error) => cause.message);
  expect(error).toMatch(message);
  expect(error).toMatch(/Python 3\..*check actor_rollout_ref.rollout.multi_turn.tool_config_path/);
});

test('files that are not those of verl, MCP classes, functions without the decorator, and a Python that is not there', async () => {
  expect(() => open(join(directory, 'nothing.yaml'))).toThrow(
    /^actor_rollout_ref\.rollout\.multi_turn\.tool_config_path: cannot read/,
  );
  expect(() => open(configFile())).toThrow(/expected .* to have tools/);
  expect(() => open(configFile({ class_name: 'Tool', config: {} }))).toThrow(/tools.0.class_name/);
  const mcp = { ...SUM, config: { type: 'mcp' } };
  expect(() => open(configFile(mcp))).toThrow(/of type native run here: name MCP servers in/);
  const plain = join(directory, 'plain.py');
  writeFileSync(plain, 'def f(): pass\n');
  await expect(open(null, plain).tools()).rejects.toThrow(/no function with the decorator function_tool/);
  const none = { configPath: configFile(SUM), functionPath: null, python: 'no-such-python', processes: 1 };
  await expect(new PythonTools(none).tools()).rejects.toThrow(/no-such-python/);
});

test('a verl that lacks what it needs is told', async () => {
  const broken = join(directory, 'broken');
  mkdirSync(join(broken, 'verl'), { recursive: true });
  writeFileSync(join(broken, 'verl', '__init__.py'), 'import no_such_torch\n');
  process.env['PYTHONPATH'] = `${broken}:${fixtures}`;
  const tools = open(configFile(SUM)).tools();
  process.env['PYTHONPATH'] = fixtures;
  await expect(tools).rejects.toThrow(/could not import verl.tools: .*no_such_torch/);
});

const hasVerl =
  process.env['TROUPE_TEST_VERL_PYTHON'] !== undefined &&
  execFileSync(python, ['-c', 'import verl.tools.schemas; print(verl.__file__)'], { encoding: 'utf8' }) !==
    '';
(hasVerl ? test : test.skip)('schemas and answers of our interface are those of verl', () => {
  const compared = spawnSync(python, [join(__dirname, '../../helpers/agents/verl_interface_check.py')], {
    encoding: 'utf8',
  });
  expect([compared.status, compared.stderr]).toEqual([0, '']);
  expect(compared.stdout.trim()).toMatch(/^\d{3,} cases/);
});
