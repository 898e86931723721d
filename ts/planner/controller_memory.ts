// Memory of the trainer's process in a step: which columns of the batch it holds in each phase, what the phase takes beside them, and what the process keeps of
// the step before.

/** A batch, as long as it may become. */
export interface BatchShape {
  prompts: number;
  sequences: number;
  /** Of all prompts, each counted once. */
  promptTokens: number;
  /** Of prompts and responses of all sequences. */
  tokens: number;
  responseTokens: number;
}

/** What a step does that takes memory of the process that drives it. */
export interface ControllerSpec {
  /** One generation. */
  generated: BatchShape;
  /** What is learnt from. */
  trained: BatchShape;
  /** Pixels of the images of a prompt, which its sequences share. */
  imageBytes: number;
  /** Prompts whose responses are all alike are left out: what is kept of several generations is copied. */
  filtered: boolean;
  /** Responses come prompt by prompt, and those to so many prompts ahead of the step wait for later ones; null: as one batch. */
  ahead: BatchShape | null;
  /** Whose results come in parts from several ranks: they are received into memory that goes to the next step. */
  inParts: { actor: boolean; reference: boolean; teacher: boolean; critic: boolean };
  /** A greedy answer to each prompt (ReMax). */
  greedy: boolean;
  /** The log-probs of the rollout are the old ones. */
  bypass: boolean;
  /** Column sumPiSquared. */
  sumPiSquared: boolean;
  /** Bytes of a token for the experts that it went to, and who says which; null: nobody asks. */
  routing: { bytes: number; by: 'rollout' | 'actor' } | null;
  reference: boolean;
  /** Tokens of the teacher's that are compared in the place of each response token; 0: the token itself; null: there is none. */
  teacher: number | null;
  critic: boolean;
  klInReward: boolean;
  /** Importance weights by rollout correction, with a mean over the batch that they are divided by; null: none. */
  weights: { normalized: boolean } | null;
  /** Rollout correction rejects tokens. */
  rejects: boolean;
  /** Returns are an array beside the advantages. */
  ownReturns: boolean;
  /** Critic and actor learn from sequences that are drawn anew (PF-PPO). */
  resampled: boolean;
  /** Mini-batches are copied one by one, for a loss that TypeScript prepares; sequences of one. null: they are sent from where they lie. */
  stepwise: number | null;
  /** One batch of a validation; null: none, or not known. */
  validation: BatchShape | null;
}

export interface ControllerPhase {
  phase: string;
  /** Columns of the step's batch. */
  columns: number;
  /** Memory of columns of the step before that is not in use again yet. */
  kept: number;
  /** What the phase takes beside them when it takes most. */
  work: number;
  /** Responses and prompts as text: an estimate. */
  texts: number;
  total: number;
}

export interface ControllerPlan {
  phases: ControllerPhase[];
  peak: ControllerPhase;
  /** Node, what it has loaded, and its tables: an estimate. */
  process: number;
}

const INT = 4;
const FLOAT = 4;
const DOUBLE = 8;
/** Of a token in text: four letters of one byte. */
const TEXT = 4;
const PROCESS_BYTES = 256 * 2 ** 20;
/** Offsets and lengths of a sequence in a batch. */
const LAYOUT = 5 * INT;
/** A column of what is not of the step's batch. */
const AHEAD = 'responses ahead';
const TEACHER_TOP = 'teacherTop';
/** Lists of images, which batches share: no copy of a batch has others. */
const IMAGES = 'images';

const sum = (numbers: Iterable<number>): number => [...numbers].reduce((a, b) => a + b, 0);

/** What a generation makes: tokens, their log-probs and a mask. */
const sampledBytes = ({ tokens, responseTokens }: BatchShape): number =>
  INT * tokens + (FLOAT + 1) * responseTokens;
/** The same with a score of each token. */
const scoredBytes = (shape: BatchShape): number => sampledBytes(shape) + FLOAT * shape.responseTokens;
/** Responses to single prompts, with a score and the version of the weights of each token. */
const groupBytes = (shape: BatchShape): number =>
  scoredBytes(shape) + INT * shape.responseTokens + LAYOUT * shape.sequences;
/** Prompts as they are sent, and a seed for each sample. */
const requestBytes = ({ promptTokens, sequences }: BatchShape): number =>
  INT * promptTokens + DOUBLE * sequences;
