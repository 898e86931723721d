// Expressions of a template: the library's interpreter within a budget, and as Python where the library is not.
import type { Budget } from './budget';
import { Interpreter, isTrue, type Node, plainValue, type Scope, type Value } from './engine';
import { Loop } from './loop';
import {
  COMPARING_TESTS,
  checkHashable,
  DICT_METHODS,
  mapOf,
  nameOf,
  nameOfArgument,
  OF_LIST,
  OF_TEXT,
  TESTS,
  wrapped,
} from './rules';
import { textCall } from './text_calls';
import { textMethod, words } from './text_methods';
import { equal, isDict, isList, isNumber, isText, isUndefined, itemsOf, text, typeName } from './values';

const ARITHMETIC = ['+', '-', '*', '/', '//', '%', '**'];

/** What an expression gives. */
export class Expressions extends Interpreter {
  constructor(
    environment: Scope,
    protected readonly budget: Budget,
  ) {
    super(environment);
  }

  override evaluate(node: Node | undefined, environment: Scope): Value {
    this.budget.steps(1);
    return (node && this.own(node, environment)) ?? this.theirs(node, environment);
  }

  /** null: the library does it. */
  protected own(node: Node, environment: Scope): Value | null {
    switch (node.type) {
      case 'Value':
        return node['value'] as Value;
      case 'Output':
        return this.text(this.plain(this.of(node['expression'], environment)));
      case 'BinaryExpression':
        return this.binary(node, environment);
      case 'CallExpression':
        return this.call(node, environment);
      case 'MemberExpression':
        return this.member(node, environment);
      case 'TestExpression':
        return this.test(node, environment);
      default:
        return null;
    }
  }

  protected of(node: unknown, environment: Scope): Value {
    return this.evaluate(node as Node | undefined, environment);
  }

  /** As the library does it. A value that it has not comes as nothing. */
  protected theirs(node: Node | undefined, environment: Scope): Value {
    return super.evaluate(node, environment) ?? plainValue(undefined);
  }

  protected nothing(): Value {
    return plainValue(undefined);
  }

  protected literal(type: string, value: unknown): Value {
    return this.theirs({ type, value }, this.global);
  }

  protected plain(value: Value): string {
    return text(value, this.budget.steps);
  }

  protected text(value: string): Value {
    this.budget.whole(value);
    return this.literal('StringLiteral', value);
  }

  protected list(values: readonly Value[]): Value {
    return this.literal('ArrayLiteral', values.map(wrapped));
  }

  protected truth(value: boolean): Value {
    return this.global.lookupVariable(value ? 'true' : 'false');
  }

  protected binary(node: Node, environment: Scope): Value {
    const operator = (node['operator'] as { value: string }).value;
    const left = this.of(node['left'], environment);
    if (operator === 'and' || operator === 'or')
      return this.theirs({ ...node, left: wrapped(left) }, environment);
    const right = this.of(node['right'], environment);
    if (ARITHMETIC.includes(operator) && [left, right].some(({ value }) => typeof value === 'bigint'))
      throw new Error(`cannot compute with integers beyond 2^53 (${operator})`);
    switch (operator) {
      case '==':
        return this.truth(equal(left, right, this.budget.steps));
      case '!=':
        return this.truth(!equal(left, right, this.budget.steps));
      case '~':
        return this.text(this.plain(left) + this.plain(right));
      case '*':
        if (isText(left) && isNumber(right)) return this.repeated(left, right);
        if (isText(right) && isNumber(left)) return this.repeated(right, left);
        break;
      case '%':
        if (isNumber(left) && isNumber(right)) return this.modulo(left, right);
        break;
      case '+':
        if (isText(left) !== isText(right))
          throw new Error(`cannot add a ${typeName(right)} to a ${typeName(left)} with +`);
        break;
      case 'in':
      case 'not in':
        return this.truth(this.contains(right, left) === (operator === 'in'));
    }
    const value = this.theirs({ ...node, left: wrapped(left), right: wrapped(right) }, environment);
    this.budget.whole(value.value);
    return value;
  }

  private repeated(of: Value, times: Value): Value {
    if (times.type !== 'IntegerValue') throw new Error('cannot repeat a str so many times');
    const count = Math.max(0, times.value as number);
    this.budget.characters((of.value as string).length * count);
    return this.text((of.value as string).repeat(count));
  }

