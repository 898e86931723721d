// A Jinja template as Hugging Face renders chat templates: trim_blocks, lstrip_blocks, Python's texts of values.
import { reasonOf } from '../../base/text';
import { Budget, range } from './budget';
import { strftime } from './clock';
import { type Node, newScope, parseTemplate, setData } from './engine';
import { Rendering } from './rendering';
import { WITH } from './tokens';
import { text } from './values';

/** The longest chat templates have some tens of thousands of characters. */
const MOST_CHARACTERS = 2 ** 18;
/** The library looks at every blank of a run as a beginning of one. */
const MOST_BLANKS = 1000;

/** Statements that write nothing by themselves; everything else in a block is an expression whose value is written. */
const STATEMENTS = [
  'Set',
  'If',
  'For',
  'Macro',
  'CallStatement',
  'FilterStatement',
  'With',
  'Break',
  'Continue',
  'Comment',
];
const BLOCKS = ['body', 'alternate', 'defaultBlock'];

export class JinjaTemplate {
  private readonly program: Node;

  /** @throws Error that says what does not parse */
  constructor(source: string) {
    if (source.length > MOST_CHARACTERS)
      throw new Error(`it has ${source.length} characters, expected at most ${MOST_CHARACTERS}`);
    if (new RegExp(`\\s{${MOST_BLANKS + 1}}`).test(source))
      throw new Error(`it has a run of more than ${MOST_BLANKS} blanks`);
    this.program = within(() => {
      const program = parseTemplate(source.replace(/\r\n?/g, '\n')); // as Jinja reads it, in texts as well
      markOutputs(program, false);
      return program;
    });
  }

  /** @throws Error what the template raises, does wrong, or that it takes too long or writes too much */
  render(variables: Readonly<Record<string, unknown>>): string {
    return within(() => {
      const scope = newScope();
      for (const [name, value] of Object.entries({ ...globals(), ...variables })) setData(scope, name, value);
      const budget = new Budget();
      const rendered = text(new Rendering(scope, budget).run(this.program), budget.steps);
      budget.characters(rendered.length);
      return rendered;
    });
  }
}

const globals = (): Record<string, unknown> => ({
  true: true,
  True: true,
  false: false,
  False: false,
  none: null,
  None: null,
  range,
  raise_exception: (message: unknown): never => {
    throw new Error(String(message));
  },
  strftime_now: (format: unknown) => strftime(new Date(), String(format)),
});

function markOutputs(node: Node, inLoop: boolean): void {
  for (const block of BLOCKS) {
    const statements = node[block];
    if (!Array.isArray(statements)) continue;
    const looped = block === 'body' ? bodyIsLooped(node, inLoop) : inLoop;
    node[block] = statements.map((statement: Node) => {
      if (isWith(statement)) statement.type = 'With';
      checkPlace(statement, looped);
      markOutputs(statement, looped);
      return STATEMENTS.includes(statement.type) ? statement : { type: 'Output', expression: statement };
    });
  }
}

const isWith = ({ type, filter }: Node): boolean =>
  type === 'FilterStatement' && ((filter as Node)['callee'] as Node | undefined)?.['value'] === WITH;

/** Whether {% break %} and {% continue %} are of a loop within this body. */
const bodyIsLooped = ({ type }: Node, inLoop: boolean): boolean =>
  type === 'For' || (inLoop && type !== 'Macro' && type !== 'CallStatement');

function checkPlace(statement: Node, inLoop: boolean): void {
  const { type } = statement;
  if ((type === 'Break' || type === 'Continue') && !inLoop)
    throw new Error(`{% ${type.toLowerCase()} %} stands outside of a loop`);
  const target =
    type === 'For' ? statement['loopvar'] : type === 'Set' && inLoop ? statement['assignee'] : null;
  if (target !== null && names(target as Node).includes('loop'))
    throw new Error("'loop' cannot be set: a loop has it for itself");
}

const names = ({ type, value }: Node): unknown[] =>
  type === 'TupleLiteral' ? (value as Node[]).flatMap(names) : type === 'Identifier' ? [value] : [];

/** Says in the words of a template what the engine of JavaScript ran into. */
function within<T>(work: () => T): T {
  try {
    return work();
  } catch (error) {
    const reason = reasonOf(error);
    if (/call stack/.test(reason)) throw new Error('it is nested too deeply');
    if (/Invalid string length|Invalid count value/.test(reason)) throw new Error('a text is too long');
    throw error;
  }
}
