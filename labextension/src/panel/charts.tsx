/** The charts of the Run page: is it learning? */

import { useMemo } from 'react';

import type { IHeldOut, IStepRow } from '../wire';
import { Chart, ISeries } from './chart';
import { useView } from './view';

/** A trailing exponential mean with a memory of about ten steps; gaps carry the last value. */
export function smooth(values: readonly (number | null)[], memory = 10): (number | null)[] {
  const alpha = 2 / (memory + 1);
  let mean: number | null = null;
  return values.map(value => {
    if (value !== null) {
      mean = mean === null ? value : mean + alpha * (value - mean);
    }
    return mean;
  });
}

/** Training and held-out rewards on one axis of steps, `null` where a series has no point. */
export function alignRewards(
  steps: readonly IStepRow[],
  heldOut: readonly IHeldOut[]
): { x: number[]; train: (number | null)[]; held: (number | null)[] } {
  const train = new Map(steps.map(step => [step.index, step.reward]));
  const held = new Map(heldOut.map(point => [point.step, point.value]));
  const x = [...new Set([...train.keys(), ...held.keys()])].sort((a, b) => a - b);
  return { x, train: x.map(step => train.get(step) ?? null), held: x.map(step => held.get(step) ?? null) };
}

/** Below this many steps a smoothed line would say less than the points themselves. */
const SMOOTH_FROM = 12;

export function RewardChart({ height }: { height?: number }): JSX.Element {
  const { source, trans } = useView();
  const { steps, reward } = source.model;
  const stamp = `${steps.length}:${steps[steps.length - 1]?.index}:${reward.heldOut.length}:${source.model.rows.revision}`;
  const { x, series } = useMemo(() => {
    const aligned = alignRewards(steps, reward.heldOut);
    const many = steps.length >= SMOOTH_FROM;
    const lines: ISeries[] = [
      {
        label: many ? trans.__('10-step mean') : trans.__('train'),
        color: 'var(--jp-brand-color1)',
        look: 'line',
        values: many ? smooth(aligned.train) : aligned.train
      },
      {
        label: trans.__('held-out'),
        color: 'var(--jp-warn-color1)',
        look: 'points',
        values: aligned.held
      }
    ];
    if (many) {
      lines.unshift({
        label: trans.__('train'),
        color: 'var(--jp-brand-color1)',
        look: 'faint',
        values: aligned.train
      });
    }
    return { x: aligned.x, series: lines };
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the model changes in place; the stamp tells when
  }, [stamp]);
  return (
    <Chart
      title={trans.__('Reward')}
      testId="ll-reward-chart"
      x={x}
      series={series}
      range={[0, 1]}
      height={height}
      empty={trans.__('No step yet: the first point appears after the first update.')}
    />
  );
}

export function EntropyChart({ height }: { height?: number }): JSX.Element {
  const { source, trans } = useView();
  const { steps } = source.model;
  const stamp = `${steps.length}:${steps[steps.length - 1]?.index}`;
  const { x, series } = useMemo(() => {
    const told = steps.filter(step => step.entropy !== null);
    const values = told.map(step => step.entropy);
    return {
      x: told.map(step => step.index),
      series: [
        { label: trans.__('nats per token'), color: 'var(--jp-success-color1)', look: 'line', values }
      ] as ISeries[]
    };
    // eslint-disable-next-line react-hooks/exhaustive-deps -- as above
  }, [stamp]);
  return (
    <Chart
      title={trans.__('Entropy')}
      testId="ll-entropy-chart"
      x={x}
      series={series}
      range={[0, 0]}
      height={height}
      empty={trans.__('No step yet.')}
    />
  );
}
