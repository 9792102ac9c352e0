import type { JSONObject } from '@lumino/coreutils';

import { decodeDetail } from '../src/decodeDetail';
import { decodeTokens } from '../src/decodeAnswers';
import { RolloutPage } from '../src/panel/rolloutPage';
import { fetchTokens } from '../src/panel/useTokens';
import type { IAnswer } from '../src/request';
import { layFlow, lineOf, tokenAt, tokenLabel } from '../src/strip/flow';
import { SampleTokens } from '../src/strip/sampleTokens';
import { isComputed, shader } from '../src/strip/shades';
import { detailJson, HOSTILE } from './frames';
import { expectTextOnly, IRendered, renderView, TestSource } from './render';

const ROLES = ['prompt', 'observation', 'sampled', 'no_logprob'];

interface IToken {
  id: number;
  role: string;
  text: string;
  logprob?: number;
  ratio?: number;
  loss?: number;
}

/** An answer to `tokens`, as the kernel encodes it; at most `most` tokens in one message. */
function answerTokens(all: readonly IToken[], segments: [string, number, number][], most = 1000) {
  return (params: JSONObject): IAnswer => {
    const from = params.from as number;
    const part = all.slice(from, from + most);
    const columns: object[] = [];
    const buffers: ArrayBuffer[] = [];
    const add = (name: string, type: string, data: ArrayBuffer, more = {}): void => {
      columns.push({ name, type, buffer: buffers.push(data) - 1, ...more });
    };
    const floats = (name: string, read: (token: IToken) => number | undefined): void => {
      if (all.some(token => read(token) !== undefined)) {
        add(name, 'f32', Float32Array.from(part.map(token => read(token) ?? NaN)).buffer);
      }
    };
    add('id', 'i32', Int32Array.from(part.map(token => token.id)).buffer);
    add('role', 'code', Uint8Array.from(part.map(token => ROLES.indexOf(token.role))).buffer, { values: ROLES });
    floats('logprob', token => token.logprob);
    floats('ratio', token => token.ratio);
    floats('loss', token => token.loss);
    const json = new TextEncoder().encode(JSON.stringify(part.map(token => token.text)));
    add('text', 'json', json.buffer as ArrayBuffer);
    const header = { v: 1, sample: 0, from, rows: part.length, tokens: all.length, segments, columns };
    return { result: header, buffers };
  };
}

const TOKENS: readonly IToken[] = [
  { id: 1, role: 'prompt', text: 'six times' },
  { id: 2, role: 'prompt', text: '\n' },
  { id: 3, role: 'sampled', text: '<tool>', logprob: -2, ratio: 1.2, loss: 0.3 },
  { id: 4, role: 'sampled', text: HOSTILE, logprob: -0.5, ratio: 0.9, loss: -0.1 },
  { id: 5, role: 'no_logprob', text: '!' },
  { id: 6, role: 'observation', text: '42' }
];
const SEGMENTS: [string, number, number][] = [['c-1', 2, 5]];

async function load(most: number): Promise<SampleTokens> {
  const source = new TestSource();
  source.answers.tokens = answerTokens(TOKENS, SEGMENTS, most);
  let last: SampleTokens | null = null;
  await fetchTokens(source, 'r-1', 0, tokens => {
    last = tokens;
    return true;
  });
  return last as unknown as SampleTokens;
}

describe('the tokens of a sample', () => {
  it.each([1, 2, 1000])('arrive whole in messages of %i', async most => {
    const tokens = await load(most);
    expect(tokens.complete).toBe(true);
    expect([...tokens.ids]).toEqual([1, 2, 3, 4, 5, 6]);
    expect(TOKENS.map((_, i) => tokens.role(i))).toEqual(TOKENS.map(token => token.role));
    expect(tokens.texts).toEqual(TOKENS.map(token => token.text));
    expect(tokens.segments).toEqual([{ callId: 'c-1', start: 2, stop: 5 }]);
    expect(tokens.number('logprob', 2)).toBe(-2);
    expect(tokens.number('logprob', 0)).toBeNaN();
  });

  it('know which do not train, whose they are, and their part of the loss', async () => {
    const tokens = await load(1000);
    expect(TOKENS.map((_, i) => tokens.isMasked(i))).toEqual([false, false, false, false, true, false]);
    expect([tokens.callOf(0), tokens.callOf(4), tokens.callOf(5)]).toEqual(['c-1', 'c-1', '']);
    expect(tokens.lossShare(2)).toBeCloseTo(0.75);
    expect(tokens.has('entropy')).toBe(false);
    expect(isComputed(tokens, 'entropy')).toBe(false);
    expect(isComputed(tokens, 'ratio')).toBe(true);
  });

  it('refuse another schema', () => {
    expect(() => decodeTokens({ v: 9 }, [])).toThrow(/schema 9/);
  });

  it('are coloured by what was chosen', async () => {
    const tokens = await load(1000);
    expect(TOKENS.map((_, i) => shader(tokens, 'role', null)(i).hue)).toEqual([
      'prompt',
      'prompt',
      'sampled',
      'sampled',
      'masked',
      'observation'
    ]);
    const rare = shader(tokens, 'logprob', null);
    expect(rare(2).strength).toBeGreaterThan(rare(3).strength);
    expect(rare(0).strength).toBe(0);
    expect([2, 3].map(i => shader(tokens, 'ratio', null)(i).hue)).toEqual(['high', 'low']);
    // r − 1 − ln r: 0.018 of 1.2, and 0.005 of 0.9
    const [more, less] = [2, 3].map(i => shader(tokens, 'kl', null)(i).strength);
    expect([more, less]).toEqual([1, expect.closeTo(Math.sqrt((0.9 - 1 - Math.log(0.9)) / (0.2 - Math.log(1.2))), 3)]);
    expect(shader(tokens, 'advantage', -1)(2).hue).toBe('low');
    expect(shader(tokens, 'advantage', 0)(2).strength).toBe(0);
  });
});

