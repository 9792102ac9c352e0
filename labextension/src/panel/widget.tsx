/** React in Lumino: a view that knows whether it can be seen. */

import { ReactWidget } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import type { ISignal } from '@lumino/signaling';
import type { ReactElement } from 'react';

import type { IRunFiles } from '../otherRun';
import type { IRunSource } from '../tokens';
import { ViewProvider } from './view';

export interface IViewOptions {
  readonly source: IRunSource;
  readonly trans: TranslationBundle;
  /** Emitted when colours change; `null` without a theme manager. */
  readonly themeChanged: ISignal<unknown, unknown> | null;
  /** Exported runs to compare with. */
  readonly files?: IRunFiles;
}

/** A view of a source. It does not own the source. */
export class SourceView extends ReactWidget {
  constructor(
    private readonly _options: IViewOptions,
    private readonly _content: () => ReactElement
  ) {
    super();
    this.addClass('ll-view');
    _options.themeChanged?.connect(this._onTheme, this);
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  dispose(): void {
    document.removeEventListener('visibilitychange', this._onVisibility);
    super.dispose();
  }

  render(): ReactElement {
    const { source, trans, files = null } = this._options;
    return (
      <ViewProvider value={{ source, trans, visible: this._visible, theme: this._theme, files }}>
        {this._content()}
      </ViewProvider>
    );
  }

  protected onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this._onVisibility();
  }

  protected onAfterHide(msg: Message): void {
    super.onAfterHide(msg);
    this._see(false);
  }

  protected onAfterAttach(msg: Message): void {
    this._visible = this.isVisible && !document.hidden;
    super.onAfterAttach(msg);
  }

  /** The browser's tab may be hidden as well. */
  private _onVisibility = (): void => this._see(this.isVisible && !document.hidden);

  private _see(visible: boolean): void {
    if (visible !== this._visible) {
      this._visible = visible;
      this.update();
    }
  }

  private _onTheme(): void {
    // The new style sheet is applied after the signal; colours are read from it.
    setTimeout(() => {
      if (!this.isDisposed) {
        this._theme += 1;
        this.update();
      }
    }, 50);
  }

  private _visible = false;
  private _theme = 0;
}
