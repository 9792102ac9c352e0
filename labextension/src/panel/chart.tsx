/** Live line charts: uPlot on canvas, coloured by the theme, with a legend that reads the values aloud in text. */

import { useEffect, useMemo, useRef, useState } from 'react';
import uPlot from 'uplot';

import { axisLabels, reading } from '../format';
import { thinned } from '../thin';
import { useWidth } from './hooks';
import { themeColor, themeFont } from './paint';
import { useView } from './view';

export interface ISeries {
  readonly label: string;
  /** A CSS variable of the theme. */
  readonly color: string;
  readonly values: readonly (number | null)[];
  /** `line` joins points over gaps; `points` draws isolated marks; `faint` is a line that stands back, `edge` of a band. */
  readonly look: 'line' | 'points' | 'faint' | 'edge';
  /** Whether its values count something. */
  readonly counts?: boolean;
  /** The place of another series: what lies between is filled. */
  readonly fillTo?: number;
}

export interface IChartProps {
  readonly title: string;
  readonly testId?: string;
  /** Step of every point, ascending; all series are aligned with it. */
  readonly x: readonly number[];
  readonly series: readonly ISeries[];
  /** Lower and upper bound that the axis always contains. */
  readonly range?: readonly [number, number];
  readonly empty: string;
  readonly height?: number;
  /** Steps were brushed, first and last. */
  readonly onBrush?: (steps: readonly [number, number]) => void;
  /** Steps that are selected now. */
  readonly brushed?: readonly [number, number] | null;
}

/** Charts of one view move their cursors together. */
const SYNC = 'lightning-lab-steps';

function seriesOptions(series: ISeries, node: Element): uPlot.Series {
  const stroke = themeColor(node, series.color);
  switch (series.look) {
    case 'points':
      return {
        label: series.label,
        stroke,
        width: 1.5,
        dash: [4, 3],
        spanGaps: true,
        points: {
          show: true,
          size: 7,
          fill: stroke,
          stroke: themeColor(node, 'var(--jp-layout-color1)', '#fff'),
          width: 1.5
        }
      };
    case 'edge':
      return { label: series.label, stroke, width: 0.5, alpha: 0.5, spanGaps: true, points: { show: false } };
    case 'faint':
      return { label: series.label, stroke, width: 1, alpha: 0.55, spanGaps: true, points: { show: false } };
    default:
      return {
        label: series.label,
        stroke,
        width: 2,
        spanGaps: true,
        points: { show: (_u, _s, i0, i1) => i1 - i0 < 2, size: 5, fill: stroke }
      };
  }
}

function options(props: IChartProps, node: HTMLElement, width: number, height: number): uPlot.Options {
  const text = themeColor(node, 'var(--jp-ui-font-color2)');
  const line = themeColor(node, 'var(--jp-border-color2)');
  const font = themeFont(node, 11);
  const axis = { stroke: text, font, ticks: { show: false }, grid: { stroke: line, width: 1 } };
  const [low, high] = props.range ?? [Infinity, -Infinity];
  return {
    width,
    height,
    padding: [8, 10, 0, 0],
    legend: { show: false },
    cursor: {
      points: { size: 6 },
      drag: { x: props.onBrush !== undefined, y: false, setScale: false },
      sync: { key: SYNC, setSeries: false }
    },
    scales: {
      x: {
        time: false,
        range: (u, min, max) => {
          const steps = u.data[0];
          return steps.length === 1 ? [steps[0] - 1, steps[0] + 1] : [min, max];
        }
      },
      y: {
        range: (_u, min, max) => {
          const [from, to] = [Math.min(low, min ?? 0), Math.max(high, max ?? 1)];
          const upper = to > from ? to : from + 1;
          const pad = (upper - from) * 0.06;
          return [from - pad, upper + pad];
        }
      }
    },
    axes: [
      {
        ...axis,
        grid: { show: false },
        size: 24,
        gap: 4,
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
      },
      { ...axis, size: 40, gap: 4, space: 28, values: (_u, splits) => axisLabels(splits) }
    ],
    series: [{ label: 'step' }, ...props.series.map(series => seriesOptions(series, node))],
    bands: props.series.flatMap(({ fillTo, color }, i): uPlot.Band[] =>
      fillTo === undefined
        ? []
        : [{ series: [i + 1, fillTo + 1], fill: `color-mix(in srgb, ${themeColor(node, color)} 22%, transparent)` }]
    )
  };
}