describe('tokens as running text', () => {
  it('wrap, and begin a line after a line break and at a reply', async () => {
    const tokens = await load(1000);
    const flow = layFlow(tokens, 100, label => label.length * 7, new Set([2]));
    expect(flow.lines[0]).toBe(0);
    expect(flow.lines).toContain(2);
    expect(lineOf(flow, 2)).toBe(flow.lines.indexOf(2));
    expect(tokenAt(flow, 0, 1)).toBe(0);
    expect(tokenAt(flow, 0, flow.x[1] + 1)).toBe(1);
    expect(tokenAt(flow, 99, 1)).toBe(-1);
  });

  it('lay out 10⁵ tokens, every one on exactly one line', () => {
    const tokens = new SampleTokens(100_000);
    const values = { rows: 100_000, columns: new Map(), sample: 0, from: 0, tokens: 100_000, segments: [] };
    tokens.append(values);
    const flow = layFlow(tokens, 400, () => 30);
    expect(flow.lines.length).toBe(Math.ceil(100_000 / Math.floor(400 / 32)));
    for (const token of [0, 12_345, 99_999]) {
      const line = lineOf(flow, token);
      expect(tokenAt(flow, line, flow.x[token] + 1)).toBe(token);
    }
  });

  it('show what is invisible, and ids where nobody knows the text', () => {
    expect(tokenLabel('a\n', 1)).toBe('a↵');
    expect(tokenLabel('\u202e', 1)).toBe('⟨U+202E⟩');
    expect(tokenLabel('', 7)).toBe('#7');
    expect(tokenLabel('', -1)).toBe('█');
  });
});

const SIDES = {
  call_id: 'c-2',
  previous_call_id: 'c-1',
  cause: 'tool_args',
  index: 99,
  start: 98,
  left: 3,
  sentence: 'From token 99 on, call c-2 does not continue call c-1.',
  stitching: 'The text itself changed.',
  sample: { ids: [10, 11], texts: ['{', HOSTILE], tokens: 102 },
  prompt: { ids: [10, 12, 13], texts: ['{', ' ', '"a"'], tokens: 240 }
};
const WEIGHTS = {
  step: 3,
  normalizer: 'rollout_mean',
  normalizers: ['constant', 'rollout_mean', 'sample_mean', 'token_mean'],
  flat: false,
  sentence: 'r-1 was cut into 2 samples by tool_args; it would weigh 3.1× under sample_mean.',
  rollouts: [
    {
      id: 'r-0', state: 'succeeded', outcome: 'completed', reward: 0, advantage: -1, weight: 0.25, samples: 1, tokens: 10,
      breaks: 0, ghosts: { sample_mean: 0.1, token_mean: 0.3 }
    },
    {
      id: 'r-1', state: 'succeeded', outcome: 'completed', reward: 1, advantage: 1, weight: 0.25, samples: 2, tokens: 20,
      breaks: 1, ghosts: { sample_mean: 0.775, token_mean: 0.4 }
    },
    {
      id: 'r-2', state: 'failed', outcome: 'grader_error', reward: null, advantage: null, weight: 0, samples: 1,
      tokens: 5, breaks: 0, ghosts: {}
    }
  ]
}; // prettier-ignore

