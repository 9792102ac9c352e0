/** The lines of the grid that are in sight, as elements that are used again while it scrolls. */

import { fixed, integer } from '../format';
import { groupOfLine, ILines, IRowGroup } from '../grouping';
import { isInfrastructure } from '../outcomes';
import type { RowTable } from '../rows';
import { visibleLine } from '../text';
import type { IGridColumn, IShowContext } from './gridColumns';

export const ROW_HEIGHT = 26;
/** Lines kept ready above and below the window. */
const OVERSCAN = 8;

/** What the lines show, beside the table itself. */
export interface IPaint extends IShowContext {
  readonly rows: RowTable;
  readonly lines: ILines;
  /** The line with the keyboard's mark, or -1. */
  readonly active: number;
  readonly selected: string | undefined;
}

interface ILineElement {
  readonly node: HTMLElement;
  readonly cells: readonly HTMLElement[];
  /** Written in place: a new text node for every cell of every frame would be garbage faster than it is collected. */
  readonly texts: readonly Text[];
  readonly shown: string[];
  readonly header: Text;
  line: number;
}

export class GridRows {
  constructor(
    readonly node: HTMLElement,
    private readonly _id: string,
    private readonly _translate: (text: string, ...values: string[]) => string
  ) {}

  /** Begin anew with other columns. */
  setColumns(columns: readonly IGridColumn[]): void {
    this._columns = columns;
    this.node.replaceChildren();
    this._pool = [];
  }

  /** Show the lines around a place of the scroller. */
  paint(scrollTop: number, height: number, what: IPaint): void {
    const { lines } = what.lines;
    const first = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - OVERSCAN);
    const room = Math.ceil(height / ROW_HEIGHT) + 2 * OVERSCAN;
    const last = Math.min(lines.length, first + room);
    while (this._pool.length < last - first) {
      this._pool.push(this._make());
    }
    const size = this._pool.length;
    this._pool.forEach((element, i) => {
      // A line keeps its element while it stays in sight: element i shows the lines that are i modulo the pool.
      const line = first + ((((i - first) % size) + size) % size);
      if (line < last) {
        this._paint(element, line, what);
      } else if (element.line >= 0) {
        element.node.hidden = true;
        element.line = -1;
      }
    });
  }

  /** Whether a line has an element now. */
  has(line: number): boolean {
    return line >= 0 && this._pool.some(element => element.line === line);
  }

  /** The line that an element of the page belongs to, or -1. */
  lineOf(target: Element): number {
    const node = target.closest('.ll-grid-row');
    return this._pool.find(element => element.node === node)?.line ?? -1;
  }

  idOf(line: number): string {
    return `${this._id}-${line}`;
  }

  private _make(): ILineElement {
    const node = document.createElement('div');
    node.className = 'll-grid-row';
    node.setAttribute('role', 'row');
    const texts = this._columns.map(() => document.createTextNode(''));
    const cells = this._columns.map((column, i) => {
      const cell = document.createElement('div');
      cell.className = `ll-cell ll-mod-${column.align} ll-col-${column.key}`;
      cell.setAttribute('role', 'gridcell');
      cell.setAttribute('aria-colindex', String(i + 1));
      cell.append(texts[i]);
      return cell;
    });
    const header = document.createTextNode('');
    const headerCell = document.createElement('div');
    headerCell.className = 'll-cell ll-group-cell';
    headerCell.setAttribute('role', 'gridcell');
    headerCell.setAttribute('aria-colindex', '1');
    headerCell.setAttribute('aria-colspan', String(this._columns.length));
    headerCell.append(header);
    node.append(...cells, headerCell);
    this.node.append(node);
    return { node, cells, texts, shown: [], header, line: -1 };
  }

  private _paint(element: ILineElement, line: number, what: IPaint): void {
    const { node } = element;
    if (element.line !== line) {
      element.line = line;
      node.hidden = false;
      node.id = this.idOf(line);
      node.style.transform = `translateY(${line * ROW_HEIGHT}px)`;
      node.setAttribute('aria-rowindex', String(line + 2));
    }
    const here = what.lines.lines[line];
    const isHeader = here < 0;
    node.classList.toggle('ll-mod-active', line === what.active);
    node.classList.toggle('ll-mod-group', isHeader);
    setData(node, 'testid', isHeader ? 'll-grid-group' : 'll-grid-row');
    if (isHeader) {
      this._paintHeader(element, what.lines.groups[groupOfLine(here)]);
    } else {
      this._paintRow(element, here, what);
    }
  }

  private _paintHeader({ node, header }: ILineElement, group: IRowGroup): void {
    setData(node, 'rolloutId', '');
    setData(node, 'collapsed', String(group.collapsed));
    setAttribute(node, 'aria-expanded', String(!group.collapsed));
    setAttribute(node, 'aria-level', '1');
    setAttribute(node, 'aria-selected', 'false');
    const text = this._headerText(group);
    if (header.data !== text) {
      header.data = text;
    }
  }

  private _headerText(group: IRowGroup): string {
    const say = this._translate;
    const parts = [group.label, group.rows === 1 ? say('1 rollout') : say('%1 rollouts', integer(group.rows))];
    if (!Number.isNaN(group.reward)) {
      parts.push(say('mean reward %1', fixed(group.reward)));
    }
    if (group.running > 0) {
      parts.push(say('%1 running', integer(group.running)));
    }
    if (group.failed > 0) {
      parts.push(say('%1 failed', integer(group.failed)));
    }
    return parts.join('  ·  ');
  }

  private _paintRow(element: ILineElement, row: number, what: IPaint): void {
    const { node, cells, texts, shown } = element;
    const { rows } = what;
    const id = rows.text('id', row);
    setData(node, 'rolloutId', id);
    setData(node, 'state', rows.word('state', row));
    setData(node, 'infrastructure', String(isInfrastructure(rows.word('outcome', row))));
    setAttribute(node, 'aria-selected', String(id !== '' && id === what.selected));
    if (what.lines.groups.length > 0) {
      setAttribute(node, 'aria-level', '2');
      node.removeAttribute('aria-expanded');
    }
    this._columns.forEach((column, i) => {
      const text = column.show(rows, row, what);
      if (shown[i] === text) {
        return;
      }
      shown[i] = text;
      texts[i].data = text;
      if (column.key === 'task') {
        cells[i].title = visibleLine(rows.text('task', row), 400);
      } else if (column.key === 'reward') {
        cells[i].style.backgroundSize = `${share(rows.numbers.reward[row])}% 2px`;
      }
    });
  }

  private _columns: readonly IGridColumn[] = [];
  private _pool: ILineElement[] = [];
}

function setData(node: HTMLElement, key: string, value: string): void {
  if (node.dataset[key] !== value) {
    node.dataset[key] = value;
  }
}

function setAttribute(node: HTMLElement, name: string, value: string): void {
  if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

/** A reward as the width of its bar in percent, for the usual range 0…1. */
function share(reward: number): number {
  return Number.isNaN(reward) ? 0 : Math.max(0, Math.min(1, reward)) * 100;
}
