// What the model wrote: a list to choose from, and one answer in full.
import '../styles/pages/samples.css';
import type { JSX } from 'preact';
import { useCallback, useEffect, useState } from 'preact/hooks';
import type { RunDetail, SamplePage, SampleRow } from '../../../ts/ui/protocol';
import { chatTurns } from '../lib/chat';
import { number, plural } from '../lib/format';
import { Empty, Problem, Segments } from '../parts/basics';
import { Sample, Score } from '../parts/sample';
import { VirtualList } from '../parts/virtual_list';
import { ask, type Query, useAnswer } from '../state/api';
import { useStamp } from '../state/live';
import { replaceParam } from '../state/route';
import { PromptAcross } from './prompt_across';

const ROW = 76;

interface Filter {
  kind: '' | 'train' | 'validation';
  stepFrom: string;
  stepTo: string;
  scoreFrom: string;
  scoreTo: string;
  lengthFrom: string;
  lengthTo: string;
  source: string;
  text: string;
  order: string;
}

const ALL: Filter = {
  kind: '',
  stepFrom: '',
  stepTo: '',
  scoreFrom: '',
  scoreTo: '',
  lengthFrom: '',
  lengthTo: '',
  source: '',
  text: '',
  order: 'newest',
};

interface Props {
  id: string;
  detail: RunDetail | null;
  params: URLSearchParams;
}

/** What was typed, once there was a pause. */
function useSettled<T>(value: T, milliseconds: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [JSON.stringify(value)]);
  return settled;
}

export function SamplesPage({ id, params }: Props): JSX.Element {
  const across = params.get('same');
  if (across !== null) return <PromptAcross id={id} sample={across} />;
  return <SampleBrowser id={id} params={params} />;
}

function SampleBrowser({ id, params }: Omit<Props, 'detail'>): JSX.Element {
  const [filter, setFilter] = useState<Filter>(ALL);
  const [more, setMore] = useState(false);
  const settled = useSettled(filter, 250);
  const stamp = useStamp([id], 'samples');
  const query: Query = { run: id, ...settled };
  const { data, error } = useAnswer<SamplePage>('samples', { ...query, limit: 100 }, stamp);
  const selected = params.get('sample');
  const set = (change: Partial<Filter>): void => setFilter((before) => ({ ...before, ...change }));
  const load = useCallback(
    async (offset: number, limit: number) =>
      (await ask<SamplePage>('samples', { ...query, offset, limit })).rows,
    [JSON.stringify(query), stamp],
  );
  if (error !== null && data === null) return <Problem text={error} />;
  if (data !== null && data.all === 0)
    return (
      <Empty title="No samples yet">
        Runs of troupe train write a few of every step; trainer.rollout_data_dir inside the run directory has
        all.
      </Empty>
    );
  const range = (name: string, from: keyof Filter, to: keyof Filter): JSX.Element => (
    <span class="range">
      <input
        type="number"
        step="any"
        placeholder={`${name} from`}
        aria-label={`${name} from`}
        value={filter[from]}
        onInput={(event) => set({ [from]: event.currentTarget.value })}
      />
      <input
        type="number"
        step="any"
        placeholder="to"
        aria-label={`${name} to`}
        value={filter[to]}
        onInput={(event) => set({ [to]: event.currentTarget.value })}
      />
    </span>
  );
  const active = Object.entries(filter).filter(([key, value]) => value !== ALL[key as keyof Filter]).length;
  return (
    <>
      <div class="head controls">
        <input
          type="search"
          class="find"
          placeholder="Text of prompt or answer"
          aria-label="Find text"
          value={filter.text}
          onInput={(event) => set({ text: event.currentTarget.value })}
        />
        <Segments
          label="Kind"
          value={filter.kind}
          options={[
            ['', 'all'],
            ['train', 'train'],
            ['validation', 'validation'],
          ]}
          onChange={(kind) => set({ kind })}
        />
        <label class="field">
          <span class="hidden">Order</span>
          <select value={filter.order} onChange={(event) => set({ order: event.currentTarget.value })}>
            <option value="newest">newest first</option>
            <option value="oldest">oldest first</option>
            <option value="best">best score first</option>
            <option value="worst">worst score first</option>
            <option value="longest">longest first</option>
          </select>
        </label>
        <button type="button" aria-expanded={more} onClick={() => setMore(!more)}>
          Filters{active > 0 ? ` (${active})` : ''}
        </button>
        <span class="soft num">
          {data === null ? '' : `${number(data.total)} of ${plural(data.all, 'sample')}`}
        </span>
      </div>
      {more ? (
        <div class="head filters">
          {range('score', 'scoreFrom', 'scoreTo')}
          {range('length', 'lengthFrom', 'lengthTo')}
          {range('step', 'stepFrom', 'stepTo')}
          <label class="field">
            <span class="hidden">Data source</span>
            <select value={filter.source} onChange={(event) => set({ source: event.currentTarget.value })}>
              <option value="">every data source</option>
              {(data?.sources ?? []).map((source) => (
                <option key={source} value={source}>
                  {source}
                </option>
              ))}
            </select>
          </label>
          <button type="button" class="plain" disabled={active === 0} onClick={() => setFilter(ALL)}>
            clear
          </button>
        </div>
      ) : null}
      <div class={`browser ${selected === null ? '' : 'has-selected'}`}>
        <div class="card list-card">
          {data !== null && data.total === 0 ? (
            <p class="soft pad">None is like that.</p>
          ) : (
            <VirtualList<SampleRow>
              total={data?.total ?? 0}
              rowHeight={ROW}
              label="Samples"
              of={JSON.stringify(settled)}
              version={stamp}
              load={load}
              keyOf={(row) => row.key}
              selected={selected}
              onSelect={(row) => replaceParam('sample', row.key)}
              render={(row) => <Row row={row} />}
            />
          )}
        </div>
        <div class="card detail-card">
          {selected === null ? (
            <div class="empty">
              <div>
                <strong>Choose a sample</strong>
                <div>Arrow keys move through the list.</div>
              </div>
            </div>
          ) : (
            <Sample id={id} sample={selected} onClose={() => replaceParam('sample', null)} />
          )}
        </div>
      </div>
    </>
  );
}

const Row = ({ row }: { row: SampleRow }): JSX.Element => (
  <>
    <div class="row-head">
      <Score score={row.score} />
      <span class="num">step {number(row.step)}</span>
      {row.kind === 'validation' ? <span class="badge accent">val</span> : null}
      {row.turns > 0 ? <span class="badge">{plural(row.turns, 'turn')}</span> : null}
      <span class="soft num">
        {number(row.length)} {row.inTokens ? 'tokens' : 'characters'}
      </span>
      <span class="soft source">{row.source ?? ''}</span>
    </div>
    <div class="row-text">{oneLine(asked(row.input))}</div>
    <div class="row-text soft">{oneLine(row.output) || '(empty)'}</div>
  </>
);

/** What was asked last, without the template around it. */
const asked = (input: string): string => chatTurns(input).at(-1)?.content ?? input;

const oneLine = (text: string): string => text.replace(/\s+/g, ' ').trim();
