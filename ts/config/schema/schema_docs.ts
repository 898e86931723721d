import { show } from '../../base/text';
import { type Field, isLeaf, type Section } from './field';

interface Row {
  path: string;
  cells: string[];
}

/** The keys of a schema as Markdown tables: those with a meaning, those with one accepted value, and the rest. */
export function documentSchema(schema: Section): string {
  const fields: Row[] = [];
  const others: Row[] = [];
  collect(schema, '', fields, others);
  return [
    table(['key', 'value', 'default', ''], fields),
    '',
    'Keys of verl that change nothing here, accept one value, or have moved:',
    '',
    table(['key', 'accepted', 'why'], others),
  ].join('\n');
}

function collect(schema: Section, prefix: string, fields: Row[], others: Row[]): void {
  for (const [key, entry] of Object.entries(schema)) {
    const path = prefix + key;
    if (!isLeaf(entry)) collect(entry, `${path}.`, fields, others);
    else if (entry.kind === 'field') {
      fields.push({ path, cells: [entry.type.name, defaultOf(entry), entry.doc] });
    } else if (entry.kind === 'ignored') others.push({ path, cells: ['anything', entry.reason] });
    else if (entry.kind === 'moved')
      others.push({ path, cells: ['older name', `now ${entry.to.replace(/^\./, '')}`] });
    else
      others.push({
        path,
        cells: [entry.accepts.map((value) => code(show(value))).join(', '), entry.reason],
      });
  }
}

function defaultOf(field: Field<unknown>): string {
  if (field.from !== null) return `= ${code(field.from)}`;
  return field.value === undefined ? 'required' : code(show(field.value));
}

const code = (text: string): string => `\`${text}\``;

function table(head: readonly string[], rows: readonly Row[]): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;
  const escaped = (cell: string): string => cell.replaceAll('|', '\\|');
  return [
    line(head),
    line(head.map(() => '---')),
    ...rows.map(({ path, cells }) => line([code(path), ...cells.map(escaped)])),
  ].join('\n');
}
