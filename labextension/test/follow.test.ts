import type { Session } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

import { KernelFollower } from '../src/follow';

interface ISession {
  id: string;
  path: string;
  kernel: { id: string; name: string } | null;
}

/** The part of a session manager that a follower uses. */
class FakeSessions {
  sessions: ISession[] = [];
  readonly ready = Promise.resolve();
  readonly runningChanged = new Signal<this, void>(this);
  running(): IterableIterator<ISession> {
    return this.sessions[Symbol.iterator]();
  }
  change(...sessions: ISession[]): void {
    this.sessions = sessions;
    this.runningChanged.emit();
  }
}

function session(path: string, kernel: string | null, id = 's-1'): ISession {
  return { id, path, kernel: kernel ? { id: kernel, name: 'python3' } : null };
}

async function follow(...sessions: ISession[]): Promise<[FakeSessions, KernelFollower, string[]]> {
  const manager = new FakeSessions();
  manager.sessions = sessions;
  const follower = new KernelFollower(manager as unknown as Session.IManager, 'a.ipynb');
  const seen: string[] = [];
  follower.changed.connect(() => seen.push(`${follower.path} ${follower.kernel?.id ?? 'none'}`));
  await Promise.resolve();
  await Promise.resolve();
  return [manager, follower, seen];
}

describe('KernelFollower', () => {
  it('finds the kernel of a path, now or later', async () => {
    const [, follower] = await follow(session('b.ipynb', 'k-b', 's-2'), session('a.ipynb', 'k-1'));
    expect(follower.kernel?.id).toBe('k-1');
    const [manager, late, seen] = await follow();
    expect(late.kernel).toBeNull();
    manager.change(session('a.ipynb', 'k-9'));
    expect(seen).toEqual(['a.ipynb k-9']);
  });

  it('follows a rename, another kernel and the end, and says nothing when nothing changed', async () => {
    const [manager, , seen] = await follow(session('a.ipynb', 'k-1'));
    manager.change(session('a.ipynb', 'k-1'));
    manager.change(session('renamed.ipynb', 'k-1'));
    manager.change(session('a.ipynb', 'k-2', 's-2'), session('renamed.ipynb', 'k-3'));
    manager.change();
    expect(seen).toEqual(['a.ipynb k-1', 'renamed.ipynb k-1', 'renamed.ipynb k-3', 'renamed.ipynb none']);
  });
});