const textBytes = ({ promptTokens, responseTokens }: BatchShape): number =>
  TEXT * (promptTokens + responseTokens);
/** Responses as reward functions are given them. */
const copiedResponses = ({ responseTokens }: BatchShape): number => INT * responseTokens;

/** Bytes of each phase of a step that is not the first of its run. */
export function planController(spec: ControllerSpec): ControllerPlan {
  const step = new StepMemory(spec);
  step.generation();
  if (spec.greedy) step.greedyAnswers();
  step.evaluation();
  step.advantages();
  step.updates();
  step.validation();
  const phases = step.done();
  return {
    phases,
    peak: phases.reduce((most, one) => (one.total > most.total ? one : most)),
    process: PROCESS_BYTES,
  };
}

/** The columns of a step, as they come and go. */
class StepMemory {
  private readonly columns = new Map<string, number>();
  /** Of columns that are received into memory which goes from step to step: all of it, and what of it is in use. */
  private readonly lent = new Map<string, number>();
  private readonly found: (Omit<ControllerPhase, 'total' | 'kept'> & { lent: number })[] = [];

  constructor(private readonly spec: ControllerSpec) {}

  generation(): void {
    const { generated, trained, filtered, routing, ahead } = this.spec;
    if (ahead !== null) {
      this.groups(trained, ahead);
      return;
    }
    const { tokens, responseTokens, sequences } = generated;
    this.hold(IMAGES, this.images(generated));
    this.hold('tokens', INT * tokens, true);
    this.hold('rolloutLogProbs', FLOAT * responseTokens, true);
    this.hold('responseMask', responseTokens, true);
    this.hold('layout', LAYOUT * sequences);
    if (routing?.by === 'rollout') this.hold('routedExperts', routing.bytes * tokens);
    this.phase('gen', requestBytes(generated), 0);
    this.hold('tokenScores', FLOAT * responseTokens);
    this.phase('reward', copiedResponses(generated), textBytes(generated));
    if (!filtered) return;
    // What is kept of each generation, all of that in one batch, and of it the prompts that are wanted.
    const experts = (shape: BatchShape): number =>
      routing?.by === 'rollout' ? routing.bytes * shape.tokens : 0;
    const wanted = scoredBytes(trained);
    const kept = wanted + scoredBytes(generated);
    this.phase('filter', 2 * kept + wanted + this.images(trained));
    this.columns.clear();
    this.hold('sequences that are kept', wanted + experts(trained));
    this.hold(IMAGES, this.images(trained));
  }

  /** What the step takes is copied into one batch. */
  private groups(trained: BatchShape, ahead: BatchShape): void {
    const { routing } = this.spec;
    const bytes = (shape: BatchShape): number =>
      groupBytes(shape) + (routing?.by === 'rollout' ? routing.bytes * shape.tokens : 0);
    this.hold(AHEAD, bytes(ahead) + this.images(ahead));
    this.hold('responses', bytes(trained));
    this.hold(IMAGES, this.images(trained));
    this.phase('gen', bytes(trained), textBytes(trained) + textBytes(ahead));
  }

  greedyAnswers(): void {
    const { prompts, sequences, promptTokens, responseTokens, tokens } = this.spec.trained;
    const longest = (responseTokens / sequences) * prompts;
    const answers: BatchShape = {
      prompts,
      sequences: prompts,
      promptTokens,
      responseTokens: longest,
      tokens: (tokens / sequences) * prompts,
    };
    this.hold('greedy', sampledBytes(answers), true);
    this.phase('gen_max', FLOAT * longest + copiedResponses(answers) + requestBytes(answers));
    this.columns.delete('greedy');
  }

  evaluation(): void {
    const { trained, bypass, sumPiSquared, reference, teacher, critic, inParts, routing } = this.spec;
    const column = FLOAT * trained.responseTokens;
    if (!bypass) {
      this.hold('oldLogProbs', column, inParts.actor);
      this.hold('entropy', column, inParts.actor);
      if (sumPiSquared) this.hold('sumPiSquared', column, inParts.actor);
      if (routing?.by === 'actor') this.hold('routedExperts', this.experts);
      this.phase('old_log_prob', routing?.by === 'rollout' ? this.experts : 0);
    }
    if (reference) {
      this.hold('refLogProbs', column, inParts.reference);
      this.phase('ref', 0);
    }
    if (teacher === 0) this.hold('teacherLogProbs', column, inParts.teacher);
    // Beside the log-probs of the tokens themselves, which come with them.
    if (teacher !== null && teacher > 0) this.hold(TEACHER_TOP, 2 * teacher * column);
    if (teacher !== null) this.phase('teacher', teacher > 0 ? column : 0);
    if (critic) {
      this.hold('values', column, inParts.critic);
      this.phase('values', 0);
    }
  }

