import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { FAMILIES, isFamily } from '../../model/hf_schema';
import { hasOtherParts, textPart } from '../../model/text_part';
import { getPath, isTree, type Tree } from '../reading/tree';
import { missing } from '../schema/field';

// Features that a configuration asks for by more than one key's value and that Troupe lacks, so that `validate` says so before
// `train` does.

/** A feature that is missing. */
export interface MissingFeature {
  path: string;
  message: string;
}

const MODELS = [
  'actor_rollout_ref.model.path',
  'critic.model.path',
  'reward.reward_model.model_path',
  'model.path',
];

const TEACHERS = 'distillation.teacher_models';

/** Where modules of reward managers are given, also under verl's older names. */
const MANAGER_MODULES = ['reward.reward_manager.module.path', 'reward_model.reward_loop_module_path'];

/** Also under verl's older names. */
const FUNCTIONS = ['reward.custom_reward_function.path', 'custom_reward_function.path'];
const REWARD_MODELS = ['reward.reward_model.enable', 'reward_model.enable'];

/** @param config as it is in the file, or resolved */
export function missingFeatures(config: Tree): MissingFeature[] {
  const found: MissingFeature[] = [];
  const teachers = getPath(config, TEACHERS);
  const models = isTree(teachers)
    ? Object.keys(teachers).map((name) => `${TEACHERS}.${name}.model_path`)
    : [];
  for (const key of [...MODELS, ...models]) {
    const model = getPath(config, key);
    const why = typeof model === 'string' ? missingModel(model) : null;
    if (why !== null) found.push({ path: key, message: why });
  }
  const images = imagesOfText(config);
  if (images !== null) found.push(images);
  for (const key of MANAGER_MODULES) {
    const module = getPath(config, key);
    if (typeof module !== 'string' || !module.endsWith('.py')) continue;
    const message = `${missing('reward managers in Python')}: ${module} has to be a JavaScript or TypeScript module`;
    found.push({ path: key, message });
  }
  const enabled = REWARD_MODELS.some((key) => getPath(config, key) === true);
  for (const key of FUNCTIONS) {
    const module = getPath(config, key);
    if (!enabled || typeof module !== 'string' || !module.endsWith('.py')) continue;
    found.push({ path: key, message: besideRewardModel(module) });
  }
  if (getPath(config, 'trainer.device') === 'npu')
    found.push({ path: 'trainer.device', message: missing('an engine for NPUs') });
  return found;
}

/** Why a reward function in Python does not go with a reward model: it would not be given the score. */
export const besideRewardModel = (module: string): string =>
  `${missing('rewards that ask a generative reward model')}: with reward.reward_model.enable verl gives ${module} its address; ` +
  'the score of a model that is no generative one reaches functions in JavaScript and TypeScript, as sample.rewardModelScore';

/** Rows with images, for a model of which the language model alone is read: the data would say so, row by row. */
function imagesOfText(config: Tree): MissingFeature | null {
  const path = 'data.image_key';
  const model = [getPath(config, 'actor_rollout_ref.model.path'), getPath(config, 'model.path')].find(
    (value) => typeof value === 'string',
  );
  if (model === undefined || typeof getPath(config, path) !== 'string' || !losesImages(model)) return null;
  const why = `${missing('images of this model')}: of ${model} the language model alone is read`;
  return {
    path,
    message: `${why}; expected no ${path} and rows of text, or a Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, GLM-4.1V, GLM-4.5V or GLM-4.6V`,
  };
}

/** By its config.json, or where there is none by its name. */
function losesImages(model: string): boolean {
  const file = path.join(model, 'config.json');
  if (!existsSync(file))
    return /gemma-?_?(3-(4|12|27)b|4-(31|26|e[24])b?)|mistral-?small-?3\.\d|ministral-?3/i.test(model);
  const config = readTree(file);
  return config !== null && 'vision_config' in config && hasOtherParts(config, true);
}