  protected modulo(left: Value, right: Value): Value {
    const divisor = right.value as number;
    if (divisor === 0) throw new Error('modulo by zero');
    const rest = (left.value as number) % divisor;
    const floored = rest !== 0 && rest < 0 !== divisor < 0 ? rest + divisor : rest;
    const float = left.type === 'FloatValue' || right.type === 'FloatValue';
    return this.literal(float ? 'FloatLiteral' : 'IntegerLiteral', floored);
  }

  private contains(container: Value, item: Value): boolean {
    if (isUndefined(container)) return false;
    if (isList(container)) {
      this.budget.whole(container.value);
      return itemsOf(container).some((entry) => equal(entry, item, this.budget.steps));
    }
    if (isDict(container)) {
      checkHashable(item);
      return isText(item) && mapOf(container).has(item.value as string);
    }
    if (isText(container) && isText(item)) {
      this.budget.search(container.value, item.value);
      return (container.value as string).includes(item.value as string);
    }
    throw new Error(`cannot look for a ${typeName(item)} in a ${typeName(container)}`);
  }

  private call(node: Node, environment: Scope): Value {
    const callee = node['callee'] as Node;
    const args = node['args'] as Node[];
    if (callee.type !== 'MemberExpression' || callee['computed'] === true)
      return this.called(node, this.of(callee, environment), nameOf(callee), environment);
    const object = this.of(callee['object'], environment);
    const method = (callee['property'] as Node)['value'] as string;
    if (isDict(object) && method === 'items' && args.length === 0) return this.pairs(object);
    const given = { ...node, args: this.evaluated(args, environment) };
    const own = isText(object) ? this.ofText(object, method, given.args) : null;
    if (own !== null) return own;
    const found = this.of({ ...callee, object: wrapped(object) }, environment);
    if (isUndefined(found)) throw new Error(`a ${typeName(object)} has no method '${method}' here`);
    return this.called(given, found, `'${method}'`, environment);
  }

  /** By the library. */
  private called(node: Node, callee: Value, name: string, environment: Scope): Value {
    if (callee.type !== 'FunctionValue')
      throw new Error(`${name} is called, expected a function, got: ${typeName(callee)}`);
    const value = this.theirs({ ...node, callee: wrapped(callee) }, environment);
    this.budget.whole(value.value);
    return value;
  }

  /** Arguments with their values, but for those that are lists or dicts of arguments. */
  protected evaluated(args: readonly Node[], environment: Scope): Node[] {
    return args.map((arg) => {
      if (arg.type.includes('Spread')) return arg;
      if (nameOfArgument(arg) === null) return wrapped(this.of(arg, environment));
      return { ...arg, value: wrapped(this.of(arg['value'], environment)) };
    });
  }

  /** A method of a text; null: the library's does. */
  private ofText(object: Value, method: string, args: readonly Node[]): Value | null {
    const value = object.value as string;
    if (method === 'split' && args.length === 0) return this.texts(words(value));
    if (args.some(({ type }) => type.includes('Spread'))) return null;
    const given = args.filter(({ type }) => type === 'Value').map((arg) => arg['value'] as Value);
    const named = new Map<string, Value>();
    for (const arg of args) {
      const name = nameOfArgument(arg);
      if (name !== null) named.set(name, (arg['value'] as Node)['value'] as Value);
    }
    this.budget.whole(value);
    const own = textCall(value, {
      method,
      args: given,
      named,
      budget: this.budget,
      plain: (item) => this.plain(item),
      entries: (item) => this.entries(item),
    });
    if (typeof own === 'number') return this.literal('IntegerLiteral', own);
    if (Array.isArray(own)) return this.texts(own);
    if (own !== null) return this.text(own);
    for (const item of given) this.budget.search(value, item.value);
    if (named.size > 0) return null;
    const changed = textMethod(
      method,
      value,
      given.map((item) => item.value),
    );
    return changed === null ? null : this.text(changed);
  }

  private texts(texts: string[]): Value {
    this.budget.whole(texts);
    return this.list(texts.map((part) => this.text(part)));
  }

