// A thread of this process, and the requests to it that wait for an answer.
import { Worker } from 'node:worker_threads';

/** What an answer must have: the number of its request, and words where it could not be answered. */
export interface ThreadReply {
  readonly id: number;
  readonly error?: string;
}

type Unnumbered<R> = R extends { id: number } ? Omit<R, 'id'> : never;

/** A program that answers messages {id, ...} with {id, ...} or {id, error}. It holds the process up only while an answer is awaited. */
export class ThreadCalls<Request extends { id: number }, Reply extends ThreadReply> {
  private readonly worker: Worker;
  private readonly waiting = new Map<number, { resolve(reply: Reply): void; reject(error: Error): void }>();
  private next = 0;
  private failed: Error | null = null;

  /** `file`: compiled JavaScript; `name`: of the thread, for messages. */
  constructor(file: string, workerData: unknown, name: string) {
    this.worker = new Worker(file, { workerData, execArgv: [], name });
    this.worker.unref();
    this.worker.on('message', (reply: Reply) => this.settle(reply));
    this.worker.on('error', (error) => this.fail(error as Error));
    this.worker.on('exit', () => this.fail(new Error(`the thread of the ${name} has ended`)));
  }

  /** @throws Error with the words of the thread, or why it is no more */
  ask(request: Unnumbered<Request>): Promise<Reply> {
    if (this.failed !== null) return Promise.reject(this.failed);
    const id = this.next++;
    this.worker.ref();
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ ...request, id });
    });
  }

  /** Requests that wait are rejected. */
  async end(): Promise<void> {
    await this.worker.terminate();
  }

  private settle(reply: Reply): void {
    const request = this.waiting.get(reply.id);
    this.waiting.delete(reply.id);
    if (reply.error === undefined) request?.resolve(reply);
    else request?.reject(new Error(reply.error));
    if (this.waiting.size === 0) this.worker.unref();
  }

  private fail(error: Error): void {
    this.failed ??= error;
    for (const { reject } of this.waiting.values()) reject(this.failed);
    this.waiting.clear();
  }
}
