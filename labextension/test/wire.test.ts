import { decodeDetail, decodeSavedView } from '../src/decodeDetail';
import { decodeFrame } from '../src/decodeFrame';
import { SchemaMismatch } from '../src/wire';
import { detailJson, encodeFrame } from './frames';

describe('decodeFrame', () => {
  it('reads the header and all column types', () => {
    const { data, buffers } = encodeFrame({
      rows: [{ row: 7, id: 'r-a', state: 'failed', outcome: 'agent_error', step: 2, reward: 0.25 }],
      counters: { total: 9, running: 2 },
      steps: [{ index: 3, version: 4, reward: 0.5, skipped: 'no_signal' }]
    });
    const frame = decodeFrame(data, buffers);
    expect(frame.run?.id).toBe('run-1');
    expect(frame.counters.total).toBe(9);
    expect(frame.counters.held).toBe(0);
    expect(frame.steps[0]).toMatchObject({ index: 3, reward: 0.5, entropy: null, skipped: 'no_signal' });
    const { columns } = frame.rollouts;
    expect(columns.get('row')).toEqual({ kind: 'number', values: Int32Array.of(7) });
    expect(columns.get('id')).toEqual({ kind: 'text', values: ['r-a'] });
    expect(columns.get('reward')).toEqual({ kind: 'number', values: Float64Array.of(0.25) });
    const state = columns.get('state');
    expect(state?.kind === 'code' && state.values[state.codes[0]]).toBe('failed');
  });

  it('reads buffers that are views at odd offsets, as websockets deliver them', () => {
    const { data, buffers } = encodeFrame({
      rows: [
        { row: 1, reward: 0.5 },
        { row: 2, reward: -1 }
      ]
    });
    const shifted = buffers.map(buffer => {
      const whole = new Uint8Array(buffer.byteLength + 3);
      whole.set(new Uint8Array(buffer), 3);
      return new DataView(whole.buffer, 3, buffer.byteLength);
    });
    const { columns } = decodeFrame(data, shifted).rollouts;
    expect(columns.get('reward')).toEqual({ kind: 'number', values: Float64Array.of(0.5, -1) });
    expect(columns.get('row')).toEqual({ kind: 'number', values: Int32Array.of(1, 2) });
  });

  it('refuses another schema by name', () => {
    expect(() => decodeFrame({ v: 2 })).toThrow(SchemaMismatch);
    expect(() => decodeFrame({ v: 2 })).toThrow(/schema 2.*speaks 1/);
    expect(() => decodeFrame(null)).toThrow(SchemaMismatch);
  });

  it('turns malformed fields into neutral values, never into wrong ones', () => {
    const frame = decodeFrame({
      v: 1,
      lab: 5,
      at: 'now',
      run: ['no'],
      phase: null,
      counters: { total: -3, running: 'many' },
      reward: { now: NaN, held_out: [{ step: 'x' }, null] },
      steps: { rows: [{ index: -1 }, {}, 4] },
      rollouts: { rows: 1e9, columns: [{ name: 'row', type: 'i32', buffer: 99 }, null] }
    });
    expect(frame.run).toBeNull();
    expect(frame.counters).toMatchObject({ total: 0, running: 0 });
    expect(frame.reward).toEqual({ now: null, best: null, heldOut: [] });
    expect(frame.steps).toEqual([]);
    expect(frame.rollouts.columns.size).toBe(0);
  });

  it('leaves out columns of unknown types and counts no row that a column lacks', () => {
    const { data, buffers } = encodeFrame({ rows: [{ row: 0 }, { row: 1 }] });
    const rollouts = data.rollouts as { rows: number; columns: Record<string, unknown>[] };
    rollouts.columns.push({ name: 'future', type: 'f16', buffer: 0 });
    rollouts.rows = 50;
    const block = decodeFrame(data, buffers).rollouts;
    expect(block.columns.has('future')).toBe(false);
    expect(block.rows).toBe(2);
  });
});

describe('decodeSavedView', () => {
  const { data } = encodeFrame();
  const snapshot = {
    ...data,
    at: undefined,
    rollouts: {
      rows: 2,
      columns: [
        { name: 'row', values: [4, 5] },
        { name: 'id', values: ['r-4', 'r-5'] },
        { name: 'state', values: ['succeeded', null] },
        { name: 'reward', values: [0.5, null] }
      ]
    }
  };

  it('reads plain columns and takes its time from the phase when none was stored', () => {
    const saved = decodeSavedView({ v: 1, view: 'run', lab: 'lab-1', open_panel: true, snapshot });
    expect(saved).toMatchObject({ view: 'run', lab: 'lab-1', openPanel: true, detail: null });
    expect(saved.snapshot.at).toBe(995);
    expect(saved.snapshot.rollouts.columns.get('reward')).toEqual({ kind: 'number', values: [0.5, NaN] });
    expect(saved.snapshot.rollouts.columns.get('state')).toEqual({ kind: 'text', values: ['succeeded', null] });
  });

  it('reads a rollout with its detail', () => {
    const saved = decodeSavedView({ v: 1, view: 'rollout', lab: 'lab-1', snapshot, detail: detailJson() });
    expect(saved.detail?.rollout.id).toBe('r-1');
  });

  it('refuses another schema', () => {
    expect(() => decodeSavedView({ v: 9, view: 'run', snapshot })).toThrow(SchemaMismatch);
  });
});

describe('decodeDetail', () => {
  it('reads calls, samples and breaks', () => {
    const detail = decodeDetail(detailJson());
    expect(detail.rollout).toMatchObject({ reward: 1, answer: '42', harness: 'solver', exitCode: 0 });
    expect(detail.calls[1]).toMatchObject({ ordinal: 1, delivered: false, heldS: 1.5, versions: [3, 4] });
    expect(detail.calls[0].reply.toolCalls[0]).toEqual({ id: 't-1', name: 'calc', arguments: '{"expr": "6*7"}' });
    expect(detail.samples[0]).toEqual({ tokens: 120, trained: 20, calls: ['c-1'], masked: { over_budget: 3 } });
    expect(detail.breaks[0]).toMatchObject({ callId: 'c-2', cause: 'tool_args', index: 99 });
  });

  it('survives a rollout that has nothing yet', () => {
    const detail = decodeDetail({ v: 1, rollout: { id: 'r-9', state: 'queuing', outcome: null }, calls: null });
    expect(detail.rollout).toMatchObject({ id: 'r-9', outcome: '', reward: null, prompt: '' });
    expect(detail.calls).toEqual([]);
  });
});
