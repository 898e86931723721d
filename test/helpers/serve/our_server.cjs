// Our engine behind the protocol of SGLang or TGI: node our_server.cjs MARK KIND and the arguments of such a server. It dies of SIGKILL once, in
// the middle of a request, as long as there is no file MARK: of the DIE_AT-th (12) that the weights of the directory DIE_IN (any) are asked.
const { existsSync, writeFileSync } = require('node:fs');
const { createServer } = require('node:http');
const path = require('node:path');
const { Actor } = require('../../../dist/index.js');
const { Tokenizer } = require('../../../dist/data/tokenizer.js');

const [mark, kind, ...args] = process.argv.slice(2);
const of = (name) => args[args.indexOf(name) + 1];
const directory = of(kind === 'sglang' ? '--model-path' : '--model-id');
const { DIE_AT = '12', DIE_IN } = process.env;
const load = (model) => Actor.create({ model, optim: null, maxTokensPerMicroBatch: 4096, device: 'cpu' });

const actor = load(directory);
let version = 'default';
let loaded = path.basename(directory);
let asked = 0;

async function sample(promptIds, sampling, seed) {
  asked++;
  if (asked === Number(DIE_AT) && (DIE_IN ?? loaded) === loaded && !existsSync(mark)) {
    writeFileSync(mark, 'died');
    process.kill(process.pid, 'SIGKILL');
  }
  const batch = await (await actor).generate([promptIds], { ...sampling, seed });
  return { tokens: [...batch.response(0)], logProbs: [...batch.get('rolloutLogProbs')] };
}

const routes = {
  '/health': () => actor.then(() => ({})),
  '/health_generate': () => actor.then(() => ({})),
  '/server_info': async () => ({ context_length: Number(of('--context-length')) }),
  '/info': async () => ({ max_total_tokens: Number(of('--max-total-tokens')) }),
  '/pause_generation': async () => ({ message: 'Generation paused successfully.', status: 'ok' }),
  '/continue_generation': async () => ({ message: 'Generation continued successfully.', status: 'ok' }),
  '/abort_request': async () => '',
  '/update_weights_from_disk': async ({ model_path, weight_version }) => {
    await (await actor).rollout.updateWeights(
      { kind: 'directory', path: model_path },
      Number(weight_version),
    );
    version = weight_version;
    loaded = path.basename(model_path);
    asked = 0;
    await actor;
    return { success: true, message: 'Succeeded to update model weights.', num_paused_requests: 0 };
  },
  '/generate': async ({ input_ids, sampling_params: s }) => {
    // As SGLang: the model's end tokens beside those of the request, or none at all.
    const stopTokenIds = s.ignore_eos ? [] : [...s.stop_token_ids, ...(await actor).eosTokenIds];
    const sampling = { maxNewTokens: s.max_new_tokens, temperature: s.temperature, stopTokenIds };
    const { tokens, logProbs } = await sample(input_ids, sampling, s.sampling_seed ?? 0);
    const stopped = stopTokenIds.includes(tokens.at(-1));
    return {
      text: '',
      output_ids: tokens,
      meta_info: {
        finish_reason: stopped
          ? { type: 'stop', matched: tokens.at(-1) }
          : { type: 'length', length: tokens.length },
        output_token_logprobs: tokens.map((token, i) => [logProbs[i], token, null]),
        cached_tokens: 0,
        weight_version: version,
      },
    };
  },
};

async function stream({ inputs, parameters: p }, response) {
  const model = await actor;
  const tokenizer = Tokenizer.load(directory);
  const sampling = { maxNewTokens: p.max_new_tokens, temperature: p.do_sample ? (p.temperature ?? 1) : 0 };
  const { tokens, logProbs } = await sample(tokenizer.encode(inputs, true), sampling, p.seed ?? 0);
  tokens.forEach((id, i) => {
    const last = i === tokens.length - 1;
    const reason = model.eosTokenIds.includes(id) ? 'eos_token' : 'length';
    const details = {
      finish_reason: reason,
      generated_tokens: tokens.length,
      seed: p.seed ?? null,
      input_length: 1,
    };
    const event = {
      index: i + 1,
      token: { id, text: '', logprob: logProbs[i], special: false },
      generated_text: last ? '' : null,
      details: last ? details : null,
    };
    response.write(`data: ${JSON.stringify(event)}\n\n`);
  });
  response.end();
}

createServer(async (request, response) => {
  let text = '';
  for await (const chunk of request) text += chunk;
  const body = text === '' ? {} : JSON.parse(text);
  if (request.url === '/generate_stream') return await stream(body, response);
  const answer = await routes[request.url]?.(body);
  response.statusCode = answer === undefined ? 404 : 200;
  response.end(answer === '' ? '' : JSON.stringify(answer ?? {}));
}).listen(Number(of('--port')), of(kind === 'sglang' ? '--host' : '--hostname'));

process.on('SIGTERM', async () => {
  await (await actor).close();
  process.exit(0);
});
console.log(path.basename(directory));
