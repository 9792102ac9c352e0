/** The same numbers of two runs over each other. */

import { useMemo } from 'react';

import { overlaid } from '../compare';
import type { RunModel } from '../model';
import type { StepNumber } from '../wire';
import { Chart } from './chart';
import { useView } from './view';

const SHOWN: readonly { readonly name: StepNumber; readonly title: string; readonly range: [number, number] }[] = [
  { name: 'reward', title: 'Reward', range: [0, 1] },
  { name: 'entropy', title: 'Entropy, nats', range: [0, 0] },
  { name: 'approx_kl', title: 'KL, nats', range: [0, 0] },
  { name: 'no_signal', title: 'No-signal groups', range: [0, 0] },
  { name: 'clip_frac', title: 'Clip fraction', range: [0, 0] },
  { name: 'grad_norm', title: 'Gradient norm', range: [0, 0] },
  { name: 'staleness', title: 'Staleness', range: [0, 0] },
  { name: 'length_mean', title: 'Sample length', range: [0, 0] }
];

export const A_COLOR = 'var(--jp-brand-color1)';
export const B_COLOR = 'var(--jp-warn-color1)';

interface IOverlayProps {
  readonly a: RunModel;
  readonly b: RunModel;
}

function Overlay({ a, b, name, title, range }: IOverlayProps & (typeof SHOWN)[number]): JSX.Element {
  const { trans } = useView();
  const stamp = `${a.steps.length} ${b.steps.length}`;
  const { x, series } = useMemo(() => {
    const lines = overlaid(name, a, b);
    const look = 'line' as const;
    return {
      x: lines.x,
      series: [
        { label: 'A', color: A_COLOR, look, values: lines.a },
        { label: 'B', color: B_COLOR, look, values: lines.b }
      ]
    };
    // eslint-disable-next-line react-hooks/exhaustive-deps -- models change in place; the stamp tells when
  }, [a, b, name, stamp]);
  return (
    <Chart
      title={trans.__(title)}
      testId={`ll-compare-${name}`}
      x={x}
      series={series}
      range={range}
      height={110}
      empty={trans.__('No step yet.')}
    />
  );
}

export function CompareCharts({ a, b }: IOverlayProps): JSX.Element {
  const told = SHOWN.filter(({ name }) => [a, b].some(model => model.steps.some(step => step[name] !== null)));
  return (
    <div className="ll-compare-charts">
      {told.map(shown => (
        <Overlay key={shown.name} a={a} b={b} {...shown} />
      ))}
    </div>
  );
}
