import { badOption, choiceOption, countOption, numberOption, requireOptions } from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import { Batch } from '../batch/batch';
import { requireBatch } from '../batch/require_batch';
import { checkVocabulary, Tokenizer } from '../data/tokenizer';
import type { EngineOptions } from '../engine/engine_options';
import { responseColumns } from '../engine/response_columns';
import { RoleEngine } from '../engine/role_engine';
import { TroupeError } from '../errors';
import type { EngineArgs } from '../worker/protocol';
import { retemplated } from './retemplate';

export interface RewardModelOptions extends Omit<EngineOptions, 'optim' | 'gradientCheckpointing'> {
  /**
   * Directory of the tokenizer that the token ids of batches belong to. Given: each response is decoded with it, put through
   * the reward model's chat template after the column `rawPrompt` (messages, or text), and tokenized anew. Default: the
   * reward model has the same tokenizer, and reads the ids as they are.
   */
  inputTokenizer?: string | null;
  /** Directory of the reward model's tokenizer; used with `inputTokenizer` only. Default: `model`. */
  tokenizer?: string | null;
  /** Longest sequence, prompt and response, in tokens. Default: what the model's positions and the packing capacity allow. */
  maxLength?: number | null;
  /** A longer sequence: an error, or it loses tokens at that end. error */
  truncation?: 'error' | 'left' | 'right';
}

/** Where the rewards of a batch come from besides reward functions; what the trainer needs of a {@link RewardModel}. */
export type RewardModelEngine = Pick<RewardModel, 'score'>;

interface Sequence {
  tokens: Int32Array;
  promptLength: number;
}

/** Where it does not matter which tokens are the prompt. */
const whole = (tokens: Int32Array): Sequence => ({ tokens, promptLength: tokens.length });

/**
 * A reward model: a token-classification directory (`score.weight` [1, H], optional bias), for inference only. The score of a
 * sequence is the head's output at its last token, as in verl (up to v0.7.0).
 */
export class RewardModel {
  private constructor(
    private readonly engine: RoleEngine,
    /** Longest sequence in tokens. */
    readonly maxLength: number,
    private readonly truncation: 'error' | 'left' | 'right',
    private readonly tokenizers: { input: Tokenizer; own: Tokenizer } | null,
  ) {}

  /** @throws TroupeError INVALID_MODEL when the directory holds no such model, naming what is missing */
  static async create(o: RewardModelOptions): Promise<RewardModel> {
    const where = 'reward_model options';
    requireOptions(where, o);
    const { inputTokenizer = null, tokenizer = null, maxLength, truncation, ...engineOptions } = o;
    const cut = choiceOption(where, 'truncation', truncation, ['error', 'left', 'right'], 'error');
    const limit = numberOption(where, 'maxLength', maxLength ?? undefined, Number.MAX_SAFE_INTEGER, {
      integer: true,
      min: 1,
    });
    const tokenizers =
      inputTokenizer === null
        ? null
        : { input: Tokenizer.load(inputTokenizer), own: Tokenizer.load(tokenizer ?? o.model) };
    // One place more than the tokens: see score().
    const capacity =
      o.maxTokensPerMicroBatch === undefined
        ? undefined
        : countOption(where, 'maxTokensPerMicroBatch', o.maxTokensPerMicroBatch, RUN_LIMITS.batchTokens - 1);
    const engine = await RoleEngine.create(
      {
        ...engineOptions,
        optim: null,
        ...(capacity === undefined ? {} : { maxTokensPerMicroBatch: capacity + 1 }),
      },
      'reward_model',
    );
    try {
      const { vocabSize, maxPositions } = engine.model.config;
      if (tokenizers) checkVocabulary(tokenizers.own, vocabSize, o.model);
      const longest = Math.min(maxPositions, engine.options.maxTokens) - 1;
      return new RewardModel(engine, Math.min(limit, longest), cut, tokenizers);
    } catch (error) {
      await engine.close();
      throw error;
    }
  }

  /**
   * scores [B]: one number per sequence, which depends neither on its neighbours nor on their order, bitwise.
   * @throws TroupeError INVALID_ARGUMENT for a sequence that is too long (`truncation` 'error') or has unknown token ids;
   * NON_FINITE when a score is not a finite number
   */
  async score(b: Batch): Promise<Float32Array> {
    requireBatch('reward_model score', b);
    this.engine.checkOpen();
    if (b.size === 0) return new Float32Array(0);
    const sequences = this.sequences(b).map((sequence, i) => this.fit(sequence, i));
    // The engine gives the head's output at the token before each response token: one more of them, which no other sees,
    // stands after the last. Prompts stay prompts, because the engine computes one that several responses share once.
    const extended = Batch.fromSequences(
      sequences.map(({ tokens, promptLength }) => tokens.subarray(0, promptLength)),
      sequences.map(({ tokens, promptLength }) => [...tokens.subarray(promptLength), 0]),
    );
    this.engine.checkSequences('reward_model score', extended);
    const { values } = await responseColumns(
      this.engine,
      extended,
      'computeValues',
      ['values'],
      (tokens): EngineArgs<'computeValues'> => [tokens],
      (values) => ({ values }),
    );
    const scores = Float32Array.from(
      sequences,
      (_, i) => values[(extended.responseOffsets[i + 1] as number) - 1] as number,
    );
    const bad = scores.findIndex((score) => !Number.isFinite(score));
    if (bad >= 0) {
      throw new TroupeError(
        'NON_FINITE',
        `[reward_model] sequence ${bad}: expected a finite score but got ${scores[bad]}: is the model in ${this.engine.model.dir} damaged?`,
      );
    }
    return scores;
  }

  /** Idempotent. */
  close(): Promise<void> {
    return this.engine.close();
  }

  private sequences(b: Batch): Sequence[] {
    const rows = Array.from({ length: b.size }, (_, i) => i);
    if (this.tokenizers === null) {
      const tokens = b.get('tokens');
      return rows.map((i) => ({
        tokens: tokens.slice(b.seqOffsets[i], b.seqOffsets[i + 1]),
        promptLength: b.promptLens[i] as number,
      }));
    }
    const { input, own } = this.tokenizers;
    if (!b.has('rawPrompt')) {
      throw badOption(
        'reward_model score',
        "the batch has no column 'rawPrompt', the prompts as messages, which inputTokenizer needs: add it with batch.with({ rawPrompt: ... })",
      );
    }
    return rows.map((i) => {
      const response = input.decode(b.response(i), { skipSpecialTokens: true });
      return whole(retemplated(b.row('rawPrompt', i), response, own, `reward_model, sequence ${i}`));
    });
  }

  private fit(sequence: Sequence, i: number): Sequence {
    const limit = this.maxLength;
    const { tokens } = sequence;
    if (tokens.length === 0) throw badOption('reward_model score', `sequence ${i} has no token`);
    if (tokens.length <= limit) return sequence;
    if (this.truncation === 'left') return whole(tokens.slice(tokens.length - limit));
    if (this.truncation === 'right') return whole(tokens.slice(0, limit));
    throw badOption(
      'reward_model score',
      `sequence ${i} has ${tokens.length} tokens, more than the ${limit} that the reward model takes: raise ` +
        'maxTokensPerMicroBatch (reward.reward_model.forward_max_token_len_per_gpu) or maxLength (reward.reward_model.max_length) ' +
        'where the model has more positions, or set truncation to left or right',
    );
  }
}
