/** jsdom has no canvas: a chart that remembers what it was given. */
export default class FakePlot {
  static made: FakePlot[] = [];
  cursor = { idx: null };
  destroyed = false;
  constructor(
    readonly options: unknown,
    public data: unknown,
    target: HTMLElement
  ) {
    FakePlot.made.push(this);
    target.append(document.createElement('canvas'));
  }
  setData(data: unknown): void {
    this.data = data;
  }
  readonly over = document.createElement('div');
  selected = { left: 0, width: 0 };
  setSelect(select: { left: number; width: number }): void {
    this.selected = select;
  }
  valToPos(value: number): number {
    return value;
  }
  setSize(): void {}
  destroy(): void {
    this.destroyed = true;
  }
}
