import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISessionContext, IThemeManager } from '@jupyterlab/apputils';
import { ConsolePanel, IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { KernelMessage } from '@jupyterlab/services';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { IOutputSession, outputFactory, RENDERER_RANK } from '../mime/renderer';
import { CommandIDs, ILinkRegistry } from '../tokens';
import { MIME_TYPE } from '../wire';

const PLUGIN_ID = 'lightning-lab:mime';

/** Whether a message is an output, made just now, that asks for the panel. */
function asksForPanel(msg: KernelMessage.IIOPubMessage): boolean {
  if (!KernelMessage.isDisplayDataMsg(msg) && !KernelMessage.isExecuteResultMsg(msg)) {
    return false;
  }
  const saved = msg.content.data[MIME_TYPE] as { open_panel?: unknown } | undefined;
  return saved?.open_panel === true;
}

/** Live outputs in notebooks and consoles, each bound to its own session. */
export const mimePlugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'Renders Lightning Lab outputs, live where there is a kernel.',
  autoStart: true,
  requires: [ILinkRegistry, IRenderMimeRegistry],
  optional: [INotebookTracker, IConsoleTracker, IThemeManager, ISettingRegistry, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    links: ILinkRegistry,
    rendermime: IRenderMimeRegistry,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    themes: IThemeManager | null,
    settings: ISettingRegistry | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('lightning_lab');
    const themeChanged = themes?.themeChanged ?? null;
    const make = (session: IOutputSession | null): IRenderMime.IRendererFactory =>
      outputFactory({ session, trans, themeChanged });
    let opensItself = true;

    // Without a session (a file preview, a notebook that is not running) the stored state is shown.
    rendermime.addFactory(make(null), RENDERER_RANK);

    const bind = (context: ISessionContext, widgetId: () => string, target: IRenderMimeRegistry): void => {
      const openPanel = (activate: boolean): void =>
        void app.commands.execute(CommandIDs.openPanel, { path: context.path, ref: widgetId(), activate });
      target.addFactory(
        make({
          acquire: () => {
            const kernel = context.session?.kernel;
            return kernel ? links.acquire({ id: kernel.id, name: kernel.name }) : null;
          },
          kernelChanged: context.kernelChanged,
          openPanel: () => openPanel(true)
        }),
        RENDERER_RANK
      );
      context.iopubMessage.connect((_, msg) => {
        // Only the browser that ran the cell opens its panel; others see the same message.
        const parent = msg.parent_header as Partial<KernelMessage.IHeader>;
        const mine = parent.session === context.session?.kernel?.clientId;
        if (opensItself && mine && asksForPanel(msg as KernelMessage.IIOPubMessage)) {
          openPanel(false);
        }
      });
    };

    const bindNotebook = (panel: NotebookPanel): void =>
      bind(panel.sessionContext, () => panel.id, panel.content.rendermime);
    const bindConsole = (panel: ConsolePanel): void =>
      bind(panel.console.sessionContext, () => panel.id, panel.console.rendermime);
    notebooks?.forEach(bindNotebook);
    notebooks?.widgetAdded.connect((_, panel) => bindNotebook(panel));
    consoles?.forEach(bindConsole);
    consoles?.widgetAdded.connect((_, panel) => bindConsole(panel));

    void settings?.load(PLUGIN_ID).then(loaded => {
      const read = (): void => {
        opensItself = loaded.get('openPanelAutomatically').composite !== false;
      };
      loaded.changed.connect(read);
      read();
    });
  }
};
