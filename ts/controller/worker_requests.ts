import { TroupeError } from '../errors';
import {
  type ControllerMessage,
  fromWireError,
  type WorkerMessage,
  type WorkRequest,
} from '../worker/protocol';

interface Pending {
  what: string;
  land: Land | null;
  resolve: (value: unknown) => void;
  reject: (error: TroupeError) => void;
}

type WithoutId<R> = R extends WorkRequest ? Omit<R, 'requestId'> : never;
/** A request before it has got its id. */
export type NewRequest = WithoutId<WorkRequest>;

/** Says of the arrays of an answer where they are to land (message_arrays.ts), before they come. */
export type Land = (value: unknown) => void;

/** Ways of sending to a worker, behind what is being sent and past it; nothing while there is no connection. */
export interface Wire {
  send(message: ControllerMessage): void;
  sendNow(message: ControllerMessage): void;
}

/** The controller's side of one worker: requests out, answers matched by id, one failure ends them all. */
export class WorkerClient {
  readonly rank: number;
  readonly #wire: Wire;
  readonly #pending = new Map<number, Pending>();
  #nextId = 1;
  #failure: TroupeError | null = null;

  constructor(rank: number, wire: Wire) {
    this.rank = rank;
    this.#wire = wire;
  }

  /** The oldest request without an answer, which is the one being worked on: "updatePolicy of 'actor'". */
  get current(): string | null {
    for (const pending of this.#pending.values()) return pending.what;
    return null;
  }

  /**
   * Rejects with the worker's error, with that of fail(), or with INVALID_ARGUMENT when the request cannot be sent. `land`: of a request
   * that lands.
   */
  request(request: NewRequest, land: Land | null = null): Promise<unknown> {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    const requestId = this.#nextId++;
    return new Promise((resolve, reject) => {
      const what = describeRequest(request);
      this.#pending.set(requestId, { what, land, resolve, reject });
      try {
        this.send({ ...request, requestId });
      } catch (error) {
        this.#pending.delete(requestId);
        const why = error instanceof Error ? error.message : String(error);
        reject(
          new TroupeError('INVALID_ARGUMENT', `${what}: its arguments cannot be sent to a worker: ${why}`, {
            cause: error,
          }),
        );
      }
    });
  }

  send(message: ControllerMessage): void {
    if (this.#failure === null) this.#wire.send(message);
  }

  sendNow(message: ControllerMessage): void {
    if (this.#failure === null) this.#wire.sendNow(message);
  }

  /** The arrays of this answer are about to come. */
  landing(message: WorkerMessage): void {
    if (message.type === 'result') this.#pending.get(message.requestId)?.land?.(message.value);
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
