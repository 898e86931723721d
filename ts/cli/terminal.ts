import { closeSync, openSync } from 'node:fs';
import { isatty } from 'node:tty';

/**
 * Gives this process an end of its own when its terminal has gone before it: Node, as it leaves, sets the terminal back to how it was, and
 * aborts where that fails, unless the descriptor is another file's by then.
 */
export function outliveTerminal(): void {
  const terminals = [0, 1, 2].filter((descriptor) => isatty(descriptor));
  if (terminals.length === 0) return;
  process.on('exit', () => {
    const gone = terminals.filter((descriptor) => !isatty(descriptor));
    for (const descriptor of gone) closeSync(descriptor);
    // The lowest that are free.
    for (const _ of gone) openSync('/dev/null', 'r+');
  });
}
