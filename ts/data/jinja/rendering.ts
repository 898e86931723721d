// One rendering of a template: the library's interpreter within a budget, and as Python where the library is not.
import type { Budget } from './budget';
import { Interpreter, type Node, type Scope, type Value } from './engine';
import { type JsonLayout, jsonText } from './json_text';
import {
  checkArguments,
  checkHashable,
  DICT_METHODS,
  keyOf,
  mapOf,
  nameOf,
  nameOfArgument,
  OF_LIST,
  OF_TEXT,
  TESTS,
  wrapped,
} from './rules';
import { textFilter, textMethod, words } from './text_methods';
import { equal, isDict, isList, isNumber, isText, isUndefined, itemsOf, text, typeName } from './values';

const ARITHMETIC = ['+', '-', '*', '/', '//', '%', '**'];

type Evaluated = (node: Node, environment: Scope) => Value;

export class Rendering extends Interpreter {
  private readonly special: Readonly<Record<string, Evaluated>> = {
    Value: (node) => node['value'] as Value,
    Output: (node, environment) => this.text(this.plain(this.of(node['expression'], environment))),
    BinaryExpression: (node, environment) => this.binary(node, environment),
    FilterExpression: (node, environment) => this.filter(node, environment),
    CallExpression: (node, environment) => this.call(node, environment),
    MemberExpression: (node, environment) => this.member(node, environment),
    TestExpression: (node, environment) => this.test(node, environment),
    For: (node, environment) => this.loop(node, environment),
  };

  constructor(
    environment: Scope,
    private readonly budget: Budget,
  ) {
    super(environment);
  }

  override evaluate(node: Node | undefined, environment: Scope): Value {
    this.budget.steps(1);
    const own = node && Object.hasOwn(this.special, node.type) ? this.special[node.type] : undefined;
    return node && own ? own(node, environment) : this.theirs(node, environment);
  }

  private of(node: unknown, environment: Scope): Value {
    return this.evaluate(node as Node | undefined, environment);
  }

  /** As the library does it. A value that it has not comes as nothing. */
  private theirs(node: Node | undefined, environment: Scope): Value {
    return super.evaluate(node, environment) ?? super.evaluate(undefined, environment);
  }

  private literal(type: string, value: unknown): Value {
    return this.theirs({ type, value }, this.global);
  }

  private plain(value: Value): string {
    return text(value, this.budget.steps);
  }

  private text(value: string): Value {
    this.budget.whole(value);
    return this.literal('StringLiteral', value);
  }

  private list(values: readonly Value[]): Value {
    return this.literal('ArrayLiteral', values.map(wrapped));
  }

  private truth(value: boolean): Value {
    return this.global.lookupVariable(value ? 'true' : 'false');
  }

