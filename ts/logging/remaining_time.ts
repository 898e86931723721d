/** Steps over which the pace is averaged: early steps are not like late ones. */
const WINDOW = 20;

/** "1:02:03", "4:05". */
export function formatDuration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const two = (value: number): string => String(value).padStart(2, '0');
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** Seconds until `totalSteps`, from the times at which the last steps of this session ended. */
export class RemainingTime {
  private readonly ends: { step: number; at: number }[] = [];

  constructor(private readonly totalSteps: number) {}

  /** `at`: seconds of any clock. Seeing the first one again moves it: what came before training is not part of the pace. */
  stepEnded(step: number, at: number): void {
    const last = this.ends.at(-1);
    if (last === undefined || last.step < step) this.ends.push({ step, at });
    else if (this.ends.length === 1) last.at = at;
    if (this.ends.length > WINDOW + 1) this.ends.shift();
  }

  /** null before a step has been seen from its beginning to its end. */
  seconds(at: number): number | null {
    const [first, last] = [this.ends[0], this.ends.at(-1)];
    if (!first || !last || last.step <= first.step) return null;
    const perStep = (last.at - first.at) / (last.step - first.step);
    return Math.max(0, perStep * (this.totalSteps - last.step) - (at - last.at));
  }
}
