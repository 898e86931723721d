// The answers to one prompt, step after step, beside each other.
import type { JSX } from 'preact';
import type { SampleDetail, SamplePage } from '../../../ts/ui/protocol';
import { chatTurns } from '../lib/chat';
import { number, plural } from '../lib/format';
import { Icon, Problem } from '../parts/basics';
import { Bubble, Score, Text, Trajectory } from '../parts/sample';
import { useAnswer } from '../state/api';
import { useStamp } from '../state/live';
import { href } from '../state/route';

const MOST = 60;

export function PromptAcross({ id, sample }: { id: string; sample: string }): JSX.Element {
  const stamp = useStamp([id], 'samples');
  const { data: first } = useAnswer<SampleDetail>('sample', { run: id, key: sample });
  const { data, error } = useAnswer<SamplePage>(
    'samples',
    { run: id, sameAs: sample, order: 'oldest', limit: MOST },
    stamp,
  );
  if (error !== null && data === null) return <Problem text={error} />;
  return (
    <>
      <div class="head">
        <a class="small button" href={href('samples', [id], { sample })}>
          <Icon name="back" /> samples
        </a>
        <h1>One prompt across steps</h1>
        <span class="soft num">
          {data === null
            ? ''
            : `${plural(data.total, 'answer')}${data.total > MOST ? `, the first ${MOST}` : ''}`}
        </span>
      </div>
      <div class="card pad prompt-card">
        {first === null
          ? '…'
          : chatTurns(first.input).map((turn, i) => <Bubble key={i} who={turn.role} text={turn.content} />)}
        {first === null ? null : (
          <p class="soft">
            ground truth{' '}
            <span class="mono">
              {typeof first.groundTruth === 'string' ? first.groundTruth : JSON.stringify(first.groundTruth)}
            </span>
          </p>
        )}
      </div>
      <div class="across" tabIndex={0} role="region" aria-label="Answers by step">
        {(data?.rows ?? []).map((row) => (
          <Answer key={row.key} id={id} sample={row.key} />
        ))}
      </div>
    </>
  );
}

function Answer({ id, sample }: { id: string; sample: string }): JSX.Element {
  const { data } = useAnswer<SampleDetail>('sample', { run: id, key: sample });
  return (
    <section class="card answer-card">
      <header>
        <strong class="num">step {number(data?.row.step)}</strong>
        <Score score={data?.row.score ?? null} />
        <span class="soft">{data?.row.kind === 'validation' ? 'val' : ''}</span>
      </header>
      {data === null ? (
        '…'
      ) : data.turns ? (
        <Trajectory turns={data.turns} />
      ) : (
        <Text text={data.output || '(empty)'} />
      )}
    </section>
  );
}
