// Keys of how much an engine may take: as arguments of a managed server, or in a note.
import { configNotes, loadConfig } from '../../../ts/config/config';
import type { ServerProtocol } from '../../../ts/rollout/remote/server_protocol';
import { SglangProtocol } from '../../../ts/rollout/remote/sglang';
import { TgiProtocol } from '../../../ts/rollout/remote/tgi';
import { VllmProtocol } from '../../../ts/rollout/remote/vllm';
import { serverLimits } from '../../../ts/trainer/server_limits';
import { writeConfig } from '../config/write_config';

const ROLLOUT = 'actor_rollout_ref.rollout';
const load = (...overrides: string[]) => {
  const data = ['data.max_prompt_length=40', 'data.max_response_length=24'];
  return loadConfig(writeConfig(), [...data, ...overrides.map((text) => `${ROLLOUT}.${text}`)]);
};
const tokenizer = {} as ConstructorParameters<typeof TgiProtocol>[0];
const PROTOCOLS: Readonly<Record<string, ServerProtocol>> = {
  vllm: new VllmProtocol(),
  sglang: new SglangProtocol([2]),
  tgi: new TgiProtocol(tokenizer, []),
};

/** What a server is started with beside what every one of its kind is. */
function launched(name: string, device: 'cpu' | 'cuda', ...overrides: string[]): string {
  const protocol = PROTOCOLS[name] as ServerProtocol;
  const config = load(`name=${name}`, 'mode=managed', ...overrides);
  const { args } = protocol.launch({
    model: 'm',
    host: 'h',
    port: 1,
    dtype: 'float32',
    maxConcurrency: config.actor_rollout_ref.rollout.server.max_concurrency,
    seed: 0,
    tensorParallel: 1,
    releases: false,
    ...serverLimits(config, device),
  });
  const always = ['--logprobs-mode', '--scheduling', '--generation', '--max-logprobs', '--sampling-defaults'];
  const fixed = [...always, '--model', '--served', '--host', '--port', '--dtype', '--seed', '--random-seed'];
  return args
    .join(' ')
    .split(/ (?=--)/)
    .filter((text) => !fixed.some((name) => text.startsWith(name)) && /\d|no-|disable/.test(text))
    .join(' ');
}

const ALL = [
  'max_model_len=48',
  'max_num_seqs=16',
  'max_num_batched_tokens=32',
  'gpu_memory_utilization=0.3',
  'enable_chunked_prefill=false',
  'enable_prefix_caching=false',
];

test('a managed vLLM is started as the keys say', () => {
  const usual = '--max-model-len 64 --max-num-batched-tokens 8192 --max-num-seqs 256';
  expect(launched('vllm', 'cpu')).toBe(usual);
  expect(launched('vllm', 'cuda')).toBe(`${usual} --gpu-memory-utilization 0.5`);
  expect(launched('vllm', 'cuda', ...ALL)).toBe(
    // A whole prompt must fit into a step of it.
    '--max-model-len 48 --max-num-batched-tokens 48 --max-num-seqs 16 --gpu-memory-utilization 0.3 ' +
      '--no-enable-chunked-prefill --no-enable-prefix-caching',
  );
  // As many as are asked of it, and as fit into a step.
  expect(launched('vllm', 'cpu', 'server.max_concurrency=600')).toContain('--max-num-seqs 600');
  expect(launched('vllm', 'cpu', 'max_num_batched_tokens=128')).toContain('--max-num-seqs 128');
});

test('a managed SGLang is', () => {
  expect(launched('sglang', 'cpu')).toBe('--context-length 64 --max-running-requests 256');
  expect(launched('sglang', 'cuda', ...ALL)).toBe(
    '--context-length 48 --max-running-requests 16 --mem-fraction-static 0.3 --chunked-prefill-size -1 --disable-radix-cache',
  );
});

test('a managed TGI is, where it has arguments for it', () => {
  const usual = '--max-total-tokens 64 --max-input-tokens 63 --max-concurrent-requests 256';
  expect(launched('tgi', 'cpu')).toBe(usual);
  expect(launched('tgi', 'cuda', ...ALL)).toBe(
    '--max-total-tokens 48 --max-input-tokens 47 --max-concurrent-requests 256 --cuda-memory-fraction 0.3',
  );
});

describe('what does not reach a server is said', () => {
  const noted = (...overrides: string[]): string[] =>
    configNotes(load(...overrides)).map(({ path, reason }) => `${path.slice(ROLLOUT.length + 1)}: ${reason}`);
  const keys = (...overrides: string[]): string[] =>
    noted(...overrides).map((note) => note.slice(0, note.indexOf(':')));
  const server = ['name=vllm', 'mode=server', 'server.addresses=[http://a:1]'];

  test('of one that runs already, all but how long sequences are, which requests say', () => {
    expect(keys(...server, ...ALL).sort()).toEqual(
      ALL.map((text) => text.split('=')[0])
        .filter((key) => key !== 'max_model_len')
        .sort(),
    );
    expect(noted(...server, 'max_num_seqs=16')).toEqual([
      'max_num_seqs: the servers were started by somebody else',
    ]);
    expect(noted(...server)).toEqual([]);
  });

  test('of a managed one, what it has no argument for', () => {
    const gpu = ['mode=managed', ...ALL];
    const onGpu = (name: string): string[] =>
      keys(`name=${name}`, ...gpu).filter((key) => !key.startsWith('gpu'));
    expect(onGpu('vllm')).toEqual([]);
    expect(onGpu('sglang')).toEqual(['max_num_batched_tokens']);
    expect(onGpu('tgi')).toEqual([
      'max_num_seqs',
      'max_num_batched_tokens',
      'enable_chunked_prefill',
      'enable_prefix_caching',
    ]);
    expect(noted('name=vllm', 'mode=managed', 'gpu_memory_utilization=0.3')).toEqual([
      expect.stringMatching(/^gpu_memory_utilization: works on a GPU; on cpu a server keeps its own share/),
    ]);
  });

  test('of our own engine, nothing', () => {
    expect(noted(...ALL)).toEqual([]);
  });
});