  advantages(): void {
    const { trained, klInReward, bypass, weights, rejects, ownReturns } = this.spec;
    const { responseTokens } = trained;
    const column = FLOAT * responseTokens;
    if (klInReward) this.hold('tokenRewards', column);
    let most = this.held;
    if (!bypass) {
      most += correctionBytes(responseTokens, weights, rejects);
      if (weights !== null) this.hold('rolloutIsWeights', column);
      if (rejects) this.hold('responseMask of what stays', responseTokens);
    }
    this.hold('advantages', column);
    if (ownReturns) this.hold('returns', column);
    this.phase('adv', Math.max(0, most - this.held));
  }

  updates(): void {
    const { trained, resampled, critic, stepwise, weights, rejects } = this.spec;
    const learnt = this.held - (this.columns.get(IMAGES) ?? 0);
    if (resampled) this.hold('drawn anew', learnt);
    if (critic) this.phase('update_critic', 0);
    // Of the teacher's tokens and of choices of experts each rank is sent one array.
    const joined = this.experts + (this.columns.get(TEACHER_TOP) ?? 0);
    if (stepwise === null) {
      this.phase('update_actor', joined);
      return;
    }
    const share = stepwise / trained.sequences;
    const mini = share * trained.responseTokens;
    const prepared = 4 * FLOAT * mini + correctionBytes(mini, weights, rejects);
    this.phase('update_actor', learnt + prepared + share * joined);
  }

  /** When what the step sampled has been given back. */
  validation(): void {
    const { validation } = this.spec;
    if (validation === null) return;
    const ahead = this.columns.get(AHEAD);
    this.columns.clear();
    if (ahead !== undefined) this.hold(AHEAD, ahead);
    const work =
      scoredBytes(validation) +
      copiedResponses(validation) +
      requestBytes(validation) +
      this.images(validation);
    this.phase('testing', work, textBytes(validation));
  }

  done(): ControllerPhase[] {
    const lent = sum(this.lent.values());
    return this.found.map(({ lent: used, ...one }) => {
      const kept = lent - used;
      return { ...one, kept, total: one.columns + kept + one.work + one.texts + PROCESS_BYTES };
    });
  }

  private images({ prompts }: BatchShape): number {
    return this.spec.imageBytes * prompts;
  }

  private get held(): number {
    return sum(this.columns.values());
  }

  /** Of the choices of experts of what is learnt from, in one array. */
  private get experts(): number {
    const { routing, trained } = this.spec;
    return routing === null ? 0 : routing.bytes * trained.tokens;
  }

  private hold(name: string, bytes: number, lent = false): void {
    this.columns.set(name, bytes);
    if (lent) this.lent.set(name, bytes);
  }

  /** `work`: beside what is held at its end. */
  private phase(phase: string, work: number, texts = textBytes(this.spec.trained)): void {
    const lent = sum([...this.lent].map(([name, bytes]) => (this.columns.has(name) ? bytes : 0)));
    this.found.push({ phase, columns: this.held, work, texts, lent });
  }
}

/**
 * What rollout correction takes of every token where it weighs or rejects, in lists of doubles (rollout_correction.ts): place and sequence, the log
 * ratio and a mask; and what weights, or criteria, make of them.
 */
function correctionBytes(tokens: number, weights: ControllerSpec['weights'], rejects: boolean): number {
  if (weights === null && !rejects) return tokens;
  const list = DOUBLE * tokens;
  const common = 2 * INT * tokens + list + tokens;
  const weighing = weights === null ? 0 : (weights.normalized ? 3 : 2) * list;
  const found = weights === null ? 0 : list;
  const rejecting = rejects ? found + 3 * list + 2 * tokens : 0;
  return common + Math.max(weighing, rejecting);
}
