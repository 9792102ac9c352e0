/** What every component of a view needs; given down by context. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { createContext, useContext } from 'react';

import type { IRunFiles } from '../otherRun';
import type { IRunSource } from '../tokens';

export interface IView {
  readonly source: IRunSource;
  readonly trans: TranslationBundle;
  /** Whether the view can be seen; nothing is drawn or fetched while it cannot. */
  readonly visible: boolean;
  /** Grows when the theme changes, so that what is painted on canvas is painted again. */
  readonly theme: number;
  /** Exported runs to compare with; `null` where there is no folder to look in. */
  readonly files: IRunFiles | null;
}

const Context = createContext<IView | null>(null);

export const ViewProvider = Context.Provider;

export function useView(): IView {
  const view = useContext(Context);
  if (!view) {
    throw new Error('A Lightning Lab component was rendered outside of a view.');
  }
  return view;
}
