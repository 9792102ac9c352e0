/**
 * Questions to the lab (drill-down, buttons), answered while a cell is busy.
 *
 * The channel speaks the comm protocol in raw messages on the link's own connection instead of `createComm`: that
 * connection does not handle comms (only the notebook's may, or ipywidgets would break), it outlives the notebook, and
 * the messages go to a subshell of their own, created over the control channel, which a busy cell does not block.
 */

import { Kernel, KernelMessage } from '@jupyterlab/services';
import { JSONObject, UUID } from '@lumino/coreutils';

import { REQUEST_TARGET } from './wire';

/** How long the kernel may take to start a subshell before the main shell is used instead. */
const SUBSHELL_TIMEOUT_MS = 3000;
const REQUEST_TIMEOUT_MS = 10_000;

/** The lab refused: `message` says what happened, `action` what to do. */
export class RequestError extends Error {
  constructor(
    message: string,
    readonly action: string = ''
  ) {
    super(action ? `${message} ${action}` : message);
    this.name = 'RequestError';
  }
}

/** What the lab answered: JSON, and the binary columns that it names by their place. */
export interface IAnswer {
  readonly result: unknown;
  readonly buffers: readonly (ArrayBuffer | ArrayBufferView)[];
}

interface IPending {
  readonly resolve: (answer: IAnswer) => void;
  readonly reject: (error: Error) => void;
  readonly timer: ReturnType<typeof setTimeout>;
}

interface IChannel {
  readonly commId: string;
  readonly subshellId: string | null;
}

export class RequestChannel {
  constructor(private readonly _kernel: Kernel.IKernelConnection) {}

  /** Send one request; resolves with its answer. */
  async request(method: string, params: JSONObject, timeout = REQUEST_TIMEOUT_MS): Promise<IAnswer> {
    const channel = await (this._channel ??= this._open());
    const id = this._nextId++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this._expire(id, timeout), timeout);
      this._pending.set(id, { resolve, reject, timer });
      this._send('comm_msg', channel, { comm_id: channel.commId, data: { id, method, params } });
    });
  }

  /** Take a message from the kernel if it belongs to this channel. */
  handle(msg: KernelMessage.IIOPubMessage): void {
    if (KernelMessage.isCommMsgMsg(msg) && msg.content.comm_id === this._commId) {
      this._answer(msg.content.data, msg.buffers ?? []);
    } else if (KernelMessage.isCommCloseMsg(msg) && msg.content.comm_id === this._commId) {
      this.reset('The kernel has no open lab.', 'Run a cell with ll.Lab(…) and try again.');
    }
  }

  /** Forget the channel (the kernel restarted or closed it) and fail what is open. */
  reset(why: string, action = ''): void {
    this._channel = null;
    this._commId = '';
    const pending = [...this._pending.values()];
    this._pending.clear();
    for (const request of pending) {
      clearTimeout(request.timer);
      request.reject(new RequestError(why, action));
    }
  }

  /** Say goodbye to the kernel, so that it can drop the comm and its subshell. */
  close(): void {
    const channel = this._channel;
    this.reset('The panel was closed.');
    void channel?.then(open => {
      if (this._kernel.isDisposed || this._kernel.connectionStatus !== 'connected') {
        return;
      }
      this._send('comm_close', open, { comm_id: open.commId, data: {} });
      if (open.subshellId) {
        this._endSubshell(open.subshellId);
      }
    });
  }

  private async _open(): Promise<IChannel> {
    const commId = UUID.uuid4();
    this._commId = commId;
    const channel = { commId, subshellId: await this._startSubshell() };
    this._send('comm_open', channel, { comm_id: commId, target_name: REQUEST_TARGET, data: {} });
    return channel;
  }

  /**
   * The id of a new subshell, or `null` where the kernel has none.
   *
   * The kernel is asked, not its cached info: after a page reload `kernel_info` is stuck behind the busy cell.
   */
  private async _startSubshell(): Promise<string | null> {
    const ask = KernelMessage.createMessage<KernelMessage.ICreateSubshellRequestMsg>({
      msgType: 'create_subshell_request',
      channel: 'control',
      username: this._kernel.username,
      session: this._kernel.clientId,
      content: {}
    });
    const timeout = new Promise<null>(resolve => setTimeout(resolve, SUBSHELL_TIMEOUT_MS, null));
    try {
      const answer = await Promise.race([this._kernel.sendControlMessage(ask, true).done, timeout]);
      const id = (answer?.content as { subshell_id?: unknown } | undefined)?.subshell_id;
      return typeof id === 'string' ? id : null;
    } catch {
      return null;
    }
  }

  private _endSubshell(subshellId: string): void {
    const msg = KernelMessage.createMessage<KernelMessage.IDeleteSubshellRequestMsg>({
      msgType: 'delete_subshell_request',
      channel: 'control',
      username: this._kernel.username,
      session: this._kernel.clientId,
      content: { subshell_id: subshellId }
    });
    this._kernel.sendControlMessage(msg, true).done.catch(() => undefined);
  }

  private _send(msgType: 'comm_open' | 'comm_msg' | 'comm_close', channel: IChannel, content: JSONObject): void {
    const msg = KernelMessage.createMessage({
      msgType,
      channel: 'shell',
      username: this._kernel.username,
      session: this._kernel.clientId,
      subshellId: channel.subshellId,
      content
    } as unknown as KernelMessage.IOptions<KernelMessage.ICommMsgMsg<'shell'>>);
    // The future reports its own disposal at a restart as a rejection; the pending request has been failed by then.
    this._kernel.sendShellMessage(msg, false, true).done.catch(() => undefined);
  }

  private _answer(data: JSONObject, buffers: IAnswer['buffers']): void {
    const id = data.id as number;
    const pending = this._pending.get(id);
    if (!pending) {
      return;
    }
    this._pending.delete(id);
    clearTimeout(pending.timer);
    if (data.ok === true) {
      pending.resolve({ result: data.result, buffers });
      return;
    }
    const error = (data.error ?? {}) as { message?: unknown; action?: unknown };
    pending.reject(
      new RequestError(
        typeof error.message === 'string' ? error.message : 'The lab refused without a reason.',
        typeof error.action === 'string' ? error.action : ''
      )
    );
  }

  private _expire(id: number, timeout: number): void {
    const pending = this._pending.get(id);
    this._pending.delete(id);
    pending?.reject(
      new RequestError(
        `The kernel did not answer within ${timeout / 1000} s.`,
        'It may be busy in a call that holds the interpreter; try again when the header is live.'
      )
    );
  }

  private _channel: Promise<IChannel> | null = null;
  private _commId = '';
  private _nextId = 1;
  private _pending = new Map<number, IPending>();
}
