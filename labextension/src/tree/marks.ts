/** How a call looks in the tree: every kind has a shape of its own, so that colour is not needed to tell them apart. */

import type { ICallDetail } from '../wireRollout';

export const MARKS = ['main', 'sub_agent', 'side', 'compaction', 'retry', 'undelivered', 'error'] as const;
export type Mark = (typeof MARKS)[number];

export const MARK_COLORS: Readonly<Record<Mark, string>> = {
  main: 'var(--jp-brand-color1)',
  sub_agent: 'var(--jp-success-color1)',
  side: 'var(--jp-info-color1)',
  compaction: 'var(--jp-warn-color1)',
  retry: 'var(--jp-warn-color1)',
  undelivered: 'var(--jp-ui-font-color2)',
  error: 'var(--jp-error-color1)'
};

export function markOf(call: ICallDetail): Mark {
  if (call.error !== '') {
    return 'error';
  }
  if (!call.delivered) {
    return 'undelivered';
  }
  return (MARKS as readonly string[]).includes(call.kind) ? (call.kind as Mark) : 'main';
}

/** Draw a mark around a point; `r` is about half its width. The colour is the context's. */
export function drawMark(context: CanvasRenderingContext2D, mark: Mark, x: number, y: number, r: number): void {
  context.beginPath();
  switch (mark) {
    case 'side':
      polygon(context, [x, y - r * 1.2], [x + r * 1.2, y], [x, y + r * 1.2], [x - r * 1.2, y]);
      break;
    case 'compaction':
      context.rect(x - r * 1.25, y - r * 0.85, r * 2.5, r * 1.7);
      break;
    case 'retry':
      polygon(context, [x - r, y - r], [x + r * 1.2, y], [x - r, y + r]);
      break;
    case 'error':
      context.moveTo(x - r, y - r);
      context.lineTo(x + r, y + r);
      context.moveTo(x + r, y - r);
      context.lineTo(x - r, y + r);
      break;
    default:
      context.arc(x, y, r, 0, 2 * Math.PI);
  }
  if (mark === 'undelivered' || mark === 'error' || mark === 'sub_agent') {
    context.lineWidth = Math.max(1.5, r / 3);
    context.setLineDash(mark === 'undelivered' ? [r / 1.6, r / 1.6] : []);
    context.stroke();
    context.setLineDash([]);
  } else {
    context.fill();
  }
  if (mark === 'sub_agent') {
    context.beginPath();
    context.arc(x, y, r / 2.4, 0, 2 * Math.PI);
    context.fill();
  }
}

function polygon(context: CanvasRenderingContext2D, ...points: readonly [number, number][]): void {
  points.forEach(([x, y], i) => (i === 0 ? context.moveTo(x, y) : context.lineTo(x, y)));
  context.closePath();
}
