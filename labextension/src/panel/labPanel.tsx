/** The main-area panel of one session: rebinds to whatever kernel the session has. */

import { PanelLayout, Widget } from '@lumino/widgets';
import type { Message } from '@lumino/messaging';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ISignal, Signal } from '@lumino/signaling';

import { KernelFollower } from '../follow';
import { labIcon } from '../icons';
import { AbsentSource } from '../source';
import type { IRunFiles } from '../otherRun';
import type { ILinkRegistry, IRunSource } from '../tokens';
import { App } from './app';
import { SourceView } from './widget';

export interface ILabPanelOptions {
  readonly follower: KernelFollower;
  readonly links: ILinkRegistry;
  readonly trans: TranslationBundle;
  readonly themeChanged: ISignal<unknown, unknown> | null;
  readonly files?: IRunFiles;
}

export class LabPanel extends Widget {
  constructor(private readonly _options: ILabPanelOptions) {
    super();
    this.layout = new PanelLayout();
    this.addClass('ll-panel');
    this.node.tabIndex = -1;
    this.title.icon = labIcon;
    this.title.closable = true;
    _options.follower.changed.connect(this._bind, this);
    this._bind();
  }

  /** The path of the session it belongs to. */
  get path(): string {
    return this._options.follower.path;
  }

  /** Emitted when the session was renamed. */
  get pathChanged(): ISignal<this, void> {
    return this._pathChanged;
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._options.follower.dispose();
    super.dispose();
    this._source?.dispose();
    Signal.clearData(this);
  }

  protected onActivateRequest(msg: Message): void {
    super.onActivateRequest(msg);
    this.node.focus({ preventScroll: true });
  }

  private _bind(): void {
    const { follower, links, trans, themeChanged, files } = this._options;
    const name = follower.path.split('/').pop() ?? follower.path;
    this.title.label = trans.__('Lab: %1', name.replace(/\.ipynb$/, ''));
    this.title.caption = trans.__('Lightning Lab of %1', follower.path);
    this._pathChanged.emit();
    const kernelId = follower.kernel?.id ?? '';
    if (this._source && (kernelId === this._kernelId || (kernelId === '' && this._source.model.lab !== ''))) {
      return; // what a kernel that ended had to say stays legible until there is another
    }
    this._kernelId = kernelId;
    const old = this._source;
    this._view?.dispose();
    this._source = follower.kernel ? links.acquire(follower.kernel) : new AbsentSource();
    this._view = new SourceView({ source: this._source, trans, themeChanged, files }, () => <App />);
    (this.layout as PanelLayout).addWidget(this._view);
    old?.dispose();
  }

  private _pathChanged = new Signal<this, void>(this);
  private _kernelId = '';
  private _source: IRunSource | null = null;
  private _view: SourceView | null = null;
}
