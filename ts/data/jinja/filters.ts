// Filters of a template, as Jinja has them where the library does not.

import type { Node, Scope, Value } from './engine';
import { Expressions } from './expressions';
import { type JsonLayout, jsonText } from './json_text';
import { checkArguments, checkHashable, keyOf, mapOf, nameOfArgument, wrapped } from './rules';
import { textFilter } from './text_methods';
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
