import type { Kernel, KernelMessage } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

import { LinkRegistry } from '../src/link';
import { PUSH_COMM_ID, REQUEST_TARGET } from '../src/wire';
import { detailJson, encodeFrame, encodeRows, IFrameOptions } from './frames';

interface ISent {
  channel: string;
  type: string;
  subshell: string | null;
  content: Record<string, unknown>;
}

/** The part of a kernel connection that a link uses. */
class FakeKernel {
  readonly id = 'k-1';
  readonly username = '';
  readonly clientId = 'client';
  status = 'idle';
  connectionStatus = 'connected';
  isDisposed = false;
  reconnects = 0;
  subshells = true;
  readonly sent: ISent[] = [];
  readonly iopubMessage = new Signal<this, unknown>(this);
  readonly connectionStatusChanged = new Signal<this, string>(this);
  readonly statusChanged = new Signal<this, string>(this);
  readonly disposed = new Signal<this, void>(this);

  sendShellMessage(msg: KernelMessage.IShellMessage): { done: Promise<void> } {
    this._note(msg);
    return { done: Promise.resolve() };
  }

  sendControlMessage(msg: KernelMessage.IControlMessage): { done: Promise<unknown> } {
    this._note(msg);
    const never = new Promise<unknown>(() => undefined);
    return { done: this.subshells ? Promise.resolve({ content: { subshell_id: 'sub-1' } }) : never };
  }

  async reconnect(): Promise<void> {
    this.reconnects += 1;
  }

  dispose(): void {
    this.isDisposed = true;
  }

  /** What the kernel says. */
  say(type: string, content: object, buffers: ArrayBuffer[] = [], session = 's-1'): void {
    this.iopubMessage.emit({ channel: 'iopub', header: { msg_type: type, session }, content, buffers });
  }

  push(options: IFrameOptions = {}): void {
    const { data, buffers } = encodeFrame(options);
    this.say('comm_msg', { comm_id: PUSH_COMM_ID, data }, buffers);
  }

  answer(reply: object): void {
    this.say('comm_msg', { comm_id: this.commId, data: reply });
  }

  get commId(): string {
    return this.sent.find(message => message.type === 'comm_open')?.content.comm_id as string;
  }

  requests(method?: string): { id: number; method: string; params: Record<string, unknown> }[] {
    return this.sent
      .filter(message => message.type === 'comm_msg')
      .map(message => message.content.data as { id: number; method: string; params: Record<string, unknown> })
      .filter(request => !method || request.method === method);
  }

  private _note(msg: KernelMessage.IMessage): void {
    const header = msg.header as { msg_type: string; subshell_id?: string | null };
    this.sent.push({
      channel: msg.channel,
      type: header.msg_type,
      subshell: header.subshell_id ?? null,
      content: msg.content as Record<string, unknown>
    });
  }
}

function setUp(kernel: Partial<FakeKernel> = {}): { kernels: FakeKernel[]; links: LinkRegistry; model: Kernel.IModel } {
  const kernels: FakeKernel[] = [];
  const links = new LinkRegistry(() => {
    kernels.push(Object.assign(new FakeKernel(), kernel));
    return kernels[kernels.length - 1] as unknown as Kernel.IKernelConnection;
  });
  return { kernels, links, model: { id: 'k-1', name: 'python3' } };
}

/** Let promises settle. */
const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 0));

describe('LinkRegistry', () => {
  it('shares one connection among all views of a kernel and closes it with the last', async () => {
    const { kernels, links, model } = setUp();
    const a = links.acquire(model);
    const b = links.acquire(model);
    expect(kernels).toHaveLength(1);
    expect(a.model).toBe(b.model);
    a.dispose();
    a.dispose();
    await settle();
    expect(kernels[0].isDisposed).toBe(false);
    b.dispose();
    await settle();
    expect(kernels[0].isDisposed).toBe(true);
    links.acquire(model);
    expect(kernels).toHaveLength(2);
  });

  it('makes a new link when the kernel of the old one has ended', () => {
    const { kernels, links, model } = setUp();
    links.acquire(model);
    kernels[0].status = 'dead';
    const next = links.acquire(model);
    expect(kernels).toHaveLength(2);
    expect(next.status).toBe('waiting');
  });
});

