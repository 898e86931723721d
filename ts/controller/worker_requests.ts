import { TroupeError } from '../errors';
import {
  type ControllerMessage,
  fromWireError,
  type WorkerMessage,
  type WorkRequest,
} from '../worker/protocol';
import { type CallWork, workOf } from './call_work';

interface Pending {
  call: PendingCall;
  isOfEngine: boolean;
  land: Land | null;
  resolve: (value: unknown) => void;
  reject: (error: TroupeError) => void;
}

/** A request that the worker owes an answer to. */
export interface PendingCall {
  what: string;
  work: CallWork;
  /** When it was made, and since when nothing before it keeps the worker from it; milliseconds of performance.now(). */
  asked: number;
  begun: number;
}

/** One that has its answer. */
export interface AnsweredCall extends PendingCall {
  end: number;
  /** Milliseconds for which the worker computed or wanted to, as far as it can tell: the rest it waited; null: it cannot. */
  busyMs: number | null;
  isOfEngine: boolean;
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
  readonly #answered: (call: AnsweredCall) => void;
  /** When the last answer came. */
  #free = 0;

  /** `answered`: hears of every request that ends with a result. */
  constructor(rank: number, wire: Wire, answered: (call: AnsweredCall) => void = () => {}) {
    this.rank = rank;
    this.#wire = wire;
    this.#answered = answered;
  }

  /** The oldest request without an answer, which is the one being worked on: "updatePolicy of 'actor'". */
  get current(): string | null {
    return this.oldest?.what ?? null;
  }

  get oldest(): PendingCall | null {
    for (const { call } of this.#pending.values()) return { ...call, begun: this.#begun(call) };
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
      const asked = performance.now();
      const call = { what, work: workOf(request), asked, begun: asked };
      const isOfEngine = request.type === 'callEngine';
      this.#pending.set(requestId, { call, isOfEngine, land, resolve, reject });
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
    const { call, isOfEngine } = pending;
    const begun = this.#begun(call);
    this.#free = performance.now();
    if (message.type === 'result') {
      this.#answered({ ...call, begun, end: this.#free, busyMs: message.busyMs ?? null, isOfEngine });
      pending.resolve(message.value);
    } else pending.reject(fromWireError(message.error, this.rank));
  }

  /** A worker does one thing after another, in the order in which it is asked. */
  #begun({ asked }: PendingCall): number {
    return Math.max(asked, this.#free);
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
