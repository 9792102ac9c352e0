import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IThemeManager, WidgetTracker } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { KernelFollower } from '../follow';
import { labIcon } from '../icons';
import { LabPanel } from '../panel/labPanel';
import { FolderRuns } from '../runFiles';
import { CommandIDs, ILinkRegistry } from '../tokens';

interface IOpenArgs {
  /** Path of the session whose kernel to show; the current notebook's or console's if absent. */
  readonly path?: string;
  /** Id of the widget to open beside; the one that has that session if absent. */
  readonly ref?: string;
  /** Whether to take the focus. */
  readonly activate?: boolean;
}

let panelCount = 0;

/** The main-area panel and the command that opens it. */
export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'lightning-lab:panel',
  description: 'The Lightning Lab panel.',
  autoStart: true,
  requires: [ILinkRegistry],
  optional: [INotebookTracker, IConsoleTracker, ILayoutRestorer, IThemeManager, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    links: ILinkRegistry,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    restorer: ILayoutRestorer | null,
    themes: IThemeManager | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('lightning_lab');
    const tracker = new WidgetTracker<LabPanel>({ namespace: 'lightning-lab' });
    const { contents, serverSettings, sessions } = app.serviceManager;

    const currentPath = (): string | undefined => {
      const widget = app.shell.currentWidget;
      if (widget && consoles?.has(widget)) {
        return consoles.currentWidget?.console.sessionContext.path;
      }
      return notebooks?.currentWidget?.context.path ?? consoles?.currentWidget?.console.sessionContext.path;
    };

    const widgetOf = (path: string): string | undefined =>
      notebooks?.find(panel => panel.context.path === path)?.id ??
      consoles?.find(panel => panel.console.sessionContext.path === path)?.id;

    const makePanel = (path: string): LabPanel => {
      const follower = new KernelFollower(sessions, path);
      const files = new FolderRuns(contents, serverSettings, () => follower.path);
      const panel = new LabPanel({ follower, links, trans, themeChanged: themes?.themeChanged ?? null, files });
      panel.id = `lightning-lab-panel-${panelCount++}`;
      panel.pathChanged.connect(() => void tracker.save(panel));
      void tracker.add(panel);
      return panel;
    };

    app.commands.addCommand(CommandIDs.openPanel, {
      label: trans.__('Open Lightning Lab'),
      caption: trans.__("Show the lab of this notebook's kernel beside it"),
      icon: args => (args.isPalette ? undefined : labIcon),
      isEnabled: args => typeof args.path === 'string' || currentPath() !== undefined,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            path: { type: 'string', description: trans.__('Path of the notebook whose kernel to show') },
            ref: { type: 'string', description: trans.__('Id of the widget to open beside') },
            activate: { type: 'boolean', description: trans.__('Whether to take the focus') }
          }
        }
      },
      execute: args => {
        const { path = currentPath(), ref, activate = true } = args as IOpenArgs;
        if (!path) {
          return;
        }
        let panel = tracker.find(open => open.path === path);
        if (!panel) {
          panel = makePanel(path);
          app.shell.add(panel, 'main', { ref: ref ?? widgetOf(path), mode: 'split-right', activate });
        } else if (activate) {
          app.shell.activateById(panel.id);
        }
        return panel;
      }
    });

    if (restorer) {
      void restorer.restore(tracker, {
        command: CommandIDs.openPanel,
        args: panel => ({ path: panel.path, activate: false }),
        name: panel => panel.path
      });
    }
  }
};
