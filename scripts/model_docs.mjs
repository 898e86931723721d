// Writes the table of docs/models.md from the families that the code knows: node scripts/model_docs.mjs, after npm run build.
// With --check it writes nothing and fails when the table is another one.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeOrCheck } from './generated_page.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');

/** Models of a family that people train. A family without an entry here stops the script: say what it is for. */
const EXAMPLES = {
  llama: 'Llama 2, 3, 3.1, 3.2; SmolLM 2; DeepSeek-R1-Distill-Llama',
  arcee: 'AFM-4.5B',
  mistral: 'Mistral 7B, Mistral NeMo, Mistral Small 3; 3.1, 3.2 ([the text part](#the-text-part-of-a-model))',
  ministral3: 'Ministral 3: 3B, 8B, 14B ([the text part](#the-text-part-of-a-model))',
  qwen2: 'Qwen 2, Qwen 2.5, Qwen2.5-Math, Qwen2.5-Coder; DeepSeek-R1-Distill-Qwen',
  qwen3: 'Qwen 3, dense',
  mimo: 'MiMo-7B',
  seed_oss: 'Seed-OSS-36B',
  gemma: 'Gemma, CodeGemma',
  gemma2: 'Gemma 2',
  gemma3_text: 'Gemma 3: 270M, 1B, the text part of the others',
  gemma4_text: 'Gemma 4: the text part of 31B, 26B-A4B, E2B, E4B ([its layers](#gemma-4))',
  smollm3: 'SmolLM3',
  granite: 'Granite 3.0, 3.1, 3.2, 3.3: 2B, 8B',
  granitemoe: 'Granite 3.0, 3.1: 1B-A400M, 3B-A800M; PowerMoE-3B',
  granitemoeshared: 'moe-7b-1b-active-shared-experts',
  granitemoehybrid: 'Granite 4.0: h-350m, h-1b, h-micro, h-tiny, h-small, and those without h',
  glm: 'GLM-4-9B, GLM-4-9B-Chat, as `-hf`',
  glm4: 'GLM-4-0414 9B, 32B; GLM-Z1',
  ernie4_5: 'ERNIE-4.5-0.3B',
  exaone: 'EXAONE 3.0, 3.5: 2.4B, 7.8B, 32B; EXAONE Deep',
  exaone4: 'EXAONE 4.0: 1.2B, 32B',
  apertus: 'Apertus 8B, 70B',
  cwm: 'CWM, of code',
  olmo2: 'OLMo 2: 1B, 7B, 13B, 32B, and what was trained from them',
  olmo3: 'OLMo 3: 7B, 32B; Base, Think, Instruct, RL-Zero',
  olmo_hybrid: 'OLMo Hybrid 7B: Base, Instruct, Think ([its positions](#olmo-hybrid))',
  youtu: 'Youtu-LLM-2B',
  lfm2: 'LFM2: 350M, 700M, 1.2B, 2.6B; LFM2.5 1.2B ([short convolutions](#lfm2))',
  phi3: 'Phi-3, Phi-3.5, Phi-4, Phi-4-mini',
  mixtral: 'Mixtral 8x7B, 8x22B',
  qwen2_moe: 'Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B',
  qwen3_moe: 'Qwen3-30B-A3B, Qwen3-235B-A22B',
  qwen3_next: 'Qwen3-Next-80B-A3B',
  qwen3_5_text:
    'Qwen3.5, dense: 0.8B, 2B, 4B, 9B, 27B; Qwen3.6-27B ([the language model](#linear-attention))',
  qwen3_5_moe_text:
    'Qwen3.5-35B-A3B, 122B-A10B, 397B-A17B; Qwen3.6-35B-A3B ([the language model](#linear-attention))',
  glm4_moe: 'GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7',
  lfm2_moe: 'LFM2-8B-A1B ([short convolutions](#lfm2))',
  mellum: 'Mellum 2 12B-A2.5B',
  dots1: 'dots.llm1',
  solar_open: 'Solar-Open-100B',
  olmoe: 'OLMoE-1B-7B',
  ernie4_5_moe: 'ERNIE-4.5-21B-A3B, 300B-A47B',
  minimax_m2: 'MiniMax-M2 ([FP8](#fp8))',
  hy_v3: 'Hy3',
  exaone_moe: 'K-EXAONE',
  afmoe: 'Trinity Nano, Mini, Large',
  nemotron_h:
    'Nemotron 3 Nano 30B-A3B, Super 120B-A12B; Nemotron Nano 9B v2, Nemotron-H ([blocks](#nemotron-h))',
  deepseek_v2: 'DeepSeek-V2, V2-Lite, V2.5; DeepSeek-Coder-V2',
  deepseek_v3: 'DeepSeek-V3, V3.1, R1; Moonlight-16B-A3B',
  kimi_k2: 'Kimi K2',
  glm4_moe_lite: 'GLM-4.7-Flash',
  gpt_oss: 'gpt-oss-20b, gpt-oss-120b ([as published, in MXFP4](#gpt-oss))',
  qwen2_vl: 'Qwen2-VL 2B, 7B, 72B; QVQ-72B ([images](#images))',
  qwen2_5_vl: 'Qwen2.5-VL 3B, 7B, 32B, 72B ([images](#images))',
  qwen3_vl: 'Qwen3-VL 2B, 4B, 8B, 32B ([images](#images))',
  qwen3_vl_moe: 'Qwen3-VL-30B-A3B, 235B-A22B ([images](#images))',
  glm4v: 'GLM-4.1V-9B, GLM-4.6V-Flash ([images](#images))',
  glm4v_moe: 'GLM-4.5V, GLM-4.6V ([images](#images))',
  qwen3_5: 'the dense Qwen3.5 and 3.6 [with their images](#images)',
  qwen3_5_moe: 'the mixtures of Qwen3.5 and 3.6 [with their images](#images)',
  gpt2: 'GPT-2',
};

