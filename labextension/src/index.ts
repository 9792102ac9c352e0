/** Lightning Lab for JupyterLab: every rollout, call, split and weight, live beside the notebook. */

import { commandsPlugin } from './plugins/commands';
import { filePlugin } from './plugins/file';
import { linkPlugin } from './plugins/link';
import { mimePlugin } from './plugins/mime';
import { panelPlugin } from './plugins/panel';

export * from './tokens';

export default [linkPlugin, panelPlugin, commandsPlugin, mimePlugin, filePlugin];
