import { RunModel } from '../src/model';
import { decodeFrame } from '../src/decodeFrame';
import { encodeFrame, frame } from './frames';

function clock(): { model: RunModel; advance: (ms: number) => void } {
  let now = 0;
  return { model: new RunModel(() => now), advance: ms => (now += ms) };
}

describe('RunModel', () => {
  it('applies deltas to rows by their place', () => {
    const model = new RunModel();
    model.apply(frame({ rows: [{ row: 0 }, { row: 1, state: 'running' }] }));
    model.apply(frame({ rows: [{ row: 1, state: 'succeeded', outcome: 'completed', reward: 1 }] }));
    expect(model.rows.count).toBe(2);
    expect(model.rows.word('state', 0)).toBe('queuing');
    expect(model.rows.word('state', 1)).toBe('succeeded');
    expect(model.rows.numbers.reward[1]).toBe(1);
    expect(model.rows.rowOf('r-1')).toBe(1);
  });

  it('is right after any loss, once key-frames have gone round', () => {
    const model = new RunModel();
    // The first frames are lost: only a late delta arrives, far behind.
    model.apply(frame({ seq: 40, rows: [{ row: 500, state: 'running' }], counters: { total: 501 } }));
    expect(model.rows.count).toBe(1);
    expect(model.counters.total).toBe(501);
    for (let from = 0; from < 501; from += 100) {
      const rows = Array.from({ length: Math.min(100, 501 - from) }, (_, i) => ({
        row: from + i,
        state: 'succeeded',
        reward: 0.5
      }));
      model.apply(frame({ rows, counters: { total: 501 } }));
    }
    expect(model.rows.count).toBe(501);
    expect(model.rows.word('state', 500)).toBe('succeeded');
    expect(Array.from(model.rows.present.subarray(0, 501)).every(Boolean)).toBe(true);
  });

  it('gives the same result when frames are repeated', () => {
    const model = new RunModel();
    const same = { rows: [{ row: 0, state: 'failed', outcome: 'agent_error' }], steps: [{ index: 0, reward: 0.5 }] };
    model.apply(frame(same));
    model.apply(frame(same));
    expect(model.rows.count).toBe(1);
    expect(model.steps).toHaveLength(1);
  });

  it('keeps steps in order, whatever order they arrive in', () => {
    const model = new RunModel();
    model.apply(
      frame({
        steps: [
          { index: 4, reward: 0.4 },
          { index: 5, reward: 0.5 }
        ]
      })
    );
    model.apply(
      frame({
        steps: [
          { index: 0, reward: 0 },
          { index: 1, reward: 0.1 },
          { index: 4, reward: 0.44 }
        ]
      })
    );
    expect(model.steps.map(step => step.index)).toEqual([0, 1, 4, 5]);
    expect(model.steps[2].reward).toBe(0.44);
  });

  it('forgets rows and steps when the run or the lab becomes another', () => {
    const model = new RunModel();
    const resets: boolean[] = [];
    model.changed.connect((_, change) => resets.push(change.reset));
    model.apply(frame({ rows: [{ row: 0 }, { row: 1 }], steps: [{ index: 0 }] }));
    model.apply(frame({ rows: [{ row: 1 }] }));
    model.apply(frame({ run: 'run-2', rows: [{ row: 0, id: 'other' }] }));
    expect(model.rows.count).toBe(1);
    expect(model.rows.rowOf('r-1')).toBe(-1);
    expect(model.rows.text('id', 0)).toBe('other');
    expect(model.steps).toEqual([]);
    model.apply(frame({ lab: 'lab-2', run: null }));
    expect(model.rows.count).toBe(0);
    expect(resets).toEqual([true, false, true, true]);
  });

  it('keeps what it knows when the kernel restarts, and starts afresh with the next lab', () => {
    const model = new RunModel();
    model.apply(frame({ rows: [{ row: 0 }] }));
    model.markClosed();
    expect(model.labOpen).toBe(false);
    expect(model.rows.count).toBe(1);
    model.apply(frame({ lab: 'lab-2', rows: [] }));
    expect(model.labOpen).toBe(true);
    expect(model.rows.count).toBe(0);
  });

  it('ignores the farewell of a lab that was replaced already', () => {
    const model = new RunModel();
    model.apply(frame({ lab: 'lab-2', rows: [{ row: 0 }] }));
    model.apply(frame({ lab: 'lab-1', labState: 'closed' }));
    expect(model.lab).toBe('lab-2');
    expect(model.labOpen).toBe(true);
  });

  it('counts lost frames', () => {
    const model = new RunModel();
    model.apply(frame({ seq: 1 }));
    model.apply(frame({ seq: 2 }));
    model.apply(frame({ seq: 6 }));
    expect(model.lostFrames).toBe(3);
  });

  it("tells the kernel's time and its silence from the browser's monotonic clock", () => {
    const { model, advance } = clock();
    expect(model.silence).toBeNull();
    model.apply(frame({ at: 5000 }));
    advance(4500);
    expect(model.kernelNow).toBeCloseTo(5004.5);
    expect(model.silence).toBeCloseTo(4.5);
  });

  it('measures tokens per second over the last seconds', () => {
    const model = new RunModel();
    expect(model.tokensPerSecond).toBeNull();
    model.apply(frame({ at: 1000, counters: { sampled_tokens: 0 } }));
    model.apply(frame({ at: 1002, counters: { sampled_tokens: 400 } }));
    expect(model.tokensPerSecond).toBe(200);
    for (let s = 3; s <= 30; s++) {
      model.apply(frame({ at: 1000 + s, counters: { sampled_tokens: 400 } }));
    }
    expect(model.tokensPerSecond).toBe(0);
  });

  it('grows to 10⁵ rows', () => {
    const model = new RunModel();
    const rows = Array.from({ length: 100_000 }, (_, row) => ({ row, state: 'succeeded', reward: row % 2 }));
    const { data, buffers } = encodeFrame({ rows });
    model.apply(decodeFrame(data, buffers));
    expect(model.rows.count).toBe(100_000);
    expect(model.rows.numbers.reward[99_999]).toBe(1);
    expect(model.rows.text('id', 77_777)).toBe('r-77777');
  });

  it('ignores rows at impossible places', () => {
    const model = new RunModel();
    model.apply(frame({ rows: [{ row: -1 }, { row: 2_000_000_000 }, { row: 0 }] }));
    expect(model.rows.count).toBe(1);
    expect(model.rows.size).toBe(1);
  });

  it('shows a stored state whose clock stands still', () => {
    const { model, advance } = clock();
    model.applySnapshot(frame({ at: 700 }));
    advance(60_000);
    expect(model.kernelNow).toBe(700);
  });
});