  /** What a list holds, of a text its characters, of a dict its keys, of what is undefined nothing. */
  protected entries(value: Value): Value {
    const list = this.operand('list', value);
    if (!isList(list)) throw new Error(`a ${typeName(value)} has no entries to go through`);
    this.budget.whole(list.value);
    return list;
  }

  private member(node: Node, environment: Scope): Value {
    const object = this.of(node['object'], environment);
    const { computed } = node;
    const property = node['property'] as Node;
    const name = computed === true ? null : String(property['value']);
    if (object instanceof Loop) return object.attribute(name ?? this.of(property, environment).value);
    if (isUndefined(object)) {
      const what = nameOf(node['object'] as Node);
      throw new Error(
        `${what} is undefined, so it has no ${name === null ? 'elements' : `attribute '${name}'`}`,
      );
    }
    if (name !== null && isDict(object) && DICT_METHODS.includes(name)) {
      const builtins = (object as unknown as { builtins: ReadonlyMap<string, Value> }).builtins;
      const method = builtins.get(name);
      if (method !== undefined) return method;
    }
    // The library makes a list of the characters first.
    if (property.type === 'SliceExpression') this.budget.whole(object.value, 16);
    else if (computed === true) {
      const index = this.of(property, environment);
      return (
        this.element(object, index) ??
        this.theirs({ ...node, object: wrapped(object), property: wrapped(index) }, environment)
      );
    }
    return this.theirs({ ...node, object: wrapped(object) }, environment);
  }

  /** By number; null: the library knows. */
  private element(object: Value, index: Value): Value | null {
    if (index.type !== 'IntegerValue' || isList(object)) return null;
    if (!isText(object)) return this.theirs(undefined, this.global);
    const at = index.value as number;
    const whole = object.value as string;
    // A character takes two units at most.
    const near = at >= 0 ? whole.slice(0, 2 * (at + 1)) : whole.slice(2 * at);
    this.budget.whole(near);
    const character = Array.from(near).at(at);
    return character === undefined ? this.theirs(undefined, this.global) : this.text(character);
  }

  private test(node: Node, environment: Scope): Value {
    const name = (node['test'] as Node)['value'] as string;
    const holds = this.holds(name, this.of(node['operand'], environment), [], environment);
    return this.truth(holds !== node['negate']);
  }

  protected holds(test: string, value: Value, args: readonly Value[], environment: Scope): boolean {
    const operator = Object.hasOwn(COMPARING_TESTS, test) ? COMPARING_TESTS[test] : undefined;
    const [other] = args;
    if (operator !== undefined || test === 'divisibleby') {
      if (other === undefined || args.length > 1) throw new Error(`test ${test}: expected one argument`);
      const computed = { operator: { value: operator ?? '%' }, left: wrapped(value), right: wrapped(other) };
      const result = this.of({ type: 'BinaryExpression', ...computed }, environment);
      return isTrue(result) === (operator !== undefined);
    }
    if (other !== undefined) throw new Error(`test ${test}: arguments are not supported`);
    const own = Object.hasOwn(TESTS, test) ? TESTS[test] : undefined;
    if (own !== undefined) return own(value);
    const node = { type: 'TestExpression', operand: wrapped(value), negate: false, test: { value: test } };
    return isTrue(this.theirs(node, environment));
  }

  /** What a filter is given, as the kind of value that it takes: of anything its text, or the list of its parts. */
  protected operand(filter: string, given: Value): Value {
    if (OF_TEXT.includes(filter)) return isText(given) ? given : this.text(this.plain(given));
    if (!OF_LIST.includes(filter)) return given;
    if (isUndefined(given)) return this.list([]);
    if (isDict(given)) return this.list([...mapOf(given).keys()].map((key) => this.text(key)));
    return isText(given) && filter !== 'reverse' ? this.characters(given) : given;
  }

  protected characters(given: Value): Value {
    this.budget.whole(given.value);
    return this.list(Array.from(given.value as string, (character) => this.text(character)));
  }

  protected pairs(dict: Value): Value {
    const pair = ([key, item]: [string, Value]): Value =>
      this.literal('TupleLiteral', [wrapped(this.text(key)), wrapped(item)]);
    return this.list(Array.from(mapOf(dict), pair));
  }
}
