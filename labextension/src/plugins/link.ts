import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';

import { LinkRegistry } from '../link';
import { ILinkRegistry } from '../tokens';

/** One counted link per kernel. */
export const linkPlugin: JupyterFrontEndPlugin<ILinkRegistry> = {
  id: 'lightning-lab:link',
  description: 'Live links to the labs of running kernels.',
  autoStart: true,
  provides: ILinkRegistry,
  activate: (app: JupyterFrontEnd): ILinkRegistry =>
    new LinkRegistry(model => app.serviceManager.kernels.connectTo({ model, handleComms: false }))
};
