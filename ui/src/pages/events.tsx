// What happened to a run, newest first.
import '../styles/pages/events.css';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { RunDetail, RunEvent } from '../../../ts/ui/protocol';
import { clock, duration, number, plural } from '../lib/format';
import { Empty, Problem, Segments } from '../parts/basics';
import { useAnswer } from '../state/api';
import { useStamp } from '../state/live';

const LOOKS: Record<RunEvent['kind'], string> = {
  start: 'accent',
  end: 'accent',
  checkpoint: 'good',
  validation: '',
  warning: 'warn',
  note: '',
  error: 'bad',
};

type Choice = 'all' | 'trouble' | 'checkpoints' | 'restarts';
const CHOICES: Record<Choice, readonly RunEvent['kind'][] | null> = {
  all: null,
  trouble: ['warning', 'error'],
  checkpoints: ['checkpoint'],
  restarts: ['start', 'end', 'error'],
};
const MOST = 1000;

export function EventsPage({ id }: { id: string; detail: RunDetail | null }): JSX.Element {
  const stamp = useStamp([id], 'events');
  const { data, error } = useAnswer<RunEvent[]>('events', { run: id }, stamp);
  const [choice, setChoice] = useState<Choice>('all');
  if (error !== null && data === null) return <Problem text={error} />;
  if (data === null) return <p class="soft">…</p>;
  if (data.length === 0) return <Empty title="No events">Runs write them to events.jsonl.</Empty>;
  const kinds = CHOICES[choice];
  const chosen = data.filter(({ kind }) => kinds === null || kinds.includes(kind)).reverse();
  return (
    <>
      <div class="head">
        <Segments
          label="Events"
          value={choice}
          options={(Object.keys(CHOICES) as Choice[]).map((one) => [one, one] as const)}
          onChange={setChoice}
        />
        <span class="soft num">{plural(chosen.length, 'event')}</span>
      </div>
      <div class="card">
        <ol class="events">
          {chosen.slice(0, MOST).map((event, i) => (
            <li key={data.length - i}>
              <time class="soft num" dateTime={new Date(event.time * 1000).toISOString()}>
                {clock(event.time)}
              </time>
              <span class={`badge ${LOOKS[event.kind]}`}>{event.kind}</span>
              <span class="soft num">step {number(event.step)}</span>
              <span class="what">
                {event.message}
                {typeof event.data?.['seconds'] === 'number' ? (
                  <span class="soft"> in {duration(event.data['seconds'])}</span>
                ) : null}
                {event.kind === 'start' ? (
                  <span class="soft">
                    {' '}
                    pid {String(event.data?.['pid'])} on {String(event.data?.['host'])}
                  </span>
                ) : null}
              </span>
            </li>
          ))}
        </ol>
      </div>
    </>
  );
}
