// What is known of each token of a response, as colour and as numbers.
import '../styles/pages/tokens.css';
import type { JSX } from 'preact';
import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { TokensPage as Answer, TokenRecord } from '../../../ts/ui/protocol';
import { number, plural } from '../lib/format';
import { CHANNELS, type Channel, channelsOf, groundOf, rangeOf } from '../lib/token_values';
import { Empty, Problem } from '../parts/basics';
import { Score, Text } from '../parts/sample';
import { useAnswer } from '../state/api';
import { useStamp } from '../state/live';
import { replaceParam } from '../state/route';

export function TokensPage({ id, params }: { id: string; params: URLSearchParams }): JSX.Element {
  const step = params.get('step');
  const stamp = useStamp([id], 'tokens');
  const { data, error } = useAnswer<Answer>('tokens', { run: id, step }, step === null ? stamp : 0);
  const [channelId, setChannel] = useState(params.get('show') ?? 'log_prob');
  if (error !== null && data === null) return <Problem text={error} />;
  if (data === null) return <p class="soft">…</p>;
  if (data.steps.length === 0)
    return (
      <Empty title="No per-token records">
        Runs of troupe train write them every <code>logging.tokens.every</code> steps.
      </Empty>
    );
  const chosen = data.records.find(({ index }) => String(index) === params.get('index')) ?? data.records[0];
  const channels = chosen ? channelsOf(chosen) : [];
  const channel = channels.find((one) => one.id === channelId) ?? channels[0];
  const place = data.steps.indexOf(data.step ?? -1);
  const goTo = (at: number): void =>
    replaceParam('step', String(data.steps[Math.max(0, Math.min(data.steps.length - 1, at))]));
  return (
    <>
      <div class="head controls">
        <label class="field">
          Step
          <select
            value={String(data.step)}
            onChange={(event) => replaceParam('step', event.currentTarget.value)}
          >
            {data.steps.map((one) => (
              <option key={one} value={String(one)}>
                {one}
              </option>
            ))}
          </select>
        </label>
        <button
          type="button"
          class="icon"
          aria-label="Earlier step"
          disabled={place <= 0}
          onClick={() => goTo(place - 1)}
        >
          ‹
        </button>
        <button
          type="button"
          class="icon"
          aria-label="Later step"
          disabled={place >= data.steps.length - 1}
          onClick={() => goTo(place + 1)}
        >
          ›
        </button>
        <label class="field">
          Response
          <select
            value={String(chosen?.index)}
            onChange={(event) => replaceParam('index', event.currentTarget.value)}
          >
            {data.records.map(({ index, input, score }) => (
              <option key={index} value={String(index)}>
                {`#${index} · score ${number(score)} · ${input.replace(/\s+/g, ' ').slice(0, 50)}`}
              </option>
            ))}
          </select>
        </label>
        <label class="field">
          Colour
          <select value={channel?.id} onChange={(event) => setChannel(event.currentTarget.value)}>
            {channels.map(({ id: one, title }) => (
              <option key={one} value={one}>
                {title}
              </option>
            ))}
          </select>
        </label>
      </div>
      {chosen && channel ? (
        <Record key={`${data.step}/${chosen.index}`} record={chosen} channel={channel} />
      ) : (
        <Empty title="This step has no records" />
      )}
    </>
  );
}

function Record({ record, channel }: { record: TokenRecord; channel: Channel }): JSX.Element {
  const [at, setAt] = useState(0);
  const [tip, setTip] = useState(false);
  const range = useMemo(() => rangeOf(record, channel), [record, channel]);
  const box = useRef<HTMLDivElement>(null);
  const moved = useRef(false);
  // A thousand tokens are not drawn again because one of them is pointed at.
  const tokens = useMemo(
    () =>
      record.tokens.map((text, i) => (
        <span
          key={i}
          data-i={i}
          class={record.mask[i] === 0 ? 'context' : ''}
          style={{ background: groundOf(channel.value(record, i), range, channel) }}
        >
          {visible(text)}
        </span>
      )),
    [record, channel, range],
  );
  useLayoutEffect(() => {
    const token = box.current?.children[at];
    token?.classList.add('at');
    if (moved.current) token?.scrollIntoView({ block: 'nearest' });
    return () => token?.classList.remove('at');
  }, [at, tokens]);
  const keys = (event: KeyboardEvent): void => {
    const steps: Readonly<globalThis.Record<string, number>> = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: 10,
      ArrowUp: -10,
      Home: -1e9,
      End: 1e9,
    };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    moved.current = true;
    setTip(true);
    setAt(Math.max(0, Math.min(record.tokens.length - 1, at + step)));
  };
  const indexOf = (event: Event): void => {
    const index = (event.target as HTMLElement).dataset['i'];
    if (index === undefined) return;
    moved.current = false;
    setTip(true);
    setAt(Number(index));
  };
  return (
    <div class="tokens-layout">
      <div class="card pad">
        <details class="tool">
          <summary>
            prompt <span class="peek soft">{record.input.replace(/\s+/g, ' ').slice(0, 160)}</span>
          </summary>
          <Text class="mono" text={record.input} />
        </details>
        <div class="legend scale">
          <Score score={record.score} />
          <span class="num">
            {plural(record.length, 'token')}
            {record.tokens.length < record.length ? `, the first ${number(record.tokens.length)}` : ''}
          </span>
          {record.data_source ? <span class="soft">{record.data_source}</span> : null}
          <span class="grow" />
          <Scale channel={channel} range={range} />
        </div>
        <div class="token-box">
          <div
            class="tokens mono"
            ref={box}
            tabIndex={0}
            role="application"
            aria-label={`Tokens by ${channel.title}. Arrow keys move from token to token.`}
            aria-describedby="token-facts"
            onKeyDown={keys}
            onMouseOver={indexOf}
            onClick={indexOf}
            onMouseLeave={() => setTip(false)}
            onBlur={() => setTip(false)}
          >
            {tokens}
          </div>
          {tip ? <Tip record={record} at={at} channel={channel} tokens={box} /> : null}
        </div>
      </div>
      <TokenFacts record={record} at={at} />
    </div>
  );
}

