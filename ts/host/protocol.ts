// What the agent of a host and the controller say to each other.
import type { StackKind, WorkerSpec } from '../controller/launcher';

/** What a host is, as its agent finds it. */
export interface HostFacts {
  /** Its name. */
  name: string;
  /** Where other hosts reach it. */
  address: string;
  /** The interface of that address; null: not known. */
  interface: string | null;
  pid: number;
  /** Cores that its processes may use. */
  cores: number;
  /** GPUs that its workers may use; null: not known. */
  gpus: number | null;
  /** Of this package. */
  version: string;
  node: string;
  /** What the native addon was built for: 'cpu', 'cu130'; null: there is none, and `problem` says why. */
  addon: string | null;
  libtorch: string | null;
  problem: string | null;
}

export type ToHost =
  /** Answers `hello`. */
  | { type: 'welcome'; heartbeatMs: number; deadTimeoutMs: number }
  /** Answers `hello`, too; the connection ends. */
  | { type: 'refused'; reason: string }
  | { type: 'heartbeat' }
  /** Start a worker, known as `id` from now on. */
  | { type: 'start'; id: number; spec: WorkerSpec }
  | { type: 'signal'; id: number; signal: NodeJS.Signals }
  /** Where the threads of a worker are; answered by `stacks`. */
  | { type: 'stacks'; id: number; kind: StackKind }
  /** What is in a small file there, and what time it is; answered by `probed`. */
  | { type: 'probe'; id: number; file: string }
  /** Open a port of 127.0.0.1 whose connections go elsewhere; answered by `listening`. */
  | { type: 'listen'; tunnel: number }
  /** Make a connection to a port of 127.0.0.1. */
  | { type: 'connect'; stream: number; port: number }
  | StreamMessage
  /** The run is over: end the workers, and the agent with this code. */
  | { type: 'shutdown'; exitCode: number };

export type FromHost =
  /** The first message. `index`: which of the hosts it was started as; null: any. */
  | { type: 'hello'; facts: HostFacts; index: number | null }
  /** `stopped`: workers that somebody has stopped (SIGSTOP). */
  | { type: 'heartbeat'; stopped: number[] }
  | { type: 'started'; id: number; pid: number | null }
  | { type: 'line'; id: number; line: string; isError: boolean }
  | { type: 'stacks'; id: number; kind: StackKind; text: string }
  | { type: 'exited'; id: number; exitCode: number | null; signal: string | null }
  /** The engine asks for an end: a signal that the agent got. */
  | { type: 'notice'; signal: string }
  /** `now`: milliseconds since 1970. `content`: null: no such file. */
  | { type: 'probed'; id: number; now: number; content: string | null }
  | { type: 'listening'; tunnel: number; port: number }
  /** Somebody has connected to a tunnel. */
  | { type: 'opened'; tunnel: number; stream: number }
  | StreamMessage;

/** Bytes of a tunnelled connection, either way, and its end. */
export type StreamMessage =
  | { type: 'bytes'; stream: number; bytes: Uint8Array }
  | { type: 'ended'; stream: number };
