// Small things that every page has.
import type { ComponentChildren, JSX } from 'preact';
import type { RunState } from '../../../ts/ui/protocol';

const PATHS = {
  sun: 'M12 4V2m0 20v-2m8-8h2M2 12h2m13.7-5.7 1.4-1.4M4.9 19.1l1.4-1.4m11.4 0 1.4 1.4M4.9 4.9l1.4 1.4M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8',
  moon: 'M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5',
  download: 'M12 4v11m-4-4 4 4 4-4M5 20h14',
  expand: 'M14 4h6v6m0-6-7 7M10 20H4v-6m0 6 7-7',
  back: 'M15 5l-7 7 7 7',
  forward: 'M9 5l7 7-7 7',
  close: 'M6 6l12 12M18 6L6 18',
  reset: 'M4 12a8 8 0 1 0 3-6.2M4 4v4h4',
} as const;

export const Icon = ({ name }: { name: keyof typeof PATHS }): JSX.Element => (
  <svg
    width="16"
    height="16"
    viewBox="0 0 24 24"
    fill="none"
    stroke="currentColor"
    stroke-width="2"
    stroke-linecap="round"
    stroke-linejoin="round"
    aria-hidden="true"
  >
    <path d={PATHS[name]} />
  </svg>
);

const LOOKS: Record<RunState, string> = {
  running: 'accent',
  finished: 'good',
  interrupted: 'warn',
  failed: 'bad',
  lost: 'bad',
  unknown: '',
};

export const StateBadge = ({ state }: { state: RunState }): JSX.Element => (
  <span class={`badge ${LOOKS[state]}`}>
    <i class={`dot ${state === 'running' ? 'pulse' : ''}`} />
    {state}
  </span>
);

export const Empty = ({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element => (
  <div class="card empty">
    <div>
      <strong>{title}</strong>
      <div>{children}</div>
    </div>
  </div>
);

export const Problem = ({ text }: { text: string | null }): JSX.Element | null =>
  text === null ? null : (
    <p class="note" role="alert">
      {text}
    </p>
  );

/** A value of a few, chosen by buttons. */
export function Segments<T extends string>(props: {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}): JSX.Element {
  return (
    <div class="segments" role="group" aria-label={props.label}>
      {props.options.map(([value, text]) => (
        <button
          type="button"
          key={value}
          aria-pressed={value === props.value}
          onClick={() => props.onChange(value)}
        >
          {text}
        </button>
      ))}
    </div>
  );
}

export const Fact = (props: {
  name: string;
  value: ComponentChildren;
  unit?: string;
  title?: string;
}): JSX.Element => (
  <div title={props.title}>
    <div class="name">{props.name}</div>
    <div class="value num">
      {props.value} {props.unit ? <span class="unit">{props.unit}</span> : null}
    </div>
  </div>
);
