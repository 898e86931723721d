// The end of parts that users write, after the run has its result.
import { reasonOf } from '../base/text';

interface Part {
  close?(): void | Promise<void>;
}

/** Closes them one after the other. What one fails at is said: the run is complete, and does not fail by it. */
export async function closeParts(
  parts: Readonly<Record<string, Part | null>>,
  say: (line: string) => void,
): Promise<void> {
  for (const [name, part] of Object.entries(parts)) {
    try {
      await part?.close?.();
    } catch (error) {
      say(`${name} failed to close, after the run was complete: ${reasonOf(error)}`);
    }
  }
}