/** Why a model cannot be trained, by its config.json, or where there is none by its name; null: nothing is known against it. */
function missingModel(model: string): string | null {
  const file = path.join(model, 'config.json');
  if (existsSync(file)) {
    const type = modelType(file);
    if (type === null || isFamily(type)) return null;
    return `${missing(`the model family ${type}`)} (${file}); supported: ${FAMILIES.join(', ')}`;
  }
  const family = FAMILY_NAMES.find(([pattern]) => pattern.test(model))?.[1];
  if (family === undefined || family === '') return null;
  return `${missing(family)} (judged by the name ${model}); supported: ${FAMILIES.join(', ')}`;
}

/** null: unreadable, which loading the model will say. */
function readTree(file: string): Tree | null {
  try {
    const config: unknown = JSON.parse(readFileSync(file, 'utf8'));
    return isTree(config) ? config : null;
  } catch {
    return null;
  }
}

function modelType(file: string): string | null {
  const config = readTree(file);
  const type = config === null ? null : textPart(config)['model_type'];
  return typeof type === 'string' ? type : null;
}

/** Names on the Hugging Face hub of families that are not there; the first that matches says it. Empty: a family that is there. */
const FAMILY_NAMES: readonly (readonly [RegExp, string])[] = [
  [/distill-(qwen|llama)/i, ''],
  [/qwen-?_?2([._]5)?-?_?vl/i, ''],
  [/qwen-?_?3-?_?vl-\d+b/i, ''],
  [/glm-?4\.[156]v/i, ''],
  [
    /[-_.]vl\b|[-_]vl[-_]|vision|llava|internvl|pixtral|minicpm-?[vo]|glm-?4\.\d+v|gui[-_]/i,
    'images (a vision-language model)',
  ],
  [/omni|audio|wan-?2|flux|stable-?diffusion/i, 'images or sound (a multimodal model)'],
  [/qwen-?_?3\.?[7-9]/i, 'the model family Qwen3.7 and later'],
  [/gpt-?_?oss/i, ''],
  [
    /deepseek[-_]?(coder[-_]?)?v(3\.2|[4-9])|dsv[4-9]|deepseek-?moe/i,
    'the model family DeepSeekMoE, DeepSeek-V3.2 and later',
  ],
  [/deepseek/i, ''],
  [/kimi-?(linear|k2\.\d)/i, 'the model family Kimi Linear and K2.5'],
  [/glm-?4\.[567](-air)?(-base)?\b/i, ''],
  [/glm-?(4-(9|32)b(-base)?|z1-(rumination-)?(9|32)b)-0414/i, ''],
  [/glm-?4-9b(-chat)?(-1m)?-hf/i, ''],
  [/glm/i, 'the model family GLM other than GLM-4-9B (-hf), GLM-4-0414, 4.1V, 4.5, 4.6 and 4.7'],
  [/mimo-?v\d/i, 'the model family MiMo-V2'],
  [/nemotron-(h-|3-(nano|super)-|nano-(9|12)b-v2)/i, ''],
  [/nemotron/i, 'the model family Nemotron other than Nemotron-H, Nemotron Nano 2 and Nemotron 3'],
  [/minimax-?m2\b/i, ''],
  [/minimax/i, 'the model family MiniMax other than M2'],
  [/mistral-?large-?3/i, 'the model family Mistral Large 3'],
  [/llama-?_?4/i, 'the model family Llama 4'],
  [/apertus-?v?1[._p]5/i, 'the model family Apertus 1.5'],
  [/gemma-?_?4-(31b|26b-a4b|e[24]b)/i, ''],
  [/gemma-?_?(3n|4)/i, 'the model family Gemma 3n, and Gemma 4 other than 31B, 26B-A4B, E2B and E4B'],
  [/olmo-?(2|3(\.1)?|e|hybrid)-/i, ''],
  [/granite-?4\.0-(h-)?(micro|tiny|small|350m|1b)\b/i, ''],
  [/granite-?3\.[0-3]-(1b-a400m|3b-a800m|[28]b)\b/i, ''],
  [/ernie-?4\.5-(0\.3b|21b-a3b|300b-a47b)/i, ''],
  [
    /\bphi-?(2|3\.5-(moe|vision)|3-(small|vision)|4-(multimodal|reasoning-vision))\b|\bphi-?1|olmo|falcon|mamba|bloom|baichuan|internlm|yi-vl|granite|ernie|hunyuan|ling-|ring-/i,
    'the model family of this name',
  ],
];
