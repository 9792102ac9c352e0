/** The renderer of `application/vnd.lightning-lab+json`: live beside its kernel, the stored state without one. */

import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ISignal } from '@lumino/signaling';
import { PanelLayout, Widget } from '@lumino/widgets';

import { RewardChart } from '../panel/charts';
import { Header } from '../panel/header';
import { useSource } from '../panel/hooks';
import { RolloutPage } from '../panel/rolloutPage';
import { useView } from '../panel/view';
import { SourceView } from '../panel/widget';
import { SavedSource } from '../source';
import type { IRunSource } from '../tokens';
import { decodeSavedView } from '../decodeDetail';
import { ISavedView, MIME_TYPE } from '../wire';

/** The session an output belongs to; absent where a document is shown without one. */
export interface IOutputSession {
  /** Take a share of the link to the session's kernel, or `null` while it has none. */
  acquire(): IRunSource | null;
  /** Emitted when the session gets another kernel. */
  readonly kernelChanged: ISignal<unknown, unknown>;
  /** Open the panel of this session. */
  openPanel(): void;
}

/** How long a lab that is there may take to say so: until then an output is neither live nor known to be stored. */
const FIRST_FRAME_MS = 4000;

export interface IOutputOptions {
  readonly session: IOutputSession | null;
  readonly trans: TranslationBundle;
  readonly themeChanged: ISignal<unknown, unknown> | null;
}

function CompactRun({ onOpen }: { onOpen: (() => void) | null }): JSX.Element {
  const { source, trans, visible } = useView();
  useSource(source, visible);
  return (
    <div className="ll-root ll-compact" data-testid="ll-output-run" data-status={source.status}>
      <Header controls={false} />
      {source.model.steps.length > 0 && <RewardChart height={120} />}
      {onOpen && source.status === 'live' && (
        <button type="button" className="ll-link" onClick={onOpen}>
          {trans.__('Open the panel')}
        </button>
      )}
    </div>
  );
}

function SavedRollout({ id }: { id: string }): JSX.Element {
  const { source, visible } = useView();
  useSource(source, visible);
  return (
    <div className="ll-root ll-compact" data-testid="ll-output-rollout" data-status={source.status}>
      <RolloutPage id={id} onOpen={() => undefined} />
    </div>
  );
}

/** Whether a live source shows what was stored, so that it may take its place. */
export function isSame(saved: ISavedView, source: IRunSource): boolean {
  const { model } = source;
  if (saved.lab === '' || model.lab !== saved.lab) {
    return false;
  }
  // `lab.panel()` follows the lab from run to run; a run's own output shows that run for ever.
  return saved.openPanel || saved.snapshot.run === null || saved.snapshot.run.id === model.run?.id;
}

export class LabOutput extends Widget implements IRenderMime.IRenderer {
  constructor(private readonly _options: IOutputOptions) {
    super();
    this.layout = new PanelLayout();
    this.addClass('ll-output-view');
    _options.session?.kernelChanged.connect(this._link, this);
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    try {
      this._saved = decodeSavedView(model.data[MIME_TYPE]);
    } catch (error) {
      this._fail(error);
      return;
    }
    this._stored?.dispose();
    this._stored = new SavedSource(this._saved);
    this._shown = null;
    this._link();
    this._show();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    super.dispose();
    clearTimeout(this._timer);
    this._live?.dispose();
    this._stored?.dispose();
  }

  /** Listen to the session's kernel; what it says decides whether the output is live. */
  private _link(): void {
    if (!this._saved || this.isDisposed) {
      return;
    }
    const old = this._live;
    old?.model.changed.disconnect(this._onLive, this);
    this._live = this._options.session?.acquire() ?? null;
    this._live?.model.changed.connect(this._onLive, this);
    old?.dispose();
    this._waiting = this._live !== null;
    clearTimeout(this._timer);
    this._timer = setTimeout(() => {
      this._waiting = false;
      this._show();
    }, FIRST_FRAME_MS);
    this._show();
  }

  private _onLive(): void {
    this._show();
  }

  private _show(): void {
    const saved = this._saved;
    const stored = this._stored;
    if (!saved || !stored) {
      return;
    }
    const live = this._live && isSame(saved, this._live) ? this._live : null;
    stored.expectsLive = this._waiting && this._live?.model.lab === '';
    const source = live ?? stored;
    if (source === this._shown) {
      return;
    }
    this._shown = source;
    const { trans, themeChanged, session } = this._options;
    const onOpen = session ? () => session.openPanel() : null;
    const view = new SourceView({ source, trans, themeChanged }, () =>
      saved.view === 'rollout' && saved.detail ? (
        <SavedRollout id={saved.detail.rollout.id} />
      ) : (
        <CompactRun onOpen={onOpen} />
      )
    );
    this._replace(view);
  }

  private _replace(view: Widget): void {
    const layout = this.layout as PanelLayout;
    [...layout.widgets].forEach(widget => widget.dispose());
    layout.addWidget(view);
  }

  private _fail(error: unknown): void {
    const note = new Widget();
    note.addClass('ll-root');
    note.addClass('ll-compact');
    const text = document.createElement('p');
    text.className = 'll-notice ll-mod-error';
    text.textContent = error instanceof Error ? error.message : String(error);
    note.node.append(text);
    this._replace(note);
  }

  private _saved: ISavedView | null = null;
  private _stored: SavedSource | null = null;
  private _live: IRunSource | null = null;
  private _shown: IRunSource | null = null;
  private _waiting = false;
  private _timer: ReturnType<typeof setTimeout> | undefined;
}

/** Lower than HTML's rank, so that this view is preferred to the fallback in the same bundle. */
export const RENDERER_RANK = 0;

/** A factory whose outputs are bound to one session, or to none. */
export function outputFactory(options: IOutputOptions): IRenderMime.IRendererFactory {
  return {
    safe: true, // it renders text only, so that outputs of untrusted notebooks are shown as well
    mimeTypes: [MIME_TYPE],
    defaultRank: RENDERER_RANK,
    createRenderer: () => new LabOutput(options)
  };
}
