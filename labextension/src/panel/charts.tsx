/** The charts of the Run page: is it learning? */

import { useMemo, useState } from 'react';

import { words } from '../format';
import type { IStepFacts } from '../stepFacts';
import { IHeldOut, IStepRow, STEP_COUNTS, StepNumber } from '../wire';
import { Chart, ISeries } from './chart';
import { useStepFacts } from './useStepFacts';
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

export interface IMetricChartProps {
  readonly height?: number;
  readonly onBrush?: (steps: readonly [number, number]) => void;
  readonly brushed?: readonly [number, number] | null;
}

export function RewardChart({ height, ...brush }: IMetricChartProps): JSX.Element {
  const { source, trans } = useView();
  const { steps, reward } = source.model;
  const stamp = `${source.model.run?.id}:${steps.length}:${steps[steps.length - 1]?.index}:${reward.heldOut.length}`;
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
      {...brush}
      empty={trans.__('No step yet: the first point appears after the first update.')}
    />
  );
}

interface IMetric {
  readonly title: string;
  readonly names: readonly { readonly name: StepNumber; readonly label: string; readonly color: string }[];
  readonly unit?: string;
}

const ONE = 'var(--jp-brand-color1)';
const TWO = 'var(--jp-warn-color1)';

/** What the learner tells of each step, in the order of what one looks at first. */
export const METRICS: readonly IMetric[] = [
  { title: 'Entropy', names: [{ name: 'entropy', label: 'nats', color: 'var(--jp-success-color1)' }] },
  { title: 'Groups without signal', names: [{ name: 'no_signal', label: 'groups', color: TWO }] },
  { title: 'KL to the sampler', names: [{ name: 'approx_kl', label: 'nats', color: ONE }] },
  { title: 'Clip fraction', names: [{ name: 'clip_frac', label: 'of tokens', color: TWO }] },
  {
    title: 'Ratio',
    names: [
      { name: 'ratio_mean', label: 'mean', color: ONE },
      { name: 'ratio_max', label: 'max', color: TWO }
    ]
  },
  { title: 'Gradient norm', names: [{ name: 'grad_norm', label: 'before clipping', color: ONE }] },
  {
    title: 'Staleness',
    names: [
      { name: 'staleness', label: 'mean', color: ONE },
      { name: 'staleness_max', label: 'max', color: TWO }
    ]
  },
  {
    title: 'Sample length',
    names: [
      { name: 'length_mean', label: 'mean', color: ONE },
      { name: 'length_max', label: 'max', color: TWO }
    ]
  },
  { title: 'Padding', names: [{ name: 'padding', label: 'of slots', color: TWO }] },
  { title: 'Trained tokens', names: [{ name: 'tokens', label: 'per step', color: ONE }] },
  { title: 'Breaks', names: [{ name: 'breaks', label: 'calls', color: TWO }] },
  { title: 'Infrastructure failures', names: [{ name: 'infrastructure', label: 'rollouts', color: TWO }] },
  {
    title: 'Seconds',
    names: [
      { name: 'seconds_collect', label: 'collect', color: ONE },
      { name: 'seconds_update', label: 'update', color: TWO }
    ]
  }
];

export function MetricChart({ metric, height, ...brush }: IMetricChartProps & { metric: IMetric }): JSX.Element {
  const { source, trans } = useView();
  const { steps } = source.model;
  const stamp = `${source.model.run?.id}:${steps.length}:${steps[steps.length - 1]?.index}`;
  const { x, series } = useMemo(() => {
    const told = steps.filter(step => metric.names.some(({ name }) => step[name] !== null));
    const lines = metric.names.map(({ name, label, color }): ISeries => ({
      label: trans.__(label),
      color,
      look: 'line',
      values: told.map(step => step[name]),
      counts: STEP_COUNTS.has(name)
    }));
    return { x: told.map(step => step.index), series: lines };
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the model changes in place; the stamp tells when
  }, [stamp, metric]);
  return (
    <Chart
      title={trans.__(metric.title)}
      testId={`ll-${metric.names[0].name.replace(/_/g, '-')}-chart`}
      x={x}
      series={series}
      range={[0, 0]}
      height={height}
      {...brush}
      empty={steps.length > 0 ? trans.__('Not computed.') : trans.__('No step yet.')}
    />
  );
}

/** How the advantages of a step's rollouts lie: the middle half filled, the rest between the thin lines. */
function AdvantageChart({ facts, ...brush }: IMetricChartProps & { facts: IStepFacts }): JSX.Element {
  const { trans } = useView();
  const { x, series } = useMemo(() => {
    const [least, low, median, high, largest] = facts.advantage;
    const edge = (label: string, values: readonly number[], fillTo?: number): ISeries => ({
      label,
      color: ONE,
      look: 'edge',
      values: values.map(orNull),
      fillTo
    });
    return {
      x: [...facts.steps],
      series: [
        edge('least', least),
        edge('lower quarter', low),
        edge('upper quarter', high, 1),
        edge('largest', largest),
        { label: trans.__('median'), color: ONE, look: 'line', values: median.map(orNull) } as ISeries
      ]
    };
  }, [facts, trans]);
  return (
    <Chart
      title={trans.__('Advantages')}
      testId="ll-advantage-chart"
      x={x}
      series={series}
      range={[0, 0]}
      empty={trans.__('No step yet.')}
      {...brush}
    />
  );
}

const FAILURE_COLORS = ['var(--jp-error-color1)', TWO, 'var(--jp-info-color1)', 'var(--jp-ui-font-color2)'];

/** Rollouts that did not complete, by why: the most frequent reasons. */
function FailureChart({ facts, ...brush }: IMetricChartProps & { facts: IStepFacts }): JSX.Element {
  const { trans } = useView();
  const { x, series } = useMemo(() => {
    const shown = facts.failures.slice(0, FAILURE_COLORS.length);
    return {
      x: shown.length > 0 ? [...facts.steps] : [],
      series: shown.map(({ outcome, counts }, i): ISeries => ({
        label: words(outcome),
        color: FAILURE_COLORS[i],
        look: 'line',
        values: counts,
        counts: true
      }))
    };
  }, [facts]);
  return (
    <Chart
      title={trans.__('Failures by outcome')}
      testId="ll-failures-chart"
      x={x}
      series={series}
      range={[0, 1]}
      empty={trans.__('Every rollout completed.')}
      {...brush}
    />
  );
}

function orNull(value: number): number | null {
  return Number.isNaN(value) ? null : value;
}

/** Charts that read the rollouts; they cost a pass over all of them. */
function RolloutCharts(brush: IMetricChartProps): JSX.Element {
  const facts = useStepFacts();
  return (
    <>
      <AdvantageChart facts={facts} {...brush} />
      <FailureChart facts={facts} {...brush} />
    </>
  );
}

/** Reward and what one looks at next; all of them on demand. */
export function Charts(brush: IMetricChartProps): JSX.Element {
  const { trans } = useView();
  const [all, setAll] = useState(false);
  return (
    <section className={`ll-charts ${all ? 'll-mod-all' : ''}`} aria-label={trans.__('Charts')}>
      <h2>
        {trans.__('Learning')}
        <button type="button" className="ll-link" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? trans.__('Fewer charts') : trans.__('All charts')}
        </button>
      </h2>
      <RewardChart {...brush} />
      {METRICS.map((metric, i) => (all || i < 3) && <MetricChart key={metric.title} metric={metric} {...brush} />)}
      {all && <RolloutCharts {...brush} />}
    </section>
  );
}
