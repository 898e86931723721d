import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { endTokenIds } from '../../ts/data/end_tokens';
import { TextThreads } from '../../ts/data/text_threads';
import { TokenBytes } from '../../ts/data/token_bytes';
import { Tokenizer } from '../../ts/data/tokenizer';
import type { CallRecord } from '../../ts/serve/call/model_call';
import type { ServedModel } from '../../ts/serve/call/served_model';
import { GrammarThreads, grammarVocabulary } from '../../ts/serve/grammar/grammar_threads';
import { answerChat } from '../../ts/serve/openai/chat';
import { familyOf } from '../../ts/serve/tools/families';
import { HARMONY_TAGS } from '../../ts/serve/tools/harmony';
import { HARMONY_TEMPLATE } from '../helpers/harmony_template';
import { OWN_PRODUCTS } from '../helpers/processor';
import { maxDifference } from '../helpers/safetensors';
import { chatTokenizer } from '../unit/agent/chat_world';

// From a model in MXFP4 to a call of a tool, with our own engine: it may say what the grammar allows, and what it says is learnt from.

const dir = mkdtempSync(path.join(tmpdir(), 'troupe-gpt-oss-'));
let actor: Actor;
let model: ServedModel;
let grammars: GrammarThreads;

beforeAll(async () => {
  cpSync(path.join(__dirname, '../fixtures/mxfp4/actor'), dir, { recursive: true });
  for (const file of ['tokenizer.json', 'tokenizer_config.json'])
    cpSync(
      path.join(chatTokenizer(HARMONY_TEMPLATE, [...HARMONY_TAGS]).directory, file),
      path.join(dir, file),
    );
  const tokenizer = Tokenizer.load(dir);
  const eosTokenIds = endTokenIds([], tokenizer);
  actor = await Actor.create({
    model: dir,
    dtype: 'float32',
    optim: { lr: 1e-3 },
    maxTokensPerMicroBatch: 1024,
    rollout: { eosTokenIds },
  });
  const bytes = new TokenBytes(tokenizer);
  const vocabSize = 320;
  grammars = new GrammarThreads(
    grammarVocabulary(tokenizer, bytes, { vocabSize, stopTokenIds: eosTokenIds, tags: HARMONY_TAGS }),
  );
  const family = familyOf(tokenizer.toolTemplate);
  const engine = actor.rollout;
  const texts = new TextThreads(tokenizer);
  const parts = { vocabSize, eosTokenIds, tokenizer, bytes, texts, family, grammars, images: null };
  model = { name: 'm', created: 0, engine, ...parts };
});
afterAll(async () => {
  await grammars.close();
  await actor.close();
  rmSync(dir, { recursive: true, force: true });
});

test('a call that must be made: read, recorded, and learnt from', async () => {
  const records: CallRecord[] = [];
  const parameters = {
    type: 'object',
    properties: { sign: { enum: ['+', '-'] }, odd: { type: 'boolean' } },
    required: ['sign', 'odd'],
    additionalProperties: false,
  };
  const body = {
    messages: [{ role: 'user', content: 'go' }],
    tools: [{ type: 'function', function: { name: 'tell', parameters } }],
    tool_choice: 'required',
    seed: 5,
  };
  const answer = await answerChat(model, body, new AbortController().signal, {
    onRecord: (record) => records.push(record),
  });
  if (!('body' in answer)) throw new Error('a stream');
  const [choice] = (answer.body as { choices: { message: Record<string, unknown>; finish_reason: string }[] })
    .choices;
  expect(choice?.finish_reason).toBe('tool_calls');
  const calls = choice?.message?.['tool_calls'] as { function: { name: string; arguments: string } }[];
  const [call] = calls;
  expect(call?.function.name).toBe('tell');
  const given = JSON.parse(call?.function.arguments ?? '');
  expect(Object.keys(given)).toEqual(['sign', 'odd']);
  expect(['+', '-']).toContain(given.sign);

  const { promptIds, tokens, logProbs } = records[0] as CallRecord;
  const text = model.tokenizer.decode(tokens, { skipSpecialTokens: false });
  expect(text).toMatch(
    /^<\|channel\|>commentary to=functions\.tell <\|constrain\|>json<\|message\|>\{[\s\S]*\}<\|(call|return)\|>$/,
  );
  const batch = Batch.fromSequences([Int32Array.from(promptIds)], [tokens]);
  const { logProbs: own } = await actor.computeLogProb(batch);
  if (OWN_PRODUCTS) expect(own).toEqual(logProbs);
  else expect(maxDifference(own, logProbs)).toBeLessThan(1e-4);
  const metrics = await actor.updatePolicy(
    batch.with({ oldLogProbs: own, advantages: new Float32Array(tokens.length).fill(1) }),
  );
  expect(metrics['actor/grad_norm']).toBeGreaterThan(0);
});
