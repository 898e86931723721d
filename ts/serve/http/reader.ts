// Who reads a response: it is sent no faster than that one takes it.
import type { ServerResponse } from 'node:http';

/** What is written at once, bytes: of a longer text one piece waits for the one before it. */
const PIECE = 64 << 10;

/**
 * The time of a reader that takes nothing begins anew with every piece that the system has taken over for it. That shows no finer than the
 * system's buffer of a connection lets on, which asks for more when a part of it has been read: Linux up to some MB over a fast connection.
 */
export class Reader {
  /**
   * @param stallMs milliseconds that it may take nothing; then the response is destroyed
   * @param gone aborts when it leaves
   */
  constructor(
    private readonly response: ServerResponse,
    private readonly stallMs: number,
    private readonly gone: AbortSignal,
  ) {}

  /** Whether it is gone, or was given up. */
  get left(): boolean {
    return this.gone.aborted || this.response.destroyed;
  }

  /** Resolves when more may be written; false: it has left. */
  async write(text: string): Promise<boolean> {
    if (text.length <= PIECE) return await this.writePiece(text);
    const bytes = Buffer.from(text);
    for (let at = 0; at < bytes.length; at += PIECE)
      if (!(await this.writePiece(bytes.subarray(at, at + PIECE)))) return false;
    return true;
  }

  /** Resolves when it has taken everything of a response that was ended; false: it has left before. */
  async finished(): Promise<boolean> {
    return await this.taken('finish');
  }

  private async writePiece(piece: string | Buffer): Promise<boolean> {
    if (this.left) return false;
    return this.response.write(piece) || (await this.taken('drain'));
  }

  /** A response that waits for the one before it on its connection hears nothing of the end of that: `gone` does. */
  private taken(event: 'drain' | 'finish'): Promise<boolean> {
    const { response, stallMs, gone } = this;
    return new Promise((resolve) => {
      const end = (): void => {
        clearTimeout(timer);
        response.off(event, end);
        gone.removeEventListener('abort', end);
        resolve(!this.left);
      };
      const late = (): void => {
        // It has no connection before its turn has come.
        if (response.socket === null) timer = setTimeout(late, stallMs);
        else {
          response.destroy();
          end();
        }
      };
      let timer = setTimeout(late, stallMs);
      response.on(event, end);
      gone.addEventListener('abort', end);
      // It may have happened before anybody listened.
      if (gone.aborted || (event === 'finish' && response.writableFinished)) end();
    });
  }
}
