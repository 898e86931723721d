// Where a tokenizer.json cuts a text before tokens are made of its pieces. The library in JavaScript has patterns of its own for steps that the file
// only names, and these cut otherwise than those of the library in Rust, by which vocabularies were made.

type Step = Readonly<Record<string, unknown>>;

const GPT2_PATTERN = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/** A tokenizer.json with the patterns of such steps written out, which the library takes as they are meant. */
export function withPatterns(definition: Record<string, unknown>): Record<string, unknown> {
  const step = definition['pre_tokenizer'];
  return isStep(step) ? { ...definition, pre_tokenizer: written(step) } : definition;
}

const isStep = (value: unknown): value is Step => typeof value === 'object' && value !== null;

function written(step: Step): Step {
  const { type, pretokenizers } = step;
  if (type === 'Sequence' && Array.isArray(pretokenizers))
    return { ...step, pretokenizers: pretokenizers.map((one) => (isStep(one) ? written(one) : one)) };
  // ½, ² and ① are numbers, too.
  if (type === 'Digits') return isolated(step['individual_digits'] === true ? '\\p{N}' : '\\p{N}+');
  // The library's own takes JavaScript's blanks, which have U+FEFF and lack U+0085.
  if (type === 'ByteLevel' && step['use_regex'] !== false && step['add_prefix_space'] === false)
    return { type: 'Sequence', pretokenizers: [isolated(GPT2_PATTERN), { ...step, use_regex: false }] };
  return step;
}

const isolated = (pattern: string): Step => ({
  type: 'Split',
  pattern: { Regex: pattern },
  behavior: 'Isolated',
  invert: false,
});
