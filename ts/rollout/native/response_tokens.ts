// The tokens of a response as they come, with their log-probabilities and the versions of the weights that made them.
import type { RolloutResult, TokenSpan, TopLogProb } from '../request';

/**
 * One pair of arrays that grows, in place of the pieces of every turn: a batch of a hundred thousand responses would consist of tens of
 * millions of small arrays, each larger than what is in it.
 */
export class ResponseTokens {
  /** Of neighbouring tokens by the same weights. */
  readonly versions: RolloutResult['versions'] = [];
  readonly topLogProbs: TopLogProb[][] = [];
  private ids: Int32Array = new Int32Array(0);
  private probabilities: Float32Array = new Float32Array(0);
  private size = 0;
  private read = 0;

  constructor(private readonly hasTop: boolean) {}

  /**
   * `last`: nothing comes after it; then the arrays of a response that comes in one piece are those given, unless they are parts of a message, which would
   * be kept for as long as they are.
   */
  append({ tokens, logProbs, version, topLogProbs }: TokenSpan, last = false): void {
    const start = this.size;
    const end = start + tokens.length;
    if (last && start === 0 && ownsMemory(tokens) && ownsMemory(logProbs)) {
      [this.ids, this.probabilities] = [tokens, logProbs];
    } else {
      if (end > this.ids.length) this.resize(start === 0 ? end : Math.max(end, 2 * start));
      this.ids.set(tokens, start);
      this.probabilities.set(logProbs, start);
    }
    this.size = end;
    for (const top of topLogProbs ?? []) this.topLogProbs.push(top);
    const newest = this.versions.at(-1);
    if (newest?.version === version) newest.end = end;
    else this.versions.push({ version, start, end });
  }

  /** What has come since the last call, as far as one version of the weights made it; null: nothing. */
  next(): TokenSpan | null {
    const start = this.read;
    const run = this.versions.find(({ end }) => end > start);
    if (run === undefined) return null;
    this.read = run.end;
    const span = {
      tokens: this.ids.subarray(start, run.end),
      logProbs: this.probabilities.subarray(start, run.end),
      version: run.version,
    };
    return this.hasTop ? { ...span, topLogProbs: this.topLogProbs.slice(start, run.end) } : span;
  }

  /** All of them, in arrays without room for more. */
  whole(): { tokens: Int32Array; logProbs: Float32Array } {
    if (this.ids.length > this.size) this.resize(this.size);
    return { tokens: this.ids, logProbs: this.probabilities };
  }

  private resize(length: number): void {
    const [ids, probabilities] = [new Int32Array(length), new Float32Array(length)];
    ids.set(this.ids.subarray(0, this.size));
    probabilities.set(this.probabilities.subarray(0, this.size));
    this.ids = ids;
    this.probabilities = probabilities;
  }
}

const ownsMemory = ({ buffer, byteLength }: ArrayBufferView): boolean => buffer.byteLength === byteLength;
