import type { TroupeError } from '../errors';
import {
  type ControllerMessage,
  fromWireError,
  type WorkerMessage,
  type WorkRequest,
} from '../worker/protocol';

interface Pending {
  what: string;
  resolve: (value: unknown) => void;
  reject: (error: TroupeError) => void;
}

type WithoutId<R> = R extends WorkRequest ? Omit<R, 'requestId'> : never;
/** A request before it has got its id. */
export type NewRequest = WithoutId<WorkRequest>;

/** The controller's side of one worker: requests out, answers matched by id, one failure ends them all. */
export class WorkerClient {
  readonly rank: number;
  readonly #send: (message: ControllerMessage) => void;
  readonly #pending = new Map<number, Pending>();
  #nextId = 1;
  #failure: TroupeError | null = null;

  constructor(rank: number, send: (message: ControllerMessage) => void) {
    this.rank = rank;
    this.#send = send;
  }

  /** The oldest request without an answer, which is the one being worked on: "updatePolicy of 'actor'". */
  get current(): string | null {
    for (const pending of this.#pending.values()) return pending.what;
    return null;
  }

  /** Rejects with the worker's error, or with that of fail(). */
  request(request: NewRequest): Promise<unknown> {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    const requestId = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#pending.set(requestId, { what: describeRequest(request), resolve, reject });
      this.send({ ...request, requestId });
    });
  }

  send(message: ControllerMessage): void {
    if (this.#failure === null) this.#send(message);
  }

  receive(message: Extract<WorkerMessage, { type: 'result' | 'error' }>): void {
    const pending = message.requestId === null ? undefined : this.#pending.get(message.requestId);
    if (message.requestId === null || pending === undefined) return;
    this.#pending.delete(message.requestId);
    if (message.type === 'result') pending.resolve(message.value);
    else pending.reject(fromWireError(message.error, this.rank));
  }

  /** Rejects every pending and later request; the first error stays. */
  fail(error: TroupeError): void {
    if (this.#failure !== null) return;
    this.#failure = error;
    for (const pending of this.#pending.values()) pending.reject(error);
    this.#pending.clear();
  }
}

/** "updatePolicy of 'actor'" */
export function describeRequest(request: NewRequest): string {
  switch (request.type) {
    case 'callEngine':
      return `${request.method} of '${request.engine}'`;
    case 'callBinding':
      return request.method;
    default:
      return `${request.type} '${request.engine}'`;
  }
}
