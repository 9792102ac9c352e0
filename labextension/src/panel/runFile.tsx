/** The pages over an exported run. */

import { App } from './app';
import { IViewOptions, SourceView } from './widget';

export function makeRunFileView(options: IViewOptions): SourceView {
  const view = new SourceView(options, () => <App />);
  view.addClass('ll-panel');
  return view;
}
