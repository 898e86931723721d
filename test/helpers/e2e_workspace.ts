import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// What a run of a few seconds needs: a decoder of 16 thousand parameters with a tokenizer, prompts, a reward and a
// configuration, in a temporary directory.

export interface NamedTensor {
  name: string;
  shape: number[];
  data: Float32Array;
}

const HIDDEN = 32;
const INTERMEDIATE = 64;
const LAYERS = 2;
const HEADS = 4;
const KV_HEADS = 2;
const HEAD_DIM = HIDDEN / HEADS;
const EOS = 1;
/** Of the example's tokenizer: <pad>, <eos>, the digits, and + - =. */
export const VOCABULARY = 15;

export const MODEL_CONFIG: Readonly<Record<string, unknown>> = {
  architectures: ['LlamaForCausalLM'],
  model_type: 'llama',
  vocab_size: VOCABULARY,
  hidden_size: HIDDEN,
  intermediate_size: INTERMEDIATE,
  num_hidden_layers: LAYERS,
  num_attention_heads: HEADS,
  num_key_value_heads: KV_HEADS,
  hidden_act: 'silu',
  max_position_embeddings: 64,
  rms_norm_eps: 1e-6,
  rope_theta: 100,
  tie_word_embeddings: true,
  eos_token_id: EOS,
  torch_dtype: 'float32',
};

const shapes = (): [string, number[]][] => {
  const all: [string, number[]][] = [['model.embed_tokens.weight', [VOCABULARY, HIDDEN]]];
  for (let i = 0; i < LAYERS; i++) {
    const layer = `model.layers.${i}`;
    all.push(
      [`${layer}.input_layernorm.weight`, [HIDDEN]],
      [`${layer}.self_attn.q_proj.weight`, [HEADS * HEAD_DIM, HIDDEN]],
      [`${layer}.self_attn.k_proj.weight`, [KV_HEADS * HEAD_DIM, HIDDEN]],
      [`${layer}.self_attn.v_proj.weight`, [KV_HEADS * HEAD_DIM, HIDDEN]],
      [`${layer}.self_attn.o_proj.weight`, [HIDDEN, HEADS * HEAD_DIM]],
      [`${layer}.post_attention_layernorm.weight`, [HIDDEN]],
      [`${layer}.mlp.gate_proj.weight`, [INTERMEDIATE, HIDDEN]],
      [`${layer}.mlp.up_proj.weight`, [INTERMEDIATE, HIDDEN]],
      [`${layer}.mlp.down_proj.weight`, [HIDDEN, INTERMEDIATE]],
    );
  }
  return [...all, ['model.norm.weight', [HIDDEN]]];
};

/** The tensors of the model, the same every time; matrices are pseudo-random, norms are ones. */
export function modelTensors(): NamedTensor[] {
  let state = 1;
  const uniform = (): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32 - 0.5;
  };
  return shapes().map(([name, shape]) => {
    const data = new Float32Array(shape.reduce((product, size) => product * size, 1)).fill(1);
    if (shape.length === 2) for (let i = 0; i < data.length; i++) data[i] = 0.6 * uniform();
    return { name, shape, data };
  });
}

/** The same decoder with a reward model's head. */
export function rewardTensors(): NamedTensor[] {
  const data = Float32Array.from({ length: HIDDEN }, (_, i) => Math.sin(1 + 3 * i));
  return [...modelTensors(), { name: 'score.weight', shape: [1, HIDDEN], data }];
}

