// A long list of which only what is on the screen exists: rows of one height, asked for in pages.
import { Component, type ComponentChildren, type JSX } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

const PAGE = 100;
const BESIDE = 6;

/** A part of the rows as they were last answered, and the version that was asked for last. */
interface Page<Row> {
  rows: readonly Row[] | null;
  asked: string | null;
}

interface Props<Row> {
  total: number;
  rowHeight: number;
  label: string;
  /** Changes when all rows are others. */
  of: string;
  /** Changes when rows may be others: those that are there stay until the new ones are. */
  version: string;
  load: (offset: number, limit: number) => Promise<readonly Row[]>;
  /** Of nothing but the row: it is drawn again only where that is another one. */
  render: (row: Row) => ComponentChildren;
  keyOf: (row: Row) => string;
  selected: string | null;
  onSelect: (row: Row) => void;
}

export function VirtualList<Row>(props: Props<Row>): JSX.Element {
  const { total, rowHeight, of, version, load, onSelect } = props;
  const box = useRef<HTMLDivElement>(null);
  const pages = useRef(new Map<number, Page<Row>>());
  const [window, setWindow] = useState({ first: 0, last: 30 });
  const [, redraw] = useState(0);
  const active = useRef(0);
  // What a key chose before its row was there: selected when it comes.
  const wanted = useRef<number | null>(null);

  useLayoutEffect(() => {
    pages.current = new Map();
    wanted.current = null;
    redraw((count) => count + 1);
  }, [of]);

  const look = (): void => {
    const element = box.current;
    if (!element) return;
    const first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - BESIDE);
    const last = Math.min(total, Math.ceil((element.scrollTop + element.clientHeight) / rowHeight) + BESIDE);
    setWindow((before) => (before.first === first && before.last === last ? before : { first, last }));
  };
  useEffect(() => {
    look();
    const observer = new ResizeObserver(look);
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, [total, of]);

  const rowAt = (index: number): Row | null =>
    pages.current.get(Math.floor(index / PAGE))?.rows?.[index % PAGE] ?? null;
  const choose = (index: number): void => {
    const row = rowAt(index);
    wanted.current = row === null ? index : null;
    if (row !== null) onSelect(row);
  };

  useEffect(() => {
    const all = pages.current;
    const end = Math.min(window.last, total);
    for (let number = Math.floor(window.first / PAGE); number * PAGE < end; number++) {
      const page = all.get(number) ?? { rows: null, asked: null };
      if (page.asked === version) continue;
      all.set(number, page);
      page.asked = version;
      load(number * PAGE, PAGE).then(
        (rows) => {
          if (pages.current !== all || page.asked !== version) return;
          page.rows = rows;
          redraw((count) => count + 1);
          if (wanted.current !== null) choose(wanted.current);
        },
        () => {
          if (page.asked === version) page.asked = null;
        },
      );
    }
  }, [window, total, of, version]);

  const keys = (event: KeyboardEvent): void => {
    const steps: Record<string, number> = {
      ArrowDown: 1,
      j: 1,
      ArrowUp: -1,
      k: -1,
      PageDown: 10,
      PageUp: -10,
      Home: -total,
      End: total,
    };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(total - 1, active.current + step));
    active.current = next;
    const element = box.current as HTMLDivElement;
    const [top, bottom] = [next * rowHeight, (next + 1) * rowHeight];
    if (top < element.scrollTop) element.scrollTop = top;
    else if (bottom > element.scrollTop + element.clientHeight)
      element.scrollTop = bottom - element.clientHeight;
    choose(next);
  };
  const clicked = (row: Row): void => {
    wanted.current = null;
    onSelect(row);
  };
  const shown = [];
  // The focus stays on the list: this says aloud where in it one is.
  let current: string | undefined;
  for (let index = window.first; index < Math.min(window.last, total); index++) {
    const row = rowAt(index);
    const key = row === null ? `empty-${index}` : props.keyOf(row);
    const selected = row !== null && key === props.selected;
    if (selected) current = idOf(index);
    if (selected && wanted.current === null) active.current = index;
    shown.push(
      <ListRow<Row>
        key={index}
        index={index}
        row={row}
        selected={selected}
        total={total}
        height={rowHeight}
        render={props.render}
        onSelect={clicked}
      />,
    );
  }
  return (
    <div
      class="list"
      ref={box}
      onScroll={look}
      onKeyDown={keys}
      role="listbox"
      aria-label={props.label}
      aria-activedescendant={current}
      tabIndex={0}
    >
      <div class="rows" style={{ height: `${total * rowHeight}px` }}>
        {shown}
      </div>
    </div>
  );
}

const idOf = (index: number): string => `row-${index}`;

interface RowProps<Row> {
  index: number;
  row: Row | null;
  selected: boolean;
  total: number;
  height: number;
  render: (row: Row) => ComponentChildren;
  onSelect: (row: Row) => void;
}

/** While the list is scrolled most rows stay as they are: these are not looked at again. */
class ListRow<Row> extends Component<RowProps<Row>> {
  override shouldComponentUpdate(next: Readonly<RowProps<Row>>): boolean {
    const { row, selected, total, height } = this.props;
    return next.row !== row || next.selected !== selected || next.total !== total || next.height !== height;
  }

  override render({ index, row, selected, total, height, render }: RowProps<Row>): JSX.Element {
    return (
      <div
        id={idOf(index)}
        class={`row ${selected ? 'selected' : ''}`}
        role="option"
        aria-selected={selected}
        aria-setsize={total}
        aria-posinset={index + 1}
        style={{ transform: `translateY(${index * height}px)`, height: `${height}px` }}
        onClick={() => row !== null && this.props.onSelect(row)}
      >
        {row === null ? <span class="soft">…</span> : render(row)}
      </div>
    );
  }
}
