import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { act } from 'react';

import type { KernelFollower } from '../src/follow';
import { LabPanel } from '../src/panel/labPanel';
import { frame } from './frames';
import { TestSource } from './render';

class FakeFollower {
  path = 'work/demo.ipynb';
  kernel: { id: string; name: string } | null = { id: 'k-1', name: 'python3' };
  disposed = false;
  readonly changed = new Signal<this, void>(this);
  to(id: string | null, path = this.path): void {
    this.kernel = id ? { id, name: 'python3' } : null;
    this.path = path;
    this.changed.emit();
  }
  dispose(): void {
    this.disposed = true;
  }
}

function setUp(): { follower: FakeFollower; sources: TestSource[]; panel: LabPanel } {
  const follower = new FakeFollower();
  const sources: TestSource[] = [];
  const links = {
    acquire: () => {
      sources.push(new TestSource());
      return sources[sources.length - 1];
    }
  };
  const panel = new LabPanel({
    follower: follower as unknown as KernelFollower,
    links,
    trans: nullTranslator.load('lightning_lab'),
    themeChanged: null
  });
  return { follower, sources, panel };
}

const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 50));

describe('LabPanel', () => {
  it('shows the lab of its kernel and gives its share back', async () => {
    const { follower, sources, panel } = setUp();
    await act(async () => {
      Widget.attach(panel, document.body);
      await settle();
    });
    sources[0].model.apply(frame({ counters: { total: 3 } }));
    await act(settle);
    expect(panel.node.querySelector('[data-testid="ll-count-total"]')?.textContent).toBe('3');
    expect(panel.title.label).toBe('Lab: demo');
    act(() => panel.dispose());
    expect(sources[0].isDisposed).toBe(true);
    expect(follower.disposed).toBe(true);
  });

  it('binds to another kernel, and keeps its title with a rename', () => {
    const { follower, sources, panel } = setUp();
    follower.to('k-1', 'work/new name.ipynb');
    expect(panel.title.label).toBe('Lab: new name');
    expect(sources).toHaveLength(1);
    follower.to('k-2');
    expect(sources).toHaveLength(2);
    expect(sources[0].isDisposed).toBe(true);
    panel.dispose();
  });

  it('keeps the last state of a kernel that ended until there is another', () => {
    const { follower, sources, panel } = setUp();
    sources[0].model.apply(frame());
    follower.to(null);
    expect(sources[0].isDisposed).toBe(false);
    follower.to('k-2');
    expect(sources[0].isDisposed).toBe(true);
    panel.dispose();
  });
});
