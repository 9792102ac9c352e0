/** Render components against a source that a test drives. */

import { nullTranslator } from '@jupyterlab/translation';
import type { JSONObject } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';
import { act, ReactElement } from 'react';
import { createRoot } from 'react-dom/client';

import { RunModel } from '../src/model';
import type { IRunFiles } from '../src/otherRun';
import { ViewProvider } from '../src/panel/view';
import type { IAnswer } from '../src/request';
import { Selection } from '../src/selection';
import type { ActionName, IRunSource, SourceStatus } from '../src/tokens';
import { decodeDetail } from '../src/decodeDetail';
import type { IRolloutDetail } from '../src/wireRollout';
import { detailJson } from './frames';

export class TestSource implements IRunSource {
  now = 0;
  readonly model = new RunModel(() => this.now);
  readonly selection = new Selection();
  status: SourceStatus = 'live';
  problem = '';
  canAct = true;
  isDisposed = false;
  readonly acted: [ActionName, string | undefined][] = [];
  readonly asked: string[] = [];
  answer: () => Promise<IRolloutDetail> = async () => decodeDetail(detailJson());
  refuse: Error | null = null;
  reconnects = 0;

  get statusChanged(): ISignal<IRunSource, void> {
    return this._statusChanged;
  }
  async detail(id: string): Promise<IRolloutDetail> {
    this.asked.push(id);
    return this.answer();
  }
  readonly answers: Record<string, (params: JSONObject) => IAnswer> = {};
  async ask(method: string, params: JSONObject): Promise<IAnswer> {
    const answer = this.answers[method];
    if (!answer) {
      throw new Error(`No answer to ${method}.`);
    }
    return answer(params);
  }
  async act(name: ActionName, rolloutId?: string): Promise<void> {
    this.acted.push([name, rolloutId]);
    if (this.refuse) {
      throw this.refuse;
    }
  }
  reconnect(): void {
    this.reconnects += 1;
  }
  changeStatus(status: SourceStatus): void {
    this.status = status;
    this._statusChanged.emit();
  }
  dispose(): void {
    this.isDisposed = true;
  }
  private _statusChanged = new Signal<IRunSource, void>(this);
}

export interface IRendered {
  readonly node: HTMLElement;
  readonly byTestId: (id: string) => HTMLElement | null;
  readonly text: (id: string) => string;
  readonly button: (label: string | RegExp) => HTMLButtonElement;
  /** Do something and let everything that follows from it happen. */
  readonly after: (change: () => void) => Promise<void>;
  readonly unmount: () => void;
}

export async function renderView(
  source: IRunSource,
  element: ReactElement,
  visible = true,
  files: IRunFiles | null = null
): Promise<IRendered> {
  const node = document.createElement('div');
  document.body.append(node);
  const root = createRoot(node);
  const trans = nullTranslator.load('lightning_lab');
  const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 40));
  await act(async () =>
    root.render(<ViewProvider value={{ source, trans, visible, theme: 0, files }}>{element}</ViewProvider>)
  );
  await act(settle);
  const byTestId = (id: string): HTMLElement | null => node.querySelector(`[data-testid="${id}"]`);
  return {
    node,
    byTestId,
    text: id => byTestId(id)?.textContent ?? '',
    button: label => {
      const found = [...node.querySelectorAll('button')].find(button =>
        typeof label === 'string' ? button.textContent === label : label.test(button.textContent ?? '')
      );
      if (!found) {
        throw new Error(`There is no button ${label}.`);
      }
      return found;
    },
    after: async change => {
      await act(async () => change());
      await act(settle); // effects of the first part run at its end
    },
    unmount: () => {
      act(() => root.unmount());
      node.remove();
    }
  };
}

/** Nothing that a model said may have become an element. */
export function expectTextOnly(node: HTMLElement): void {
  expect(node.querySelectorAll('script, img, iframe, a[href], [onerror]')).toHaveLength(0);
  expect((window as { hacked?: number }).hacked).toBeUndefined();
  expect(node.textContent).not.toMatch(/[\u0000\u001b\u202e]/);
  expect(node.textContent).not.toMatch(/[\ud800-\udbff](?![\udc00-\udfff])/);
}
