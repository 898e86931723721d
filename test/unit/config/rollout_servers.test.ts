import { configNotes, loadConfig } from '../../../ts/config/config';
import { checkMtp } from '../../../ts/roles/mtp';
import { actorSettings, referenceSettings, rolloutSettings } from '../../../ts/roles/role_settings';
import { rolloutOptions } from '../../../ts/roles/settings';
import { configError, writeConfig } from './write_config';

const ROLLOUT = 'actor_rollout_ref.rollout';
const load = (...overrides: string[]) =>
  loadConfig(
    writeConfig(),
    overrides.map((text) => `${ROLLOUT}.${text}`),
  );
const notes = (...overrides: string[]): string[] =>
  configNotes(load(...overrides)).map(({ path, reason }) => `${path}: ${reason}`);

test('the names of verl run our own engine, which is said; servers are asked with a mode of ours', () => {
  expect(notes()).toEqual([]);
  expect(notes('name=vllm', 'mode=async')).toEqual([
    expect.stringMatching(/rollout\.name: responses come from the training workers/),
  ]);
  expect(notes('name=vllm', 'mode=managed')).toEqual([]);
  expect(notes('name=sglang', 'mode=server', 'server.addresses=[http://a:1]', 'top_p=0.9')).toEqual([
    expect.stringMatching(/rollout\.top_p: log-probs of sglang are those after/),
  ]);
  const { server } = load('name=vllm', 'mode=server', 'server.addresses=[http://a:1,https://b]')
    .actor_rollout_ref.rollout;
  expect(server).toMatchObject({
    addresses: ['http://a:1', 'https://b'],
    max_concurrency: 256,
    recovery_timeout: 600,
  });
});

test('weights of 8 bits bring rollout correction with them, unless it says what it is', () => {
  expect(load().algorithm.rollout_correction.rollout_is).toBe(null);
  expect(load('quantization=int8').algorithm.rollout_correction).toMatchObject({
    preset: 'decoupled_token_is',
    rollout_is: 'token',
  });
  expect(notes('quantization=int8')).toEqual([
    expect.stringMatching(/rollout\.quantization: .*correction weighs tokens/),
  ]);
  const off = loadConfig(writeConfig(), [
    `${ROLLOUT}.quantization=fp8`,
    'algorithm.rollout_correction.preset=disabled',
  ]);
  expect(off.algorithm.rollout_correction.rollout_is).toBe(null);
  expect(rolloutOptions(off).quantization).toBe('fp8');
  expect(rolloutOptions(load())).not.toHaveProperty('quantization');
});

test('drafts of our own engine, where a method says how they are made', () => {
  expect(rolloutOptions(load())).not.toHaveProperty('speculative');
  expect(rolloutOptions(load('speculative_config.num_speculative_tokens=3'))).not.toHaveProperty(
    'speculative',
  );
  const given = ['method=ngram', 'num_speculative_tokens=3', 'prompt_lookup_max=5', 'history_tokens=0'];
  expect(rolloutOptions(load(...given.map((text) => `speculative_config.${text}`))).speculative).toEqual({
    method: 'ngram',
    numSpeculativeTokens: 3,
    promptLookupMin: 2,
    promptLookupMax: 5,
    disableByBatchSize: 16,
    historyTokens: 0,
  });
});

test("drafts by the model's own layers, as a method or as verl says it", () => {
  const mtp = (...given: string[]) =>
    loadConfig(
      writeConfig(),
      given.map((text) => `actor_rollout_ref.${text}`),
    );
  const on = ['model.mtp.enable=true', 'model.mtp.enable_rollout=true'];
  expect(rolloutOptions(mtp(...on)).speculative).toMatchObject({ method: 'mtp', numSpeculativeTokens: 1 });
  expect(rolloutOptions(mtp(...on, 'model.mtp.num_speculative_tokens=3')).speculative).toMatchObject({
    method: 'mtp',
    numSpeculativeTokens: 3,
  });
  expect(rolloutOptions(mtp('model.mtp.enable_rollout=true'))).not.toHaveProperty('speculative');
  const ngram = mtp(...on, 'rollout.speculative_config.method=ngram');
  expect(rolloutOptions(ngram).speculative).toMatchObject({ method: 'ngram', numSpeculativeTokens: 4 });
  expect(actorSettings(ngram).lora).toEqual({});
  const method = mtp('rollout.speculative_config.method=mtp');
  expect(rolloutOptions(method).speculative).toMatchObject({ method: 'mtp', numSpeculativeTokens: 4 });
  // Who generates holds the layers; who trains them does so, too.
  expect(actorSettings(method).lora).toEqual({ mtp: { train: false } });
  expect(actorSettings(mtp(...on, 'model.mtp.enable_train=true')).lora).toEqual({
    mtp: { lossScalingFactor: 0.1, detachEncoder: false },
  });
  const pool = mtp(...on, 'rollout.nnodes=1', 'model.mtp.enable_train=true');
  expect(rolloutSettings(pool).lora).toEqual({ mtp: { train: false } });
  expect(actorSettings(mtp(...on, 'rollout.nnodes=1')).lora).toEqual({});
  expect(referenceSettings(method)?.lora).toEqual({});
  // Servers have options of their own.
  const servers = mtp(...on, 'rollout.name=vllm', 'rollout.mode=managed');
  expect(configNotes(servers).map(({ path, reason }) => `${path}: ${reason}`)).toEqual([
    'actor_rollout_ref.model.mtp.enable_rollout: of our own engine: what a managed server takes stands in server.args',
  ]);
  expect(actorSettings(servers).lora).toEqual({});
});