  private binary(node: Node, environment: Scope): Value {
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

  private modulo(left: Value, right: Value): Value {
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

  private filter(node: Node, environment: Scope): Value {
    const filter = node['filter'] as Node;
    const called = filter.type === 'CallExpression';
    const name = ((called ? filter['callee'] : filter) as Node)['value'] as string;
    const args = called ? (filter['args'] as Node[]) : [];
    checkArguments(name, args);
    const operand = this.operand(name, this.of(node['operand'], environment));
    const own = this.ownFilter(name, operand, args, environment);
    if (own !== null) return own;
    if (name !== 'first' && name !== 'last') this.budget.whole(operand.value);
    if (name === 'sort' && isList(operand))
      this.budget.order(itemsOf(operand).map((item) => this.plain(item).length));
    const value = this.theirs({ ...node, operand: wrapped(operand) }, environment);
    this.budget.whole(value.value);
    return value;
  }

  /** What a filter is given, as the kind of value that it takes: of anything its text, or the list of its parts. */
  private operand(filter: string, given: Value): Value {
    if (OF_TEXT.includes(filter)) return isText(given) ? given : this.text(this.plain(given));
    if (!OF_LIST.includes(filter)) return given;
    if (isUndefined(given)) return this.list([]);
    if (isDict(given)) return this.list([...mapOf(given).keys()].map((key) => this.text(key)));
    return isText(given) && filter !== 'reverse' ? this.characters(given) : given;
  }

  private characters(given: Value): Value {
    this.budget.whole(given.value);
    return this.list(Array.from(given.value as string, (character) => this.text(character)));
  }

  /** null: the library's does. */
  private ownFilter(name: string, operand: Value, args: readonly Node[], environment: Scope): Value | null {
    switch (name) {
      case 'string':
        return operand;
      case 'length':
      case 'count':
        return this.length(operand);
      case 'items':
        return isDict(operand) ? this.pairs(operand) : null;
      case 'unique':
        return isList(operand) ? this.unique(operand) : null;
      case 'int':
        return operand.type === 'FloatValue'
          ? this.literal('IntegerLiteral', Math.trunc(operand.value as number))
          : null;
      case 'join': {
        if (!isList(operand)) return null;
        const [separator] = args.map((arg) =>
          this.of(arg.type === 'KeywordArgumentExpression' ? arg['value'] : arg, environment),
        );
        if (separator !== undefined && !isText(separator)) return null;
        const between = (separator?.value as string | undefined) ?? '';
        const items = itemsOf(operand).map((item) => this.plain(item));
        this.budget.characters(items.reduce((sum, item) => sum + item.length + between.length, 0));
        return this.text(items.join(between));
      }
      case 'tojson': {
        this.budget.whole(operand.value);
        return this.text(jsonText(operand, this.jsonLayout(args, environment)));
      }
      default: {
        const value = isText(operand) && args.length === 0 ? textFilter(name, operand.value as string) : null;
        return value === null ? null : this.text(value);
      }
    }
  }

  private jsonLayout(args: readonly Node[], environment: Scope): JsonLayout {
    const given = new Map(
      args.map((arg) => [nameOfArgument(arg), this.of(arg['value'], environment).value] as const),
    );
    const indent = given.get('indent') ?? null;
    const separators = given.get('separators') as Value[] | null | undefined;
    if (indent !== null && !(Number.isInteger(indent) && (indent as number) >= 0 && (indent as number) <= 64))
      throw new Error('tojson: expected indent to be an integer from 0 to 64');
    const fallback: [string, string] = [indent === null ? ', ' : ',', ': '];
    return {
      indent: indent as number | null,
      ensureAscii: Boolean(given.get('ensure_ascii')),
      sortKeys: Boolean(given.get('sort_keys')),
      spend: this.budget.steps,
      separators: Array.isArray(separators)
        ? [this.plain(separators[0] as Value), this.plain(separators[1] as Value)]
        : fallback,
    };
  }

  private pairs(dict: Value): Value {
    const pair = ([key, item]: [string, Value]): Value =>
      this.literal('TupleLiteral', [wrapped(this.text(key)), wrapped(item)]);
    return this.list(Array.from(mapOf(dict), pair));
  }

  /** Letter case does not count. */
  private unique(list: Value): Value {
    this.budget.whole(list.value);
    const seen = new Set<unknown>();
    const first = (item: Value): boolean => {
      checkHashable(item);
      const key = isText(item) ? `'${(item.value as string).toLowerCase()}` : keyOf(item, this.budget.steps);
      return seen.size < seen.add(key).size;
    };
    return this.list(itemsOf(list).filter(first));
  }

  /** Of a text: its characters, not the halves of them that JavaScript counts. */
  private length(operand: Value): Value {
    const { value } = operand;
    if (isText(operand)) {
      this.budget.whole(value, 8);
      let length = 0;
      for (const _ of value as string) length++;
      return this.literal('IntegerLiteral', length);
    }
    if (isList(operand)) return this.literal('IntegerLiteral', itemsOf(operand).length);
    if (isDict(operand)) return this.literal('IntegerLiteral', mapOf(operand).size);
    if (isUndefined(operand)) return this.literal('IntegerLiteral', 0);
    throw new Error(`a ${typeName(operand)} has no length`);
  }

  private call(node: Node, environment: Scope): Value {
    const callee = node['callee'] as Node;
    const args = node['args'] as Node[];
    if (callee.type !== 'MemberExpression' || callee['computed'] === true) {
      const value = this.theirs(node, environment);
      this.budget.whole(value.value);
      return value;
    }
    const object = this.of(callee['object'], environment);
    const method = (callee['property'] as Node)['value'] as string;
    const given = { ...callee, object: wrapped(object) };
    if (isDict(object) && method === 'items' && args.length === 0) return this.pairs(object);
    if (!isText(object)) return this.theirs({ ...node, callee: given }, environment);
    if (method === 'split' && args.length === 0)
      return this.list(words(object.value as string).map((word) => this.text(word)));
    const simple = args.every(({ type }) => !/Keyword|Spread/.test(type));
    const values = simple ? args.map((arg) => this.of(arg, environment)) : [];
    this.budget.whole(object.value);
    for (const { value } of values) this.budget.search(object.value, value);
    const own = simple
      ? textMethod(
          method,
          object.value as string,
          values.map(({ value }) => value),
        )
      : null;
    if (own !== null) return this.text(own);
    const value = this.theirs(
      { ...node, callee: given, args: simple ? values.map(wrapped) : args },
      environment,
    );
    this.budget.whole(value.value);
    return value;
  }

  private member(node: Node, environment: Scope): Value {
    const object = this.of(node['object'], environment);
    const { computed } = node;
    const property = node['property'] as Node;
    const name = computed === true ? null : String(property['value']);
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
    const own = Object.hasOwn(TESTS, name) ? TESTS[name] : undefined;
    if (own === undefined) return this.theirs(node, environment);
    return this.truth(own(this.of(node['operand'], environment)) !== node['negate']);
  }

  /** A text is a list of its characters, and what is undefined an empty list. */
  private loop(node: Node, environment: Scope): Value {
    const iterable = node['iterable'] as Node;
    const select = iterable.type === 'SelectExpression';
    const over = this.operand('list', this.of(select ? iterable['lhs'] : iterable, environment));
    // The library makes a scope for each entry before the first is looked at.
    this.budget.whole(over.value, 5);
    const unpacks = (node['loopvar'] as Node).type === 'TupleLiteral' && isList(over);
    // The library takes apart lists alone.
    const value = wrapped(
      unpacks
        ? this.list(itemsOf(over).map((item) => (isList(item) ? this.list(itemsOf(item)) : item)))
        : over,
    );
    return this.theirs({ ...node, iterable: select ? { ...iterable, lhs: value } : value }, environment);
  }
}
