// Filters of a template, as Jinja has them where the library does not.

import { isTrue, type Node, plainValue, type Scope, type Value } from './engine';
import { Expressions } from './expressions';
import { type JsonLayout, jsonText } from './json_text';
import { ATTRIBUTES, checkArguments, checkHashable, keyOf, mapOf, nameOfArgument, wrapped } from './rules';
import { textFilter } from './text_methods';
import { testOf } from './tokens';
import { isDict, isList, isText, isUndefined, itemsOf, typeName } from './values';

export class Filters extends Expressions {
  protected override own(node: Node, environment: Scope): Value | null {
    return node.type === 'FilterExpression' ? this.filter(node, environment) : super.own(node, environment);
  }

  protected filter(node: Node, environment: Scope): Value {
    const filter = node['filter'] as Node;
    const called = filter.type === 'CallExpression';
    const name = ((called ? filter['callee'] : filter) as Node)['value'] as string;
    const args = called ? (filter['args'] as Node[]) : [];
    const test = testOf(name);
    if (test !== null) return this.compared(test, node, args, environment);
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

  /** A test with arguments. */
  private compared(
    test: { name: string; negate: boolean },
    node: Node,
    args: readonly Node[],
    environment: Scope,
  ): Value {
    const value = this.of(node['operand'], environment);
    const given = args.map((arg) => this.of(arg, environment));
    return this.truth(this.holds(test.name, value, given, environment) !== test.negate);
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
      case 'select':
      case 'reject':
      case 'selectattr':
      case 'rejectattr':
        return this.select(name, operand, args, environment);
      case 'map':
        return this.map(operand, args, environment);
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

  private select(filter: string, operand: Value, args: readonly Node[], environment: Scope): Value {
    const given = args.map((arg) => this.of(arg, environment));
    const path = filter.endsWith('attr') ? given.shift() : undefined;
    const [test, ...others] = given;
    const passes = (item: Value): boolean => {
      const value = path === undefined ? item : this.attribute(item, path);
      return test === undefined ? isTrue(value) : this.holds(String(test.value), value, others, environment);
    };
    const wanted = filter.startsWith('select');
    return this.list(this.all(operand).filter((item) => passes(item) === wanted));
  }

  /** Of None, False and 0 nothing, as in the reference. */
  private all(operand: Value): readonly Value[] {
    return isTrue(operand) ? itemsOf(this.entries(operand)) : [];
  }

  /** By an attribute, or by a filter and its arguments. */
  private map(operand: Value, args: readonly Node[], environment: Scope): Value {
    const items = this.all(operand);
    const [first, ...others] = this.evaluated(args, environment);
    if (first === undefined) throw new Error('filter map: expected a filter, or attribute=');
    if (nameOfArgument(first) !== null) {
      const named = new Map([first, ...others].map((arg) => [nameOfArgument(arg), arg['value'] as Node]));
      const path = named.get('attribute')?.['value'] as Value | undefined;
      if (path === undefined) throw new Error('filter map: expected a filter, or attribute=');
      const otherwise = named.get('default')?.['value'] as Value | undefined;
      return this.list(items.map((item) => this.attribute(item, path, otherwise)));
    }
    const name = String((first['value'] as Value).value);
    if (!/^\w+$/.test(name)) throw new Error(`filter map: '${name}' is no name of a filter`);
    const callee: Node = { type: 'Identifier', value: name };
    const filter = others.length === 0 ? callee : { type: 'CallExpression', callee, args: others };
    return this.list(
      items.map((item) => this.of({ type: 'FilterExpression', operand: wrapped(item), filter }, environment)),
    );
  }

  /** `a.b.0` of a value. `otherwise` stands for each part that is undefined. */
  private attribute(item: Value, path: Value, otherwise?: Value): Value {
    const parts = isText(path) ? (path.value as string).split('.') : [String(path.value)];
    return parts.reduce((of, part) => {
      this.budget.steps(1);
      const value = this.part(of, part);
      return isUndefined(value) && otherwise !== undefined ? otherwise : value;
    }, item);
  }

  private part(of: Value, name: string): Value {
    if (isUndefined(of)) throw new Error(`a value is undefined, so it has no attribute '${name}'`);
    if (isDict(of) || of.type === 'NamespaceValue') return mapOf(of).get(name) ?? this.nothing();
    if (!isList(of) && !isText(of)) return this.nothing();
    if (/^\d+$/.test(name)) {
      const property = wrapped(plainValue(Number(name)));
      return this.of(
        { type: 'MemberExpression', object: wrapped(of), property, computed: true },
        this.global,
      );
    }
    if (ATTRIBUTES.includes(name))
      throw new Error(`the attribute ${name} of a ${typeName(of)} is not supported`);
    return this.nothing();
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
}
