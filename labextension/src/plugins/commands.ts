import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../tokens';

/** Where the command can be found: the palette, the launcher and a notebook's context menu and toolbar. */
export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'lightning-lab:commands',
  description: 'Palette and launcher entries of Lightning Lab.',
  autoStart: true,
  optional: [ICommandPalette, ILauncher, ITranslator],
  activate: (
    _: JupyterFrontEnd,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('lightning_lab');
    const category = trans.__('Lightning Lab');
    palette?.addItem({ command: CommandIDs.openPanel, category, args: { isPalette: true } });
    launcher?.add({ command: CommandIDs.openPanel, category: trans.__('Other'), rank: 20 });
  }
};
