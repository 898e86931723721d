import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { validate } from '../../../ts/cli/validate';
import { FAMILIES, type Family } from '../../../ts/model/hf_schema';
import { visionModel } from '../../helpers/vision_model';
import { directory, fresh, write } from '../config/verl_command';

describe('troupe validate', () => {
  /** That small models have positions for. */
  const SHORT = ['data.max_prompt_length=64', 'data.max_response_length=64'];
  const check = async (keys: string): Promise<unknown> =>
    validate(
      write(`data: { train_files: a.parquet }\nactor_rollout_ref: { model: { path: ${keys} } }\n`, 'yaml'),
      SHORT,
    );
  const model = (type: string): string => {
    const dir = join(directory, `model${fresh()}`);
    mkdirSync(dir);
    writeFileSync(join(dir, 'config.json'), JSON.stringify({ model_type: type }));
    return dir;
  };

  it.each([
    ['OpenGVLab/InternVL3-8B', /needs images \(a vision-language model\)/],
    [
      '/data/MiniMax-M1-80k',
      /needs the model family MiniMax other than M2, which is not there \(judged by the name/,
    ],
    ['Qwen/Qwen3.7-30B', /needs the model family Qwen3.7 and later/],
    ['mistralai/Mistral-Large-3-675B-Instruct-2512', /needs the model family Mistral Large 3/],
    ['/data/Apertus-1.5-8B', /needs the model family Apertus 1.5/],
    ['baidu/ERNIE-5', /needs the model family of this name/],
    ['google/gemma-3n-E2B', /needs the model family Gemma 3n, and Gemma 4 other than/],
    ['XiaomiMiMo/MiMo-V2-Flash', /needs the model family MiMo-V2/],
    ['XiaomiMiMo/MiMo-VL-7B-RL', /needs images/],
    ['zai-org/glm-4v-9b', /needs the model family GLM other than/],
    ['deepseek-ai/deepseek-moe-16b-chat', /needs the model family DeepSeekMoE, DeepSeek-V3.2 and later/],
    ['deepseek-ai/DeepSeek-V3.2-Exp', /needs the model family DeepSeekMoE, DeepSeek-V3.2 and later/],
    ['moonshotai/Kimi-Linear-48B-A3B', /needs the model family Kimi Linear and K2.5/],
    ['moonshotai/Kimi-VL-A3B-Instruct', /needs images/],
    ['nvidia/Llama-3_3-Nemotron-Super-49B-v1', /needs the model family Nemotron other than/],
    ['zai-org/GLM-5', /needs the model family GLM other than/],
    ['zai-org/glm-4-9b-chat', /needs the model family GLM other than/],
    ['allenai/OLMo-7B-hf', /needs the model family of this name/],
    ['ibm-granite/granite-20b-code-instruct-8k', /needs the model family of this name/],
    ['ibm-granite/granite-vision-3.2-2b', /needs images/],
  ])('a model that is not there: %s', async (name, message) => {
    await expect(check(name)).rejects.toThrow(message);
  });

  it('images that are asked for, of a model whose language model alone is read', async () => {
    const asked = (policy: string, image = 'image_key: images, '): Promise<unknown> =>
      validate(
        write(
          `data: { ${image}train_files: a.parquet }\nactor_rollout_ref: { model: { path: ${policy} } }\n`,
          'yaml',
        ),
        ['algorithm.adv_estimator=grpo', ...SHORT],
      );
    const gemma = join(directory, `model${fresh()}`);
    mkdirSync(gemma);
    writeFileSync(join(gemma, 'config.json'), JSON.stringify({ model_type: 'gemma3', vision_config: {} }));
    const refused =
      /data\.image_key: needs images of this model, which are not there: of .* the language model alone is read/;
    await expect(asked('google/gemma-3-12b-it')).rejects.toThrow(refused);
    await expect(asked('mistralai/Ministral-3-14B-Reasoning-2512')).rejects.toThrow(refused);
    await expect(asked(gemma)).rejects.toThrow(refused);
    for (const kept of [
      asked('google/gemma-3-12b-it', ''),
      asked('Qwen/Qwen3.5-27B'),
      asked('Qwen/Qwen3-VL-8B-Instruct'),
      asked('Qwen/Qwen2-VL-7B-Instruct'),
      asked(visionModel('qwen2_vl').options.model),
      asked(visionModel('qwen2_5_vl').options.model),
      asked('Qwen/Qwen3-VL-30B-A3B-Instruct'),
      asked(visionModel('qwen3_vl').options.model),
      asked(visionModel('qwen3_vl_moe').options.model),
      asked('zai-org/GLM-4.1V-9B-Thinking'),
      asked(visionModel('glm4v').options.model),
      asked(visionModel('glm4v_moe').options.model),
      asked(visionModel('qwen3_5').options.model),
      asked(visionModel('qwen3_5_moe').options.model),
    ])
      await expect(kept).resolves.not.toThrow();
  });

  /** One of each family. */
  const NAMES: Record<Family, string> = {
    llama: 'meta-llama/Llama-3.1-8B-Instruct',
    mistral: 'mistralai/Mistral-7B-Instruct-v0.3',
    ministral3: 'mistralai/Ministral-3-8B-Instruct-2512',
    qwen2: 'Qwen/Qwen2.5-7B-Instruct',
    qwen3: 'Qwen/Qwen3-8B',
    mimo: 'XiaomiMiMo/MiMo-7B-Base',
    smollm3: 'HuggingFaceTB/SmolLM3-3B',
    seed_oss: 'ByteDance-Seed/Seed-OSS-36B-Instruct',
    gemma: 'google/gemma-7b-it',
    gemma2: 'google/gemma-2-9b-it',
    gemma3_text: 'google/gemma-3-270m-it',
    gemma4_text: 'google/gemma-4-31B-it',
    granite: 'ibm-granite/granite-3.3-2b-instruct',
    glm4: 'THUDM/GLM-4-9B-0414',
    ernie4_5: 'baidu/ERNIE-4.5-0.3B-PT',
    ernie4_5_moe: 'baidu/ERNIE-4.5-21B-A3B-PT',
    glm: 'THUDM/glm-4-9b-chat-hf',
    exaone: 'LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct',
    apertus: 'swiss-ai/Apertus-8B-Instruct-2509',
    exaone4: 'LGAI-EXAONE/EXAONE-4.0-32B',
    exaone_moe: 'LGAI-EXAONE/K-EXAONE-236B-A23B',
    afmoe: 'arcee-ai/Trinity-Mini',
    cwm: 'facebook/cwm',
    minimax_m2: 'MiniMaxAI/MiniMax-M2',
    hy_v3: 'tencent/Hy3-preview',
    arcee: 'arcee-ai/AFM-4.5B',
    solar_open: 'upstage/Solar-Open-100B',
    granitemoeshared: 'ibm-research/moe-7b-1b-active-shared-experts',
    granitemoehybrid: 'ibm-granite/granite-4.0-h-tiny',
    nemotron_h: 'nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16',
    olmoe: 'allenai/OLMoE-1B-7B-0924-Instruct',
    olmo2: 'allenai/OLMo-2-1124-7B',
    olmo3: 'allenai/Olmo-3-7B-Think',
    youtu: 'tencent/Youtu-LLM-2B',
    lfm2: 'LiquidAI/LFM2-1.2B',
    lfm2_moe: 'LiquidAI/LFM2-8B-A1B',
    mellum: 'JetBrains/Mellum2-12B-A2.5B-Base',
    olmo_hybrid: 'allenai/Olmo-Hybrid-Instruct-DPO-7B',
    phi3: 'microsoft/Phi-3.5-mini-instruct',
    mixtral: 'mistralai/Mixtral-8x7B-Instruct-v0.1',
    granitemoe: 'ibm-granite/granite-3.1-3b-a800m-instruct',
    qwen2_moe: 'Qwen/Qwen1.5-MoE-A2.7B',
    qwen3_moe: 'Qwen/Qwen3-30B-A3B',
    glm4_moe: 'zai-org/GLM-4.6',
    dots1: 'rednote-hilab/dots.llm1.inst',
    qwen3_next: 'Qwen/Qwen3-Next-80B-A3B-Instruct',
    qwen3_5_text: 'Qwen/Qwen3.5-9B',
    qwen3_5_moe_text: 'Qwen/Qwen3.5-122B-A10B',
    deepseek_v2: 'deepseek-ai/DeepSeek-V2-Lite-Chat',
    deepseek_v3: 'deepseek-ai/DeepSeek-V3.1',
    kimi_k2: 'moonshotai/Kimi-K2-Base',
    glm4_moe_lite: 'zai-org/GLM-4.7-Flash',
    gpt_oss: 'openai/gpt-oss-120b',
    qwen2_vl: 'Qwen/Qwen2-VL-2B-Instruct',
    qwen2_5_vl: 'Qwen/Qwen2.5-VL-3B-Instruct',
    qwen3_vl: 'Qwen/Qwen3-VL-4B-Instruct',
    qwen3_vl_moe: 'Qwen/Qwen3-VL-30B-A3B-Instruct',
    glm4v: 'THUDM/GLM-4.1V-9B-Thinking',
    glm4v_moe: 'zai-org/GLM-4.5V',
    qwen3_5: 'Qwen/Qwen3.5-27B',
    qwen3_5_moe: 'Qwen/Qwen3.5-397B-A17B',
    gpt2: 'openai-community/gpt2',
  };

  it.each([
    ...FAMILIES.map((family) => NAMES[family]),
    'mistralai/Mistral-Small-24B-Instruct-2501',
    'mistralai/Mistral-Small-3.2-24B-Instruct-2506',
    'THUDM/GLM-4-32B-Base-0414',
    'THUDM/GLM-Z1-32B-0414',
    'allenai/Olmo-3.1-32B-Think',
    'ibm-granite/granite-3.0-8b-base',
    '/data/Qwen2-VL-72B-Instruct',
    'Qwen/QVQ-72B-Preview',
    'Qwen/Qwen2.5-VL-7B-Instruct',
    'Qwen/Qwen3-VL-8B-Instruct',
    '/data/Qwen3-VL-235B-A22B-Thinking',
    'google/gemma-1.1-7b-it',
    'google/gemma-3-1b-it',
    'microsoft/Phi-4-mini-instruct',
    'ByteDance-Seed/Seed-OSS-36B',
    'XiaomiMiMo/MiMo-7B-RL',
    'a/GLM-4.5-Air-Base',
    'zai-org/GLM-4.6V-Flash',
    'deepseek-ai/DeepSeek-V3-0324',
    'deepseek-ai/DeepSeek-R1',
    'deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct',
    'deepseek-ai/DeepSeek-V2.5-1210',
    'zai-org/GLM-4.7',
    'nvidia/NVIDIA-Nemotron-Nano-9B-v2',
    'nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16',
    '/data/Nemotron-H-8B-Base-8K',
    'moonshotai/Moonlight-16B-A3B',
    'moonshotai/Kimi-K2-Instruct',
    'lmsys/gpt-oss-20b-bf16',
    '/data/Qwen3-Next-80B-A3B-Instruct',
    'Qwen/Qwen3.5-4B',
    'Qwen/Qwen3.5-35B-A3B',
    'Qwen/Qwen3.6-27B',
    'Qwen/Qwen3.6-35B-A3B',
    'LGAI-EXAONE/EXAONE-Deep-7.8B',
  ])('a model that is there, by its name: %s', async (name) => {
    await expect(check(name)).resolves.toBeDefined();
  });

  it('asks config.json first', async () => {
    await expect(check(model('mamba2'))).rejects.toThrow(/needs the model family mamba2, which is not there/);
    await expect(check(visionModel('qwen3_5').options.model)).resolves.toBeDefined();
  });

  it.each([
    [
      'reward: { reward_manager: { source: importlib, module: { path: r.py } } }',
      /path: needs reward managers in Python, which are not there: /,
    ],
    [
      'custom_reward_function: { path: ./r.py }\nreward_model: { enable: true }',
      /path: needs rewards that ask a generative reward model, which are not there: .*\.\/r\.py/,
    ],
  ])('of rewards in Python: %s', async (reward, message) => {
    const file = write(
      `data: { train_files: a.parquet }\nactor_rollout_ref: { model: { path: ./m } }\n${reward}\n`,
      'yaml',
    );
    await expect(validate(file, [])).rejects.toThrow(message);
  });

  it('reports what is missing and what is wrong at once', async () => {
    const file = write(
      'data: { train_files: a.parquet, train_batch_size: 100 }\nactor_rollout_ref: { model: { path: MiniMaxAI/MiniMax-M1-80k } }\n' +
        'trainer: { nnodes: 2, launcher: { type: local }, logger: [swanlab] }\n',
      'yaml',
    );
    const error: unknown = await validate(file, []).catch((caught: unknown) => caught);
    const lines = (error as Error).message.split('\n').map((line) => line.slice(0, line.indexOf(':')));
    expect(lines).toEqual([
      'trainer.logger',
      'trainer.nnodes',
      'actor_rollout_ref.actor.ppo_mini_batch_size',
      'critic.ppo_mini_batch_size',
      'actor_rollout_ref.model.path',
    ]);
  });
});