/** Beside the token: what its colour says, and how likely it was. The whole of it stands at the side, which also says it aloud. */
function Tip(props: {
  record: TokenRecord;
  at: number;
  channel: Channel;
  tokens: { current: HTMLDivElement | null };
}): JSX.Element {
  const { record, at, channel, tokens } = props;
  const own = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const [token, tip] = [tokens.current?.children[at], own.current];
    if (!(token instanceof HTMLElement) || !tip || !tokens.current) return;
    const room = tokens.current.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, token.offsetLeft))}px`;
    tip.style.top = `${token.offsetTop + token.offsetHeight + 3}px`;
  }, [at, channel]);
  const likely = CHANNELS[0]?.value(record, at) ?? null;
  return (
    <div class="token-tip num" ref={own} aria-hidden="true">
      <span>
        {channel.title} <b>{number(channel.value(record, at))}</b>
      </span>
      {likely === null ? null : <span>p {percent(likely)}</span>}
    </div>
  );
}

const percent = (log: number): string => `${number(100 * Math.exp(log))} %`;

/** What has no ink of its own gets some; a line ends where it did. */
const visible = (text: string): string =>
  text === '' ? '·' : text.replace(/\t/g, '⇥\t').replace(/\n/g, '↵\n');

function Scale({
  channel,
  range: [low, high],
}: {
  channel: Channel;
  range: readonly [number, number];
}): JSX.Element {
  if (channel.kind === 'mask')
    return (
      <>
        <span>
          <i class="swatch" style={{ background: groundOf(1, [0, 1], channel) }} /> policy
        </span>
        <span>
          <i class="swatch" style={{ background: groundOf(0, [0, 1], channel) }} /> tool or user
        </span>
      </>
    );
  return (
    <span class="num" title={channel.what}>
      {number(low)}
      <span class="ramp">
        {Array.from({ length: 11 }, (_, i) => (
          <i key={i} style={{ background: groundOf(low + ((high - low) * i) / 10, [low, high], channel) }} />
        ))}
      </span>
      {number(high)}
    </span>
  );
}

function TokenFacts({ record, at }: { record: TokenRecord; at: number }): JSX.Element {
  const probability = (values: (number | null)[] | undefined): string => {
    const value = values?.[at];
    return value === null || value === undefined ? '' : percent(value);
  };
  const logs: [string, (number | null)[] | undefined][] = [
    ['rollout', record.rollout_log_probs],
    ['old', record.old_log_probs],
    ['reference', record.ref_log_probs],
    ['new', record.new_log_probs],
  ];
  return (
    <aside class="card pad token-facts" id="token-facts" aria-live="polite">
      <h2>
        Token {number(at)} <span class="soft mono">id {record.ids[at]}</span>
      </h2>
      <p class="mono token-text">{JSON.stringify(record.tokens[at] ?? '')}</p>
      <table class="table">
        <tbody>
          {logs
            .filter(([, values]) => values !== undefined)
            .map(([name, values]) => (
              <tr key={name}>
                <th scope="row">{name} log-prob</th>
                <td class="right num">{number(values?.[at])}</td>
                <td class="right num soft">{probability(values)}</td>
              </tr>
            ))}
          {CHANNELS.filter(({ id }) => !['log_prob', 'mask'].includes(id)).flatMap((channel) => {
            const value = channel.value(record, at);
            return value === null
              ? []
              : [
                  <tr key={channel.id} title={channel.what}>
                    <th scope="row">{channel.title}</th>
                    <td class="right num">{number(value)}</td>
                    <td />
                  </tr>,
                ];
          })}
          <tr>
            <th scope="row">mask</th>
            <td class="right num">{record.mask[at]}</td>
            <td class="right soft">{record.mask[at] === 0 ? 'not trained' : 'policy'}</td>
          </tr>
        </tbody>
      </table>
    </aside>
  );
}
