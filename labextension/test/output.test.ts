import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { act } from 'react';

import { IOutputSession, LabOutput, outputFactory } from '../src/mime/renderer';
import type { IRunSource } from '../src/tokens';
import { MIME_TYPE } from '../src/wire';
import { detailJson, encodeFrame, frame, IFrameOptions } from './frames';
import { expectTextOnly, TestSource } from './render';

function saved(options: IFrameOptions = {}, more: Record<string, unknown> = {}): Record<string, unknown> {
  const { data } = encodeFrame(options);
  const snapshot = { ...data, rollouts: { rows: 0, columns: [] } };
  return { v: 1, view: 'run', lab: options.lab ?? 'lab-1', snapshot, ...more };
}

class FakeSession implements IOutputSession {
  source: TestSource | null = new TestSource();
  opened = 0;
  readonly kernelChanged = new Signal<this, void>(this);
  acquire(): IRunSource | null {
    return this.source;
  }
  openPanel(): void {
    this.opened += 1;
  }
}

async function show(data: Record<string, unknown>, session: IOutputSession | null): Promise<LabOutput> {
  const options = { session, trans: nullTranslator.load('lightning_lab'), themeChanged: null };
  const output = outputFactory(options).createRenderer({} as never) as LabOutput;
  await act(async () => {
    Widget.attach(output, document.body);
    await output.renderModel({ data: { [MIME_TYPE]: data } } as never);
    await settle();
  });
  await act(settle);
  return output;
}

const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 60));
const status = (output: LabOutput): string | undefined =>
  output.node.querySelector<HTMLElement>('[data-testid="ll-output-run"]')?.dataset.status;

describe('an output of the lab', () => {
  it('shows the stored state where there is no session', async () => {
    const output = await show(saved({ counters: { total: 12 } }), null);
    expect(status(output)).toBe('saved');
    expect(output.node.querySelector('[data-testid="ll-saved"]')?.textContent).toMatch(/Stored with the notebook/);
    expect(output.node.querySelector('[data-testid="ll-count-total"]')?.textContent).toBe('12');
    expect(output.node.querySelector('button')).toBeNull();
    act(() => output.dispose());
  });

  it('is live when its kernel runs the same lab and run', async () => {
    const session = new FakeSession();
    const output = await show(saved(), session);
    expect(status(output)).toBe('connecting');
    expect(output.node.querySelector('[data-testid="ll-saved"]')).toBeNull();
    await act(async () => {
      session.source?.model.apply(frame({ counters: { total: 99 } }));
      await settle();
    });
    expect(status(output)).toBe('live');
    expect(output.node.querySelector('[data-testid="ll-count-total"]')?.textContent).toBe('99');
    output.node.querySelector('button')?.click();
    expect(session.opened).toBe(1);
    act(() => output.dispose());
    expect(session.source?.isDisposed).toBe(true);
  });

  it('says that it is stored when no lab speaks in time', async () => {
    const session = new FakeSession();
    jest.useFakeTimers();
    try {
      const output = new LabOutput({ session, trans: nullTranslator.load('lightning_lab'), themeChanged: null });
      Widget.attach(output, document.body);
      await act(async () => {
        await output.renderModel({ data: { [MIME_TYPE]: saved() } } as unknown as IRenderMime.IMimeModel);
        await jest.advanceTimersByTimeAsync(100);
      });
      expect(status(output)).toBe('connecting');
      await act(async () => jest.advanceTimersByTimeAsync(5000));
      expect(status(output)).toBe('saved');
      act(() => output.dispose());
    } finally {
      jest.useRealTimers();
    }
  });

  it('keeps the stored state beside another lab or another run', async () => {
    const session = new FakeSession();
    session.source?.model.apply(frame({ lab: 'lab-9' }));
    const output = await show(saved(), session);
    expect(status(output)).toBe('saved');
    await act(async () => {
      session.source?.model.apply(frame({ run: 'run-2' }));
      await settle();
    });
    expect(status(output)).toBe('saved');
    act(() => output.dispose());
  });

  it('follows its lab from run to run when it is the panel', async () => {
    const session = new FakeSession();
    session.source?.model.apply(frame({ run: 'run-2' }));
    const output = await show(saved({}, { open_panel: true }), session);
    expect(status(output)).toBe('live');
    act(() => output.dispose());
  });

  it('shows a stored rollout as text', async () => {
    const output = await show(saved({}, { view: 'rollout', detail: detailJson() }), null);
    expect(output.node.querySelector('[data-testid="ll-transcript"]')).not.toBeNull();
    expectTextOnly(output.node);
    act(() => output.dispose());
  });

  it('a rollout is live, too, while its lab is there', async () => {
    const session = new FakeSession();
    const output = await show(saved({}, { view: 'rollout', detail: detailJson() }), session);
    expect(session.source?.asked).toEqual([]);
    await act(async () => {
      session.source?.model.apply(frame());
      await settle();
    });
    const node = output.node.querySelector<HTMLElement>('[data-testid="ll-output-rollout"]');
    expect(node?.dataset.status).toBe('live');
    for (let turn = 0; turn < 50 && session.source?.asked.length === 0; turn++) {
      await act(settle); // the page asks in a turn of its own
    }
    expect(session.source?.asked).toEqual(['r-1']);
    act(() => output.dispose());
  });

  it('says it when it cannot read what was stored', async () => {
    const output = await show({ v: 7 }, null);
    expect(output.node.textContent).toMatch(/schema 7/);
    act(() => output.dispose());
  });
});
