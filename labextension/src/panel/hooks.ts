/** How components follow signals: coalesced to one render per frame, and only while they can be seen. */

import type { ISignal } from '@lumino/signaling';
import { useEffect, useRef, useState } from 'react';

import type { IRunSource } from '../tokens';
import type { IRolloutDetail } from '../wireRollout';

type AnySignal = ISignal<unknown, unknown>;

/** Render again after any of the signals, at most once per animation frame, while `active`. */
export function useSignals(signals: readonly AnySignal[], active: boolean): void {
  const [, render] = useState(0);
  useEffect(() => {
    if (!active) {
      return;
    }
    let frame = 0;
    const schedule = (): void => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        render(n => n + 1);
      });
    };
    signals.forEach(signal => signal.connect(schedule));
    schedule(); // what happened while it was hidden
    return () => {
      cancelAnimationFrame(frame);
      signals.forEach(signal => signal.disconnect(schedule));
    };
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the list is rebuilt by every render, its members are not
  }, [...signals, active]);
}

/** Follow everything that a source says. */
export function useSource(source: IRunSource, active: boolean): void {
  useSignals([source.model.changed, source.statusChanged, source.selection.changed], active);
}

/** Render again every second while `active`, for texts that count seconds. */
export function useSeconds(active: boolean): void {
  const [, render] = useState(0);
  useEffect(() => {
    if (!active) {
      return;
    }
    const timer = setInterval(() => render(n => n + 1), 1000);
    return () => clearInterval(timer);
  }, [active]);
}

/** The width of an element in CSS pixels, 0 before the first layout. */
export function useWidth<T extends HTMLElement>(): [React.RefObject<T>, number] {
  const ref = useRef<T>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const node = ref.current;
    if (!node || typeof ResizeObserver === 'undefined') {
      return;
    }
    const observer = new ResizeObserver(entries => setWidth(Math.round(entries[0].contentRect.width)));
    observer.observe(node);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

export interface IDetailState {
  readonly detail: IRolloutDetail | null;
  readonly error: string;
  readonly loading: boolean;
  retry(): void;
}

/** Milliseconds between two fetches of a rollout that is still going on. */
const REFRESH_MS = 1000;

/**
 * Fetch a rollout, and fetch it again when its row changes.
 *
 * @param stamp - changes whenever the rollout may have (state, number of calls, step …).
 */
export function useDetail(source: IRunSource, id: string, stamp: string, active: boolean): IDetailState {
  const [state, setState] = useState<{ id: string; detail: IRolloutDetail | null; error: string }>({
    id,
    detail: null,
    error: ''
  });
  const [attempt, setAttempt] = useState(0);
  const fetchedAt = useRef(-Infinity);
  const fetchedId = useRef('');

  useEffect(() => {
    if (!active) {
      return;
    }
    let current = true;
    const wait = fetchedId.current === id ? Math.max(0, fetchedAt.current + REFRESH_MS - performance.now()) : 0;
    const timer = setTimeout(() => {
      fetchedAt.current = performance.now();
      fetchedId.current = id;
      source.detail(id).then(
        detail => current && setState({ id, detail, error: '' }),
        (reason: unknown) => {
          const error = reason instanceof Error ? reason.message : String(reason);
          // A failed refresh keeps what is already legible.
          current && setState(old => ({ id, detail: old.id === id ? old.detail : null, error }));
        }
      );
    }, wait);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [source, id, stamp, active, attempt]);

  const fresh = state.id === id;
  return {
    detail: fresh ? state.detail : null,
    error: fresh ? state.error : '',
    loading: !fresh || (!state.detail && !state.error),
    retry: () => {
      fetchedId.current = ''; // at once
      setState({ id, detail: null, error: '' });
      setAttempt(n => n + 1);
    }
  };
}