test('layers that are drafted with do not go with adapters', () => {
  const adapters = (...given: string[]) =>
    loadConfig(
      writeConfig(),
      ['model.lora_rank=8', ...given].map((text) => `actor_rollout_ref.${text}`),
    );
  expect(() => checkMtp(actorSettings(adapters('rollout.speculative_config.method=mtp')))).toThrow(
    /model\.mtp\.enable_rollout: .* not beside adapters: expected false \(and .* not mtp\), or .*lora_rank 0/,
  );
  expect(() => checkMtp(actorSettings(adapters('model.mtp={enable: true, enable_train: true}')))).toThrow(
    /model\.mtp\.enable_train: .* not beside adapters: expected false, or/,
  );
});

const REFUSED: [string, string[], string, RegExp][] = [
  [
    'drafts of servers',
    ['name=vllm', 'mode=managed', 'speculative_config.method=ngram'],
    'speculative_config.method',
    /is of our own engine/,
  ],
  ['drafts of a model', ['speculative_config.method=eagle'], 'speculative_config.method', /expected .*ngram/],
  [
    'a shortest match that is longer than the longest',
    ['speculative_config.prompt_lookup_min=9'],
    'speculative_config.prompt_lookup_min',
    /expected at most prompt_lookup_max 8, got 9/,
  ],
  [
    'a server without a name',
    ['mode=server', 'server.addresses=[http://a]'],
    'name',
    /one of vllm, sglang, tgi/,
  ],
  [
    'weights of 8 bits',
    ['name=vllm', 'mode=managed', 'quantization=fp8'],
    'quantization',
    /is of our own engine/,
  ],
  [
    'latents in a server of others',
    ['name=vllm', 'mode=managed', 'latent_cache=true'],
    'latent_cache',
    /is of our own engine/,
  ],
  ['weights of 4 bits', ['quantization=int4'], 'quantization', /expected one of int8, fp8, or null/],
  ['a name without servers', ['name=hf', 'mode=managed'], 'name', /got hf/],
  ['no addresses', ['name=vllm', 'mode=server'], 'server.addresses', /expected URLs/],
  [
    'no URL',
    ['name=vllm', 'mode=server', 'server.addresses=[host:80]'],
    'server.addresses',
    /http:\/\/host:8000, got "host:80"/,
  ],
  [
    'addresses that nobody asks',
    ['name=vllm', 'server.addresses=[http://a]'],
    'server.addresses',
    /set it to server/,
  ],
  [
    'addresses of managed servers',
    ['name=vllm', 'mode=managed', 'server.addresses=[http://a]'],
    'server.addresses',
    /mode server only/,
  ],
  [
    'arguments of foreign servers',
    ['name=vllm', 'mode=server', 'server.addresses=[http://a]', 'server.args=[-x]'],
    'server.args',
    /managed only/,
  ],
  [
    'weights that TGI cannot take',
    ['name=tgi', 'mode=server', 'server.addresses=[http://a]'],
    'mode',
    /TGI takes no weights/,
  ],
  [
    'a key that is not set',
    ['name=vllm', 'mode=managed', 'server.api_key_env=TROUPE_NO_SUCH_KEY'],
    'server.api_key_env',
    /is not set/,
  ],
  [
    'a key that no header can hold',
    ['name=vllm', 'mode=server', 'server.addresses=[http://a]', 'server.api_key_env=BROKEN_SERVER_KEY'],
    'server.api_key_env',
    /BROKEN_SERVER_KEY has characters .*line break/,
  ],
  ['an engine that nobody knows', ['name=vlm'], 'name', /native, vllm, sglang/],
];

beforeAll(() => {
  process.env['BROKEN_SERVER_KEY'] = 'secret\n';
});
afterAll(() => {
  delete process.env['BROKEN_SERVER_KEY'];
});

test.each(REFUSED)('%s', (_, overrides, key, message) => {
  const error = configError(() => load(...overrides));
  expect(error.path).toBe(`${ROLLOUT}.${key}`);
  expect(error.message).toMatch(message);
});
