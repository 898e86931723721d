// Names of the ways in which families of models write calls of tools (ts/serve/tools).

export const TOOL_FAMILIES = [
  'hermes',
  'qwen3_coder',
  'glm45',
  'minimax_m2',
  'seed_oss',
  'deepseek_v3',
  'deepseek_v31',
  'kimi_k2',
  'llama3',
  'mistral',
  'lfm2',
  'olmo3',
  'gemma4',
  'gpt-oss',
] as const;
export type ToolFamilyName = (typeof TOOL_FAMILIES)[number];

/** Names that verl's tool agent has for some of them. */
export const VERL_FORMATS = {
  glm: 'glm45',
  minimax: 'minimax_m2',
  seed: 'seed_oss',
  kimi: 'kimi_k2',
  llama3_json: 'llama3',
} as const satisfies Readonly<Record<string, ToolFamilyName>>;
type VerlFormat = keyof typeof VERL_FORMATS;

export type ToolFormat = ToolFamilyName | VerlFormat;
export const TOOL_FORMATS = [...TOOL_FAMILIES, ...(Object.keys(VERL_FORMATS) as VerlFormat[])] as const;
