// One answer in full: as a chat, or turn by turn where an agent worked. What a model wrote is text, and nothing but text.
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { SampleDetail, Turn } from '../../../ts/ui/protocol';
import { chatTurns } from '../lib/chat';
import { duration, number } from '../lib/format';
import { useAnswer } from '../state/api';
import { href } from '../state/route';
import { Icon, Problem } from './basics';

export const Score = ({ score }: { score: number | null }): JSX.Element => (
  <span
    class={`badge num ${score === null ? '' : score > 0 ? 'good' : score < 0 ? 'bad' : 'zero'}`}
    title="score"
  >
    {number(score)}
  </span>
);

/** Longer texts are shown in part until somebody asks for the rest. */
const LONG = 12_000;

export function Text({ text, class: name = '' }: { text: string; class?: string }): JSX.Element {
  const [all, setAll] = useState(false);
  const cut = !all && text.length > LONG;
  return (
    <div class={`text ${name}`}>
      {cut ? text.slice(0, LONG) : text}
      {cut ? (
        <button type="button" class="small" onClick={() => setAll(true)}>
          show {number(text.length - LONG)} more characters
        </button>
      ) : null}
    </div>
  );
}

export function Bubble(props: { who: string; text: string; side?: string }): JSX.Element {
  return (
    <div class={`bubble ${props.who === 'assistant' ? 'answer' : ''}`}>
      <div class="who">
        {props.who}
        {props.side ? <span class="soft">{props.side}</span> : null}
      </div>
      <Text text={props.text} />
    </div>
  );
}

export function Sample({
  id,
  sample,
  onClose,
}: {
  id: string;
  sample: string;
  onClose: () => void;
}): JSX.Element {
  const { data, error } = useAnswer<SampleDetail>('sample', { run: id, key: sample });
  const [raw, setRaw] = useState(false);
  if (error !== null) return <Problem text={error} />;
  if (data === null) return <p class="soft pad">…</p>;
  const { row } = data;
  return (
    <article class="sample" aria-label={`Sample of step ${row.step}`}>
      <header class="sample-head">
        <button type="button" class="plain icon close" onClick={onClose} aria-label="Back to the list">
          <Icon name="back" />
        </button>
        <Score score={row.score} />
        <strong class="num">step {number(row.step)}</strong>
        <span class="soft num">
          {row.kind} · {number(row.length)} {row.inTokens ? 'tokens' : 'characters'}
          {row.source === null ? '' : ` · ${row.source}`}
        </span>
        <span class="grow" />
        <a class="small button" href={href('samples', [id], { same: row.key })}>
          this prompt across steps
        </a>
        {data.tokens ? (
          <a
            class="small button"
            href={href('tokens', [id], { step: data.tokens.step, index: data.tokens.index })}
          >
            tokens
          </a>
        ) : null}
        <button type="button" class="small" aria-pressed={raw} onClick={() => setRaw(!raw)}>
          {raw ? 'as chat' : 'as it is'}
        </button>
      </header>
      <div class="sample-body">
        {raw ? (
          <>
            <Bubble who="prompt" text={data.input} />
            <Bubble who="response" text={data.output} />
          </>
        ) : data.turns ? (
          <WholeTrajectory detail={data} turns={data.turns} />
        ) : (
          <>
            {chatTurns(data.input).map((turn, i) => (
              <Bubble key={i} who={turn.role} text={turn.content} />
            ))}
            <Bubble who="assistant" text={data.output === '' ? '(empty)' : data.output} />
          </>
        )}
        <Extras detail={data} />
      </div>
    </article>
  );
}

/** Agents note what they like: where that lacks the task or the answer, they stand around it. */
function WholeTrajectory({ detail, turns }: { detail: SampleDetail; turns: readonly Turn[] }): JSX.Element {
  const asked = turns.some(({ role }) => role === 'user' || role === 'system');
  const answered = turns.some(({ role }) => role === 'assistant');
  return (
    <>
      {asked
        ? null
        : chatTurns(detail.input).map((turn, i) => <Bubble key={i} who={turn.role} text={turn.content} />)}
      <Trajectory turns={turns} />
      {answered ? null : <Bubble who="assistant" text={detail.output} />}
    </>
  );
}

const shown = (value: unknown): string =>
  typeof value === 'string' ? value : (JSON.stringify(value, null, 1) ?? '');

function Extras({ detail: { groundTruth, extras } }: { detail: SampleDetail }): JSX.Element {
  const rows: [string, unknown][] = [['ground truth', groundTruth], ...Object.entries(extras)];
  return (
    <dl class="extras">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd class="mono">{shown(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Tool calls and what they gave are folded: the thread of what the model said comes first. */
export const Trajectory = ({ turns }: { turns: readonly Turn[] }): JSX.Element => (
  <ol class="trajectory">
    {turns.map((turn, i) => (
      <li key={i}>
        <TurnView turn={turn} number={i + 1} />
      </li>
    ))}
  </ol>
);

function TurnView({ turn, number: place }: { turn: Turn; number: number }): JSX.Element {
  const side = [
    turn.seconds === undefined ? '' : duration(turn.seconds),
    turn.versions === undefined ? '' : `weights ${[...new Set(turn.versions)].join('–')}`,
  ]
    .filter(Boolean)
    .join(' · ');
  const calls = (turn.tool_calls ?? []).map((call, i) => (
    <details key={i} class="tool">
      <summary>
        calls <b class="mono">{shown(call.name)}</b>
      </summary>
      <Text class="mono" text={shown(call.arguments)} />
    </details>
  ));
  if (turn.role === 'tool' || turn.tool !== undefined)
    return (
      <details class={`tool ${turn.error ? 'failed' : ''}`}>
        <summary>
          <span class="soft num">{place}</span> tool <b class="mono">{turn.tool ?? ''}</b>
          {turn.error ? <span class="badge bad">failed</span> : null}
          <span class="peek soft">{turn.content.replace(/\s+/g, ' ').slice(0, 120)}</span>
          <span class="soft num">{side}</span>
        </summary>
        <Text class="mono" text={turn.content} />
        {turn.error ? <Text class="mono problem" text={turn.error} /> : null}
        {calls}
      </details>
    );
  return (
    <>
      <Bubble who={turn.role} text={turn.content} side={` ${place}${side ? ` · ${side}` : ''}`} />
      {turn.error ? <Text class="mono problem" text={turn.error} /> : null}
      {calls}
    </>
  );
}