describe('a link', () => {
  it('waits for a lab, then is live', () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    const statuses: string[] = [];
    link.statusChanged.connect(() => statuses.push(link.status));
    expect(link.status).toBe('waiting');
    kernels[0].push({ rows: [{ row: 0 }] });
    expect(link.status).toBe('live');
    expect(link.model.rows.count).toBe(1);
    expect(statuses).toContain('live');
  });

  it('says hello as soon as it is connected, so that an open lab speaks at once', async () => {
    const { kernels, links, model } = setUp({ connectionStatus: 'connecting' });
    const link = links.acquire(model);
    await settle();
    expect(kernels[0].requests('hello')).toHaveLength(0);
    kernels[0].connectionStatus = 'connected';
    kernels[0].connectionStatusChanged.emit('connected');
    await settle();
    const [hello] = kernels[0].requests('hello');
    expect(hello.params.schema).toBe(1);
    kernels[0].push();
    await settle();
    expect(kernels[0].requests('hello')).toHaveLength(1);
    expect(link.status).toBe('live');
  });

  it('says hello again when a lab opens in a kernel that had none', async () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    await settle();
    kernels[0].say('comm_close', { comm_id: kernels[0].commId, data: {} });
    await settle();
    expect(link.status).toBe('waiting');
    kernels[0].push();
    await settle();
    expect(kernels[0].requests('hello')).toHaveLength(2);
  });

  it('asks for the rows of a large run instead of waiting for the frames', async () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    const kernel = kernels[0];
    kernel.push({ counters: { total: 20_000 } });
    await settle();
    const [first] = kernel.requests('rows');
    expect(first.params).toEqual({ run: 'run-1', from: 0 });
    kernel.push({ counters: { total: 20_000 }, rows: [{ row: 2 }, { row: 19_999 }] });
    const { rollouts, buffers } = encodeRows([{ row: 0 }, { row: 1 }]);
    kernel.say('comm_msg', { comm_id: kernel.commId, data: { id: first.id, ok: true, result: rollouts } }, buffers);
    await settle();
    expect(link.model.rows.count).toBe(4);
    const second = kernel.requests('rows')[1];
    expect(second.params).toEqual({ run: 'run-1', from: 3 }); // a frame has brought the third
    kernel.answer({ id: second.id, ok: true, result: { rows: 0, columns: [] } });
    await settle();
    expect(kernel.requests('rows')).toHaveLength(2);
  });

  it('hands binary columns over with the answer', async () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    const asked = link.ask('tokens', { id: 'r-1', sample: 0 });
    await settle();
    const [{ id }] = kernels[0].requests('tokens');
    const buffer = Int32Array.from([1, 2]).buffer;
    kernels[0].say('comm_msg', { comm_id: kernels[0].commId, data: { id, ok: true, result: { v: 1 } } }, [buffer]);
    expect(await asked).toEqual({ result: { v: 1 }, buffers: [buffer] });
  });

  it('leaves the comms of others alone', () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    kernels[0].say('comm_msg', { comm_id: 'a widget', data: { v: 1, lab: 'no' } });
    expect(link.model.lab).toBe('');
  });

  it('asks on a subshell, which a busy cell does not block, and matches answers by id', async () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    const kernel = kernels[0];
    const first = link.detail('r-1');
    const second = link.act('pause');
    await settle();
    expect(kernel.sent[0]).toMatchObject({ channel: 'control', type: 'create_subshell_request' });
    const opened = kernel.sent.find(message => message.type === 'comm_open');
    expect(opened).toMatchObject({ channel: 'shell', subshell: 'sub-1', content: { target_name: REQUEST_TARGET } });
    expect(kernel.sent.filter(message => message.type === 'comm_open')).toHaveLength(1);
    const [ask] = kernel.requests('rollout');
    const [act] = kernel.requests('action');
    expect(ask.params).toEqual({ id: 'r-1' });
    expect(act.params).toEqual({ name: 'pause' });
    kernel.answer({ id: act.id, ok: true, result: { done: true } });
    kernel.answer({ id: ask.id, ok: true, result: detailJson() });
    await expect(second).resolves.toBeUndefined();
    expect((await first).rollout.id).toBe('r-1');
  });

  it('uses the main shell when the kernel starts no subshell in time', async () => {
    jest.useFakeTimers();
    try {
      const { kernels, links, model } = setUp({ subshells: false });
      const link = links.acquire(model);
      void link.act('pause').catch(() => undefined);
      await jest.advanceTimersByTimeAsync(3100);
      expect(kernels[0].sent.find(message => message.type === 'comm_open')?.subshell).toBeNull();
      expect(kernels[0].requests('action')).toHaveLength(1);
    } finally {
      jest.useRealTimers();
    }
  });

  it('says why when the lab refuses, closes, or does not answer', async () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    const kernel = kernels[0];
    const refused = link.act('stop');
    await settle();
    const [{ id }] = kernel.requests('action');
    kernel.answer({ id, ok: false, error: { message: 'No run is training.', action: 'Start one.' } });
    await expect(refused).rejects.toThrow('No run is training. Start one.');
    const orphan = link.act('stop');
    await settle();
    kernel.say('comm_close', { comm_id: kernel.commId, data: {} });
    await expect(orphan).rejects.toThrow(/no open lab/);
    jest.useFakeTimers();
    try {
      const late = link.act('stop');
      const expected = expect(late).rejects.toThrow(/did not answer within 10 s/);
      await jest.advanceTimersByTimeAsync(10_100);
      await expected;
    } finally {
      jest.useRealTimers();
    }
  });

  it('survives a restart: the old state is closed, requests fail by name, the next lab is followed', async () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    const kernel = kernels[0];
    kernel.say('status', { execution_state: 'idle' }, [], 's-1');
    kernel.push({ rows: [{ row: 0 }] });
    const open = link.detail('r-0');
    await settle();
    kernel.say('status', { execution_state: 'starting' }, [], 's-2');
    await expect(open).rejects.toThrow('The kernel restarted.');
    expect(link.model.labOpen).toBe(false);
    expect(link.model.rows.count).toBe(1);
    const opens = kernel.sent.filter(message => message.type === 'comm_open').length;
    kernel.push({ lab: 'lab-2', rows: [] });
    await settle();
    expect(link.model.labOpen).toBe(true);
    expect(kernel.sent.filter(message => message.type === 'comm_open')).toHaveLength(opens + 1);
  });

  it('shakes hands with every lab, and notes another version', async () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    kernels[0].push();
    await settle();
    const [hello] = kernels[0].requests('hello');
    expect(hello.params).toEqual({ schema: 1, extension: '0.1.0' });
    kernels[0].answer({ id: hello.id, ok: true, result: { schema: 1, package: '0.9.0', lab: 'lab-1' } });
    await settle();
    expect(link.problem).toMatch(/lightning-lab 0\.9\.0.*0\.1\.0/);
    expect(link.status).toBe('live');
  });

  it('refuses another schema with a sentence, and goes on when it fits again', () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    kernels[0].push({ more: { v: 2 } });
    expect(link.status).toBe('mismatch');
    expect(link.problem).toMatch(/schema 2/);
    kernels[0].push();
    expect(link.status).toBe('live');
    expect(link.problem).toBe('');
  });

  it('leaves out a frame that cannot be read', () => {
    const error = jest.spyOn(console, 'error').mockImplementation(() => undefined);
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    const { data, buffers } = encodeFrame({ rows: [{ row: 0 }] });
    buffers[1] = new TextEncoder().encode('{not json').buffer as ArrayBuffer;
    kernels[0].say('comm_msg', { comm_id: PUSH_COMM_ID, data }, buffers);
    expect(link.model.rows.count).toBe(0);
    expect(error).toHaveBeenCalled();
    kernels[0].push({ rows: [{ row: 0 }] });
    expect(link.model.rows.count).toBe(1);
  });

  it('tells a lost connection from a kernel that ended', () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    const kernel = kernels[0];
    kernel.push();
    kernel.connectionStatus = 'disconnected';
    kernel.connectionStatusChanged.emit('disconnected');
    expect(link.status).toBe('disconnected');
    link.reconnect();
    expect(kernel.reconnects).toBe(1);
    kernel.status = 'dead';
    kernel.isDisposed = true;
    kernel.disposed.emit();
    expect(link.status).toBe('gone');
    expect(link.model.labOpen).toBe(false);
  });

  it('tells the kernel what is selected', async () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    link.selection.set({ rollout: 'early' });
    kernels[0].push();
    link.selection.set({ run: 'run-1', step: 3, rollout: 'r-1' });
    link.selection.set({ run: 'run-1', step: 3, rollout: 'r-1' });
    await settle();
    expect(kernels[0].requests('select').map(request => request.params)).toEqual([
      { selection: { run: 'run-1', step: 3, rollout: 'r-1' } }
    ]);
  });

  it('says goodbye to its comm and subshell', async () => {
    const { kernels, links, model } = setUp();
    const link = links.acquire(model);
    kernels[0].push();
    await settle();
    link.dispose();
    await settle();
    const types = kernels[0].sent.map(message => message.type);
    expect(types).toContain('comm_close');
    expect(types).toContain('delete_subshell_request');
  });
});