describe('the right of the Rollout page', () => {
  let view: IRendered;
  let source: TestSource;

  beforeAll(() => {
    // jsdom lays nothing out: without a width no token has a place.
    Object.defineProperty(HTMLElement.prototype, 'clientWidth', { configurable: true, get: () => 420 });
  });
  afterAll(() => {
    delete (HTMLElement.prototype as { clientWidth?: number }).clientWidth;
  });
  beforeEach(async () => {
    source = new TestSource();
    source.answer = async () => decodeDetail(detailJson({ rollout: { id: 'r-1' } }));
    source.answers.tokens = answerTokens(TOKENS, SEGMENTS);
    source.answers.sides = () => ({ result: SIDES, buffers: [] });
    source.answers.weights = () => ({ result: WEIGHTS, buffers: [] });
    view = await renderView(source, <RolloutPage id="r-1" onOpen={() => undefined} />);
  });
  afterEach(() => view.unmount());

  it('says at the top what is worth knowing first', () => {
    expect(view.text('ll-sentence')).toBe(WEIGHTS.sentence);
  });

  it('lists the group with rewards, advantages and weights, and why one does not count', async () => {
    const mates = [...view.node.querySelectorAll('.ll-group button')].map(node => node.textContent);
    expect(mates).toEqual(['r-00.00−1.0025.0 %10.0 %', 'r-11.00+1.0025.0 %77.5 %⌁2', 'r-2–grader error']);
    const select = view.node.querySelector('select') as HTMLSelectElement;
    expect(select.selectedOptions[0].text).toBe('sample mean');
    await view.after(() => {
      select.selectedIndex = [...select.options].findIndex(option => option.text === 'token mean');
      select.dispatchEvent(new Event('change', { bubbles: true }));
    });
    expect(view.node.querySelector('.ll-group button')?.textContent).toBe('r-00.00−1.0025.0 %30.0 %');
  });

  it('shows every number of a token that was selected, and what was not computed', async () => {
    await view.after(() => source.selection.set({ rollout: 'r-1', call: 'c-1', token: 2 }));
    await view.after(() => view.unmount());
    view = await renderView(source, <RolloutPage id="r-1" onOpen={() => undefined} />);
    const said = view.text('ll-token');
    expect(said).toMatch(/<tool>.*token 2.*id 3.*sampled.*call 0/s);
    expect(said).toMatch(/log-prob when sampled−2\.0000.*ratio1\.2000.*entropynot computed.*share of \|loss\|75\.0 %/s);
  });

  it('moves over tokens with the keyboard and tells the selection', async () => {
    const flow = view.byTestId('ll-flow') as HTMLElement;
    const press = (key: string) =>
      view.after(() => flow.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true })));
    await press('End');
    expect(source.selection.current.token).toBe(5);
    await press('ArrowLeft');
    expect(source.selection.current).toMatchObject({ token: 4, call: 'c-1' });
    await press('Home');
    expect(source.selection.current.token).toBe(0);
  });

  it('opens with what a finding is about: its colouring, and the token that stands out', async () => {
    await view.after(() => view.unmount());
    const asked: JSONObject[] = [];
    source.answers.peak = params => {
      asked.push(params);
      return { result: { sample: 0, token: 3, call: 'c-1' }, buffers: [] };
    };
    view = await renderView(source, <RolloutPage id="r-1" shade="kl" onOpen={() => undefined} />);
    expect(asked).toEqual([{ id: 'r-1', by: 'kl' }]);
    expect(view.node.querySelector('[role="radio"][aria-checked="true"]')?.textContent).toBe('KL');
    expect(source.selection.current).toMatchObject({ call: 'c-1', token: 3 });
    expect(view.node.querySelector<HTMLElement>('.ll-rollout-body')?.dataset.column).toBe('tokens');
  });

  it('has no token that stands out where nothing was computed', async () => {
    await view.after(() => view.unmount());
    source.answers.peak = () => ({ result: {}, buffers: [] });
    view = await renderView(source, <RolloutPage id="r-1" shade="clip" onOpen={() => undefined} />);
    expect(view.byTestId('ll-token')).toBeNull();
    expect(view.node.querySelector('.ll-legend-row')?.textContent).toBe('Not computed for this sample.');
  });

  it('opens a break from both sides, with the first difference marked', async () => {
    await view.after(() => view.byTestId('ll-pin')?.click());
    const sides = view.byTestId('ll-sides') as HTMLElement;
    expect(sides.textContent).toMatch(/tool args.*does not continue.*The text itself changed/s);
    const first = [...sides.querySelectorAll('.ll-mod-first')].map(node => node.textContent);
    expect(first).toHaveLength(2);
    expect(first[1]).toBe(' 12');
    expectTextOnly(view.node);
    await view.after(() => view.button('Close').click());
    expect(view.byTestId('ll-sides')).toBeNull();
  });

  it('says when the tokens cannot be had', async () => {
    await view.after(() => view.unmount());
    source.answers.tokens = () => {
      throw new Error('The kernel did not answer within 10 s.');
    };
    view = await renderView(source, <RolloutPage id="r-1" onOpen={() => undefined} />);
    expect(view.node.querySelector('.ll-strips [role="alert"]')?.textContent).toMatch(/did not answer/);
  });
});