/** A selection on the chart as whole steps; a click selects nothing. */
function brushed(chart: uPlot, onBrush: IChartProps['onBrush']): void {
  const { left, width } = chart.select;
  if (onBrush && width > 2) {
    const from = Math.round(chart.posToVal(left, 'x'));
    onBrush([from, Math.max(from, Math.round(chart.posToVal(left + width, 'x')))]);
  }
}

/** Edges are told by the band that they bound. */
function told(series: ISeries): boolean {
  return series.look !== 'edge';
}

function latest(values: readonly (number | null)[]): number | null {
  for (let i = values.length - 1; i >= 0; i--) {
    if (values[i] !== null) {
      return values[i];
    }
  }
  return null;
}

export function Chart(props: IChartProps): JSX.Element {
  const { title, testId, empty, height = 130 } = props;
  const { theme, trans } = useView();
  const [ref, width] = useWidth<HTMLDivElement>();
  const { x, series } = useMemo(() => {
    const places = thinned(
      props.x.length,
      props.series.map(line => line.values),
      width
    );
    return places.length === props.x.length
      ? props
      : {
          x: places.map(i => props.x[i]),
          series: props.series.map(line => ({ ...line, values: places.map(i => line.values[i]) }))
        };
    // eslint-disable-next-line react-hooks/exhaustive-deps -- `series` is rebuilt with `x`
  }, [props.x, width]);
  const plot = useRef<uPlot | null>(null);
  const [cursor, setCursor] = useState<number | null>(null);
  const drawn = width > 0 && x.length > 0;
  const brush = useRef(props.onBrush);
  brush.current = props.onBrush;
  const shape = series.map(s => `${s.label}/${s.look}/${s.color}`).join();

  useEffect(() => {
    const node = ref.current;
    if (!node || !drawn) {
      return;
    }
    const chart = new uPlot(
      {
        ...options(props, node, width, height),
        hooks: { setCursor: [u => setCursor(u.cursor.idx ?? null)], setSelect: [u => brushed(u, brush.current)] }
      },
      [[...x], ...series.map(s => [...s.values])] as uPlot.AlignedData,
      node
    );
    plot.current = chart;
    return () => {
      plot.current = null;
      chart.destroy();
    };
    // Data and width are followed below, without building the chart anew.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [drawn, shape, theme, height]);

  useEffect(() => {
    plot.current?.setData([[...x], ...series.map(s => [...s.values])] as uPlot.AlignedData);
    // eslint-disable-next-line react-hooks/exhaustive-deps -- `series` is rebuilt with `x`
  }, [x]);

  useEffect(() => {
    if (width > 0) {
      plot.current?.setSize({ width, height });
    }
  }, [width, height]);

  const [from, to] = props.brushed ?? [null, null];
  useEffect(() => {
    const chart = plot.current;
    if (!chart || width === 0) {
      return;
    }
    // A step fills the room around its point.
    const [left, right] =
      from === null || to === null ? [0, 0] : [from - 0.5, to + 0.5].map(x => chart.valToPos(x, 'x'));
    const inside = (x: number): number => Math.max(0, Math.min(chart.over.clientWidth, x));
    chart.setSelect(
      { left: inside(left), width: inside(right) - inside(left), top: 0, height: chart.over.clientHeight },
      false
    );
  }, [from, to, width, x, drawn, shape, theme, height]);

  const at = cursor !== null && cursor < x.length ? cursor : null;
  return (
    <figure className="ll-chart" data-testid={testId} data-points={props.x.length}>
      <figcaption>
        <span className="ll-chart-title">{title}</span>
        <span className="ll-legend">
          {series.filter(told).map(s => (
            <span key={s.label} className="ll-legend-item">
              <i className={`ll-swatch ll-mod-${s.look}`} style={{ color: s.color }} aria-hidden="true" />
              {s.label} <b>{reading(at === null ? latest(s.values) : s.values[at], s.counts)}</b>
            </span>
          ))}
          <span className="ll-legend-step">{at === null ? '' : trans.__('step %1', x[at])}</span>
        </span>
      </figcaption>
      <div className="ll-chart-plot" ref={ref} style={{ height }} aria-hidden="true">
        {x.length === 0 && <p className="ll-chart-empty">{empty}</p>}
      </div>
    </figure>
  );
}
