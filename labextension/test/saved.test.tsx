import { decodeSavedView } from '../src/decodeDetail';
import { RolloutPage } from '../src/panel/rolloutPage';
import { SavedSource } from '../src/source';
import { detailJson, HOSTILE } from './frames';
import { expectTextOnly, renderView } from './render';

function base64(bytes: ArrayBufferLike): string {
  return btoa(String.fromCharCode(...new Uint8Array(bytes)));
}

/** The beginning of a sample of 120 tokens, as the kernel keeps it. */
function tokens(): object {
  const texts = new TextEncoder().encode(JSON.stringify(['six', HOSTILE, ' times']));
  const buffers = [Int32Array.from([5, 6, 7]).buffer, Uint8Array.from([0, 1, 1]).buffer, texts.buffer];
  const columns = [
    { name: 'id', type: 'i32', buffer: 0 },
    { name: 'role', type: 'code', buffer: 1, values: ['prompt', 'sampled'] },
    { name: 'text', type: 'json', buffer: 2 }
  ];
  const result = { v: 1, sample: 0, from: 0, rows: 3, tokens: 120, segments: [['c-1', 1, 3]], columns };
  const params = { id: 'r-1', sample: 0, from: 0 };
  return { method: 'tokens', params, result, buffers: buffers.map(base64) };
}

function saved(answers: readonly object[]): SavedSource {
  const snapshot = { rollouts: { rows: 0, columns: [] } };
  return new SavedSource(
    decodeSavedView({ v: 1, view: 'rollout', lab: 'lab-1', snapshot, detail: detailJson(), answers })
  );
}

describe('a saved rollout', () => {
  it('answers what it holds, and says what it does not', async () => {
    const source = saved([tokens()]);
    const kept = await source.ask('tokens', { id: 'r-1', sample: 0, from: 0 });
    expect(new Int32Array(kept.buffers[0] as ArrayBuffer)).toEqual(Int32Array.from([5, 6, 7]));
    await expect(source.ask('tokens', { id: 'r-1', sample: 0, from: 3 })).rejects.toThrow(/beginning of this sample/);
    await expect(source.ask('sides', { id: 'r-1', break: 0 })).rejects.toThrow(/not stored/);
  });

  it('shows the tokens that it holds, without a kernel', async () => {
    const source = saved([tokens()]);
    source.selection.set({ rollout: 'r-1', token: 1 });
    const view = await renderView(source, <RolloutPage id="r-1" onOpen={() => undefined} />);
    expect(view.node.querySelector<HTMLElement>('.ll-flow')?.dataset.tokens).toBe('3');
    expect(view.text('ll-token')).toContain('id 6');
    expect(view.text('ll-samples')).toContain('stores the beginning of this sample');
    expectTextOnly(view.node);
    view.unmount();
  });

  it('survives answers that are none', async () => {
    const view = await renderView(
      saved([{ method: 'tokens', buffers: ['%%%', 7] }, { method: 3 }]),
      <RolloutPage id="r-1" onOpen={() => undefined} />
    );
    expect(view.text('ll-samples')).toContain('not stored in this output');
    view.unmount();
  });
});