function modelTable() {
  const require = createRequire(import.meta.url);
  const { FAMILIES, schemas } = require('../dist/model/hf_schema.js');
  const rows = FAMILIES.map((family) => {
    if (!EXAMPLES[family]) throw new Error(`scripts/model_docs.mjs names no models of the family ${family}`);
    // Of a model with a tower for images, those of its decoder.
    const { shape } = schemas[family];
    const decoder = shape.text_config?.shape ?? shape;
    const keys = Object.keys(decoder);
    const mayHave = (key) => decoder[key].safeParse(true).success;
    const traits = [
      keys.some((key) => /experts/.test(key)) ? 'mixture of experts' : 'dense',
      ...(keys.includes('linear_num_key_heads') ? ['linear attention (gated delta rule)'] : []),
      ...(keys.some((key) => /^(ssm_state_size|mamba_d_state)$/.test(key))
        ? ['linear attention (Mamba 2)']
        : []),
      ...(keys.includes('conv_L_cache') ? ['short convolutions'] : []),
      ...(keys.includes('kv_lora_rank') ? ['latent attention'] : []),
      ...(keys.includes('routed_scaling_factor')
        ? [`DeepSeek-V${keys.includes('topk_method') ? 2 : 3}'s router`]
        : []),
      ...(keys.includes('swiglu_limit') ? ['sinks of attention'] : []),
      ...(keys.some((key) => /shared_expert/.test(key)) ? ['a shared expert'] : []),
      ...(keys.includes('sliding_window') ? ['sliding windows'] : []),
      ...(keys.includes('attn_logit_softcapping') ? ['soft caps'] : []),
      ...(keys.some((key) => /^(attention|use|conv)_bias$/.test(key) && mayHave(key))
        ? ['optional biases']
        : []),
      ...(shape.vision_config ? ['a tower for images'] : []),
    ];
    return `| \`${family}\` | ${traits.join(', ')} | ${EXAMPLES[family]} |`;
  });
  return ['| `model_type` | | for example |', '| --- | --- | --- |', ...rows].join('\n');
}

const [BEGIN, END] = ['<!-- begin families -->', '<!-- end families -->'];

const page = path.join(root, 'docs', 'models.md');
const text = readFileSync(page, 'utf8');
writeOrCheck(page, `${text.split(BEGIN)[0]}${BEGIN}\n${modelTable()}\n${END}${text.split(END)[1]}`);
