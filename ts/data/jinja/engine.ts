// What is used of @huggingface/jinja below its Template, whose own types do not resolve in projects of ES modules.
import * as library from '@huggingface/jinja';

/** What an expression of a template gives. */
export interface Value {
  readonly type: string;
  readonly value: unknown;
}

/** A node of a parsed template, or one of ours: `Output` writes an expression, `Value` has its value already. */
export interface Node {
  type: string;
  [key: string]: unknown;
}

export interface Scope {
  set(name: string, value: unknown): Value;
  lookupVariable(name: string): Value;
}

interface Engine {
  readonly global: Scope;
  run(program: Node): Value;
  evaluate(node: Node | undefined, scope: Scope): Value;
}

export const Interpreter = library.Interpreter as unknown as new (scope: Scope) => Engine;
export const newScope = (): Scope => new library.Environment() as unknown as Scope;

/** With the white space that Hugging Face takes off around blocks. @throws Error that says what does not parse */
export const parseTemplate = (source: string): Node =>
  library.parse(library.tokenize(source, { lstrip_blocks: true, trim_blocks: true })) as unknown as Node;
