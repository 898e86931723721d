// Texts that end a response, wherever tokens cut them.

/** How long an end of `text` may be the beginning of `marker`. */
export function heldBack(text: string, marker: string): number {
  for (let length = Math.min(text.length, marker.length - 1); length > 0; length--)
    if (text.endsWith(marker.slice(0, length))) return length;
  return 0;
}

export class StopTexts {
  private held = '';

  constructor(private readonly stops: readonly string[]) {}

  /** What can be said of the text so far, up to the first stop text; `stop`: which it was. */
  push(text: string): { text: string; stop: string | null } {
    const all = this.held + text;
    let first = all.length;
    let stop: string | null = null;
    for (const candidate of this.stops) {
      const at = all.indexOf(candidate);
      if (at >= 0 && at < first) [first, stop] = [at, candidate];
    }
    const hold = stop === null ? Math.max(0, ...this.stops.map((marker) => heldBack(all, marker))) : 0;
    this.held = stop === null ? all.slice(all.length - hold) : '';
    return { text: all.slice(0, stop === null ? all.length - hold : first), stop };
  }

  /** What was held back in vain. */
  end(): string {
    const rest = this.held;
    this.held = '';
    return rest;
  }
}