/** Written without the code under test, so that files may also be wrong. */
export function writeSafetensors(
  file: string,
  tensors: readonly (Omit<NamedTensor, 'data'> & { data: ArrayBufferView; dtype?: string })[],
): void {
  const header: Record<string, unknown> = {};
  let end = 0;
  for (const { name, shape, data, dtype = 'F32' } of tensors) {
    header[name] = { dtype, shape, data_offsets: [end, end + data.byteLength] };
    end += data.byteLength;
  }
  const json = JSON.stringify(header);
  const padded = Buffer.from(json.padEnd(Math.ceil(json.length / 8) * 8, ' '));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  const bytes = tensors.map(({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  writeFileSync(file, Buffer.concat([length, padded, ...bytes]));
}

export interface ModelChanges {
  config?: Record<string, unknown>;
  tensors?: NamedTensor[];
}

export async function writeModel(directory: string, changes: ModelChanges = {}): Promise<string> {
  mkdirSync(directory, { recursive: true });
  const module: string = '../../examples/arithmetic/tokenizer.mjs'; // untyped
  const { writeTokenizer } = await import(module);
  writeTokenizer(directory);
  writeFileSync(join(directory, 'config.json'), JSON.stringify({ ...MODEL_CONFIG, ...changes.config }));
  writeSafetensors(join(directory, 'model.safetensors'), changes.tensors ?? modelTensors());
  return directory;
}

/** `count` prompts "12+34=" in verl's schema. */
export function promptRows(count: number): Record<string, unknown>[] {
  return Array.from({ length: count }, (_, i) => {
    const [a, b] = [10 + ((i * 7) % 90), 10 + ((i * 31) % 90)];
    return {
      data_source: 'sums',
      prompt: `${a}+${b}=`,
      reward_model: { style: 'rule', ground_truth: String(a + b) },
      extra_info: { index: i },
    };
  });
}

/** The sums, for supervised fine-tuning. */
export function exampleRows(count: number): Record<string, unknown>[] {
  return promptRows(count).map(({ prompt, reward_model }) => ({
    prompt,
    response: (reward_model as { ground_truth: string }).ground_truth,
  }));
}

export function writeJsonLines(file: string, rows: readonly unknown[]): string {
  writeFileSync(file, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  return file;
}

// Gives every response some reward, so that even this model has something to learn: the share of 7s and a little for
// brevity. One line per response in `marks` tells a test how far the run is.
const REWARD = `const { appendFileSync } = require('node:fs');
const { join } = require('node:path');
exports.compute_score = ({ response }) => {
  appendFileSync(join(__dirname, 'marks'), 'x');
  return [...response].filter((c) => c === '7').length / 8 - response.length / 64;
};
`;

/** A reward with an accuracy that three of fifteen first characters have: often no response to a prompt has it, or each. */
const RARE_REWARD = `const quick = require('./reward.cjs').compute_score;
exports.compute_score = (sample) => ({ score: quick(sample), acc: /^[789]/.test(sample.response) });
`;

/** A reward that takes its time. */
const PATIENT_REWARD = `const quick = require('./reward.cjs').compute_score;
exports.compute_score = (sample) => new Promise((done) => setTimeout(done, 20_000, quick(sample)));
`;

/** Prompts per training step and responses per prompt. */
export const BATCH = { prompts: 4, n: 4 };
export const VALIDATION_PROMPTS = 3;

/** A temporary directory with everything that `troupe train` needs. */
export class Workspace {
  readonly path = mkdtempSync(join(tmpdir(), 'troupe-e2e-'));

  static async create(): Promise<Workspace> {
    const workspace = new Workspace();
    await writeModel(workspace.file('model'));
    writeJsonLines(workspace.file('train.jsonl'), promptRows(20));
    writeJsonLines(workspace.file('examples.jsonl'), exampleRows(20));
    writeJsonLines(workspace.file('val.jsonl'), promptRows(VALIDATION_PROMPTS));
    writeFileSync(workspace.file('reward.cjs'), REWARD);
    writeFileSync(workspace.file('rare.cjs'), RARE_REWARD);
    writeFileSync(workspace.file('patient.cjs'), PATIENT_REWARD);
    writeFileSync(workspace.file('train.yaml'), JSON.stringify(workspace.trainConfig(), null, 2));
    writeFileSync(workspace.file('sft.yaml'), JSON.stringify(workspace.sftConfig(), null, 2));
    return workspace;
  }

  file(name: string): string {
    return join(this.path, name);
  }

  remove(): void {
    rmSync(this.path, { recursive: true, force: true });
  }

  /** GRPO with a KL loss: 4 steps of 4 prompts x 4 responses, a checkpoint after each, validation after every second. */
  private trainConfig(): Record<string, unknown> {
    return {
      data: {
        train_files: this.file('train.jsonl'),
        val_files: this.file('val.jsonl'),
        train_batch_size: BATCH.prompts,
        max_prompt_length: 8,
        max_response_length: 8,
      },
      reward: { custom_reward_function: { path: this.file('reward.cjs') } },
      algorithm: { adv_estimator: 'grpo' },
      actor_rollout_ref: {
        model: { path: this.file('model'), enable_gradient_checkpointing: false },
        actor: {
          ppo_mini_batch_size: 2,
          ppo_max_token_len_per_gpu: 256,
          use_kl_loss: true,
          optim: { lr: 0.01, lr_warmup_steps: 2 },
        },
        rollout: { n: BATCH.n },
      },
      critic: { ppo_max_token_len_per_gpu: 256, optim: { lr: 0.01 } },
      trainer: {
        total_training_steps: 4,
        save_freq: 1,
        test_freq: 2,
        default_local_dir: this.file('run'),
        num_threads: 1,
        device: 'cpu',
        logger: ['console'],
      },
    };
  }

  /** Four steps of 4 examples, a checkpoint after each. */
  private sftConfig(): Record<string, unknown> {
    return {
      data: {
        train_files: this.file('examples.jsonl'),
        prompt_key: 'prompt',
        response_key: 'response',
        train_batch_size: 4,
        max_length: 16,
        max_token_len_per_gpu: 256,
      },
      model: { path: this.file('model') },
      optim: { lr: 0.01 },
      trainer: {
        total_training_steps: 4,
        save_freq: 1,
        default_local_dir: this.file('run'),
        num_threads: 1,
        device: 'cpu',
      },
    };
  }
}
