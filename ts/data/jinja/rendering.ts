// One rendering of a template: what its statements write, and which names they set where.
import { isTrue, type Node, newFunction, newScope, type Scope, type Value } from './engine';
import { Filters } from './filters';
import { Loop } from './loop';
import { nameOfArgument, wrapped } from './rules';
import { isText, itemsOf } from './values';

/** A scope for each entry of a loop. */
const STEPS_OF_SCOPE = 4;

export class Rendering extends Filters {
  /** Ends blocks, up to the body of the innermost loop. What they have written until then stays. */
  private jump: 'Break' | 'Continue' | null = null;

  protected override own(node: Node, environment: Scope): Value | null {
    switch (node.type) {
      case 'For':
        return this.loop(node, environment);
      case 'Set':
        return this.set(node, environment);
      case 'Macro':
        return this.macro(node, environment);
      case 'CallStatement':
        return this.text(this.plain(this.theirs(node, environment)));
      case 'FilterStatement':
        return this.filtered(node, environment);
      case 'With':
        return this.with(node, environment);
      case 'Break':
      case 'Continue':
        this.jump = node.type;
        return this.nothing();
      default:
        return super.own(node, environment);
    }
  }

  override evaluateBlock(statements: readonly Node[], environment: Scope): Value {
    let written = '';
    for (const statement of statements) {
      const value = this.of(statement, environment);
      if (isText(value)) written += value.value as string;
      this.budget.characters(written.length);
      if (this.jump !== null) break;
    }
    return this.literal('StringLiteral', written);
  }

  private block(statements: unknown, environment: Scope): Value {
    return this.evaluateBlock(statements as Node[], environment);
  }

  /** Every entry has a scope of its own: what the body sets ends with it. */
  private loop(node: Node, environment: Scope): Value {
    const iterable = node['iterable'] as Node;
    const select = iterable.type === 'SelectExpression';
    const items = itemsOf(this.entries(this.of(select ? iterable['lhs'] : iterable, environment)));
    const entered = (item: Value): Scope => {
      this.budget.steps(STEPS_OF_SCOPE);
      const scope = newScope(environment);
      this.assign(node['loopvar'] as Node, item, scope);
      return scope;
    };
    const passes = (item: Value): boolean => !select || isTrue(this.of(iterable['test'], entered(item)));
    const loop = new Loop(items, passes, this.budget.steps);
    let written = '';
    let ended = false;
    for (let item = loop.next(); item !== undefined; item = loop.next()) {
      const scope = entered(item);
      scope.setVariable('loop', loop);
      written += this.block(node['body'], scope).value as string;
      this.budget.characters(written.length);
      const { jump } = this;
      this.jump = null;
      if (jump === 'Break') break;
      if (jump === null) ended = true;
    }
    // As in the reference, also after entries none of which came to the end of the body.
    if (!ended) written += this.block(node['defaultBlock'], newScope(environment)).value as string;
    return this.literal('StringLiteral', written);
  }

  private set(node: Node, environment: Scope): Value {
    const target = node['assignee'] as Node;
    const value = node['value']
      ? this.of(node['value'], environment)
      : this.block(node['body'], newScope(environment));
    if (this.jump !== null) return this.nothing();
    if (target.type === 'MemberExpression')
      return this.theirs({ ...node, value: wrapped(value), body: [] }, environment);
    this.assign(target, value, environment);
    return this.nothing();
  }

  private assign(target: Node, value: Value, scope: Scope): void {
    if (target.type === 'Identifier') {
      scope.setVariable(target['value'] as string, value);
      return;
    }
    if (target.type !== 'TupleLiteral') throw new Error(`expected names to set, got a ${target.type}`);
    const names = target['value'] as Node[];
    const parts = itemsOf(this.entries(value));
    if (parts.length !== names.length)
      throw new Error(`expected ${names.length} values for ${names.length} names, got ${parts.length}`);
    for (const [i, name] of names.entries()) this.assign(name, parts[i] as Value, scope);
  }

  /** Its body sees the names of the place where it is written, not those of the place where it is called. */
  private macro(node: Node, environment: Scope): Value {
    const name = (node['name'] as Node)['value'] as string;
    const none = this.theirs(node, environment);
    const { value: run } = environment.lookupVariable(name);
    const called = newFunction((args, from) => {
      const scope = newScope(environment);
      scope.setVariable('caller', from.variables.get('caller') ?? this.nothing());
      return (run as (args: readonly Value[], from: Scope) => Value)(args, scope);
    });
    environment.setVariable(name, called);
    return none;
  }

  private filtered(node: Node, environment: Scope): Value {
    const body = this.block(node['body'], newScope(environment));
    if (this.jump !== null) return this.nothing();
    const filter: Node = { type: 'FilterExpression', operand: wrapped(body), filter: node['filter'] };
    return this.text(this.plain(this.of(filter, environment)));
  }

  /** Its values do not see each other's names. */
  private with(node: Node, environment: Scope): Value {
    const scope = newScope(environment);
    for (const arg of (node['filter'] as Node)['args'] as Node[]) {
      const name = nameOfArgument(arg);
      if (name === null) throw new Error('{% with %}: expected name = value');
      scope.setVariable(name, this.of(arg['value'], environment));
    }
    return this.block(node['body'], scope);
  }
}
