import { App } from '../src/panel/app';
import { RolloutPage } from '../src/panel/rolloutPage';
import { decodeDetail } from '../src/decodeDetail';
import { detailJson, frame, HOSTILE } from './frames';
import { expectTextOnly, IRendered, renderView, TestSource } from './render';

let rendered: IRendered | null = null;

afterEach(() => {
  rendered?.unmount();
  rendered = null;
});

async function open(source: TestSource): Promise<IRendered> {
  rendered = await renderView(source, <App />);
  return rendered;
}

describe('the panel before there is a lab', () => {
  it('says how to begin and that it listens', async () => {
    const source = new TestSource();
    source.status = 'waiting';
    const view = await open(source);
    expect(view.byTestId('ll-empty')?.textContent).toMatch(/No lab in this kernel yet.*ll\.Lab/s);
    expect(view.text('ll-listening')).toMatch(/Connected/);
    expect(view.byTestId('ll-panel')?.dataset.rows).toBe('0');
  });

  it('offers to reconnect, and says when the kernel ended', async () => {
    const source = new TestSource();
    source.status = 'disconnected';
    const view = await open(source);
    await view.after(() => view.button('Reconnect').click());
    expect(source.reconnects).toBe(1);
    await view.after(() => source.changeStatus('gone'));
    expect(view.text('ll-listening')).toMatch(/kernel has ended/);
  });

  it('names the file that is read, and says why it cannot be', async () => {
    const source: TestSource & { path?: string } = new TestSource();
    source.path = 'runs/old.llab';
    source.status = 'connecting';
    const view = await open(source);
    expect(view.text('ll-empty')).toBe('old.llabReading the run…');
    source.problem = 'This is no run: file is not a database.';
    await view.after(() => source.changeStatus('disconnected'));
    expect(view.node.querySelector('[role="alert"]')?.textContent).toBe(source.problem);
    await view.after(() => view.button('Read it again').click());
    expect(source.reconnects).toBe(1);
  });

  it('fills when the first frame arrives', async () => {
    const source = new TestSource();
    const view = await open(source);
    await view.after(() => source.model.apply(frame({ rows: [{ row: 0 }] })));
    expect(view.byTestId('ll-empty')).toBeNull();
    expect(view.byTestId('ll-header')).not.toBeNull();
  });
});

describe('the Run page', () => {
  const COUNTERS = {
    total: 1234,
    queuing: 3,
    running: 8,
    succeeded: 1200,
    failed: 20,
    cancelled: 3,
    infrastructure: 5,
    calls: 4000,
    in_flight: 6,
    held: 2
  };

  it('shows the counters of the store, also as plain numbers for tests', async () => {
    const source = new TestSource();
    source.model.apply(frame({ counters: COUNTERS }));
    const view = await open(source);
    expect(view.text('ll-count-total')).toBe('1,234');
    for (const [name, value] of Object.entries(COUNTERS)) {
      expect(view.byTestId(`ll-count-${name.replace('_', '-')}`)?.dataset.value).toBe(String(value));
    }
  });

  it('shows how many tokens a second are sampled', async () => {
    const source = new TestSource();
    const view = await open(source);
    for (const [at, sampled_tokens] of [
      [1000, 0],
      [1002, 400]
    ]) {
      await view.after(() => source.model.apply(frame({ at, counters: { sampled_tokens } })));
    }
    expect(view.text('ll-header')).toContain('200tokens/s');
  });

  it('says how many agents may run, and who says so', async () => {
    const source = new TestSource();
    source.model.apply(frame({ counters: COUNTERS, more: { limit: { agents: 16, by: 'auto' } } }));
    const view = await open(source);
    const running = view.byTestId('ll-count-running');
    expect(running?.textContent).toBe('8 of 16');
    expect(running?.parentElement?.title).toMatch(/^16 agents at a time: concurrency="auto"/);
    await view.after(() => source.model.apply(frame({ counters: COUNTERS, more: { limit: null } })));
    expect(running?.textContent).toBe('8');
  });

  it('shows phase, step, version, names and the sandbox badge', async () => {
    const source = new TestSource();
    source.model.apply(frame({ at: 1000 }));
    const view = await open(source);
    expect(view.byTestId('ll-phase')?.dataset.phase).toBe('collecting');
    expect(view.node.querySelector('[aria-current="step"]')?.textContent).toBe('collecting5 s');
    expect(view.text('ll-header')).toMatch(/solver.*torch\/quickstart.*unsandboxed.*Step 3 of 100.*v4/s);
  });

  it.each([
    ['collecting', 0, 'collecting'],
    ['staleness_wait', 0, 'staleness wait'],
    ['closing', 1, 'closing'],
    ['draining', 1, 'draining'],
    ['updating', 2, 'updating'],
    ['publishing', 3, 'publishing']
  ])('draws the phase %s in its place of the lane', async (name, place, shown) => {
    const source = new TestSource();
    source.model.apply(frame({ at: 1000, more: { phase: { name, since: 995, step: 3, version: 4 } } }));
    const view = await open(source);
    const lane = [...(view.byTestId('ll-phase')?.children ?? [])];
    expect(lane.map(item => item.getAttribute('aria-current'))).toEqual(
      [0, 1, 2, 3].map(at => (at === place ? 'step' : null))
    );
    expect(lane[place]?.textContent).toBe(`${shown}5 s`);
  });

  it('says how long the kernel has been silent, and stops saying it', async () => {
    const source = new TestSource();
    source.model.apply(frame());
    source.now = 2500;
    const view = await open(source);
    expect(view.byTestId('ll-silent')).toBeNull();
    source.now = 7200;
    await view.after(() => source.changeStatus('live'));
    expect(view.text('ll-silent')).toMatch(/^Kernel silent 7 s/);
    await view.after(() => source.model.apply(frame()));
    expect(view.byTestId('ll-silent')).toBeNull();
  });

  it('gives an idle lab the time of its slower key-frames', async () => {
    const source = new TestSource();
    source.model.apply(frame({ runState: 'finished' }));
    source.now = 7000;
    const view = await open(source);
    expect(view.byTestId('ll-silent')).toBeNull();
  });

  it('has buttons that act, confirm what destroys, and say why they cannot', async () => {
    const source = new TestSource();
    source.model.apply(frame());
    const view = await open(source);
    await view.after(() => view.button('Pause').click());
    await view.after(() => view.button('Cancel').click());
    expect(source.acted).toEqual([['pause', undefined]]);
    await view.after(() => view.button('Really cancel?').click());
    expect(source.acted[1]).toEqual(['cancel', undefined]);
    source.refuse = new Error('Nothing is paused.');
    await view.after(() => view.button('Resume').click());
    expect(view.node.querySelector('[role="alert"]')?.textContent).toBe('Nothing is paused.');
    await view.after(() => source.model.apply(frame({ runState: 'finished' })));
    expect(view.button('Stop after step').getAttribute('aria-disabled')).toBe('true');
    expect(view.button('Stop after step').title).toBe('No run is active.');
    const before = source.acted.length;
    await view.after(() => view.button('Stop after step').click());
    expect(source.acted).toHaveLength(before);
  });

  it('draws as many points as there are steps', async () => {
    const source = new TestSource();
    source.model.apply(
      frame({
        steps: [
          { index: 0, reward: 0.1, entropy: 1 },
          { index: 1, reward: 0.2, entropy: 1 }
        ]
      })
    );
    const view = await open(source);
    expect(view.byTestId('ll-reward-chart')?.dataset.points).toBe('2');
    expect(view.text('ll-reward-chart')).toMatch(/train 0\.200.*held-out 0\.300/);
    await view.after(() => source.model.apply(frame({ steps: [{ index: 2, reward: 0.3 }] })));
    expect(view.byTestId('ll-reward-chart')?.dataset.points).toBe('3');
    expect(view.byTestId('ll-entropy-chart')?.dataset.points).toBe('2');
  });

  it('keeps text from the task as text', async () => {
    const source = new TestSource();
    source.model.apply(frame({ rows: [{ row: 0, task: HOSTILE, group: HOSTILE, state: 'running' }] }));
    const view = await open(source);
    expect(view.text('ll-grid-row')).toContain('<script>');
    expectTextOnly(view.node);
  });

  it('opens a rollout, and goes back to where it was', async () => {
    const source = new TestSource();
    source.model.apply(frame({ rows: [{ row: 0 }, { row: 1, state: 'succeeded', step: 3 }] }));
    const view = await open(source);
    await view.after(() => view.node.querySelector<HTMLElement>('[data-rollout-id="r-1"]')?.click());
    expect(source.selection.current).toEqual({ run: 'run-1', step: 3, group: 'g-0', rollout: 'r-1' });
    expect(view.byTestId('ll-rollout-page')).not.toBeNull();
    expect(view.node.querySelector<HTMLElement>('.ll-run-page')?.hidden).toBe(true);
    await view.after(() => view.byTestId('ll-back')?.click());
    expect(view.byTestId('ll-rollout-page')).toBeNull();
    expect(source.selection.current).toEqual({ run: 'run-1', step: 3 });
  });

  it('forgets the selected rollout when another run begins', async () => {
    const source = new TestSource();
    source.model.apply(frame({ rows: [{ row: 0 }] }));
    const view = await open(source);
    await view.after(() => source.selection.set({ rollout: 'r-0' }));
    await view.after(() => source.model.apply(frame({ run: 'run-2' })));
    expect(view.byTestId('ll-rollout-page')).toBeNull();
  });

  it('does not render while it is hidden', async () => {
    const source = new TestSource();
    source.model.apply(frame({ counters: { total: 1 } }));
    rendered = await renderView(source, <App />, false);
    await rendered.after(() => source.model.apply(frame({ counters: { total: 2 } })));
    expect(rendered.text('ll-count-total')).toBe('1');
  });
});

describe('the Rollout page', () => {
  async function page(source: TestSource, onBack = (): void => undefined): Promise<IRendered> {
    source.model.apply(
      frame({
        rows: [
          { row: 0, id: 'r-0', reward: 0, advantage: -1 },
          { row: 1, reward: 1, state: 'succeeded' }
        ]
      })
    );
    rendered = await renderView(source, <RolloutPage id="r-1" onOpen={() => undefined} onBack={onBack} />);
    return rendered;
  }

  it('tells in one line how it ended and what it weighs', async () => {
    const view = await page(new TestSource());
    expect(view.node.querySelector('.ll-sentence')?.textContent).toBe(
      'succeededoutcome completedreward 1.000advantage −0.500weight in step 3 3.1 %'
    );
  });

  it('shows who said what, with results beside their tool calls, and the verdict last', async () => {
    const view = await page(new TestSource());
    const roles = [...view.node.querySelectorAll('[data-role]')].map(node => node.getAttribute('data-role'));
    expect(roles).toEqual(['system', 'user', 'assistant', 'assistant']);
    expect(view.node.querySelector('.ll-tool')?.textContent).toMatch(/calc.*6\*7.*↳.*42/s);
    expect(view.node.querySelector('.ll-reasoning')?.textContent).toMatch(/I need the tool/);
    const main = view.node.querySelector('.ll-main');
    expect(main?.lastElementChild).toBe(view.byTestId('ll-verdict'));
    expect(view.byTestId('ll-verdict')?.dataset.reward).toBe('1');
    expect(view.text('ll-verdict')).toMatch(/1\.000.*right.*expected 42/s);
  });

  it('shows what a call cost, whether it was held and delivered, and where a sample broke', async () => {
    const view = await page(new TestSource());
    const heads = [...view.node.querySelectorAll('.ll-call-head')].map(node => node.textContent);
    expect(heads[0]).toBe('Call 0100 prompt + 20 sampled tokens · v3–v4 · 2.3 s · held 1.5 s · tool calls · chat');
    expect(heads[1]).toMatch(/undelivered/);
    expect(view.node.querySelector('[data-cause="tool_args"]')?.textContent).toMatch(
      /serialised differently.*token 99.*\{"a":1\}.*\{"a": 1\}/s
    );
    expect(view.text('ll-samples')).toMatch(
      /as they were trained on.*call 0.*20 of 120 train.*3 sampled tokens masked: over budget.*call 1 tool args/s
    );
  });

  it('keeps everything that was said as text', async () => {
    const view = await page(new TestSource());
    expect(view.text('ll-transcript')).toContain('<script>window.hacked = 1</script>');
    expect(view.text('ll-stdout')).toContain('⟨ESC⟩[31mred⟨NUL⟩ ⟨U+202E⟩evil');
    expectTextOnly(view.node);
  });

  it('bounds a line of 1 MB and shows it whole on demand', async () => {
    const source = new TestSource();
    const stdout = 'x'.repeat(1_000_000);
    source.answer = async () => decodeDetail(detailJson({ rollout: { stdout } }));
    const view = await page(source);
    expect(view.text('ll-stdout').length).toBeLessThan(4200);
    await view.after(() => view.button(/Show all \(1\.0 MB, 996,000 characters more\)/).click());
    expect(view.text('ll-stdout').length).toBeGreaterThan(1_000_000);
    await view.after(() => view.button('Show less').click());
    expect(view.text('ll-stdout').length).toBeLessThan(4200);
  });

  it("shows the agent's traceback", async () => {
    const source = new TestSource();
    source.answer = async () =>
      decodeDetail(
        detailJson({ rollout: { state: 'failed', outcome: 'agent_error', reward: null, error: 'Traceback: boom' } })
      );
    const view = await page(source);
    expect(view.text('ll-error')).toBe('Traceback: boom');
    expect(view.text('ll-rollout-state')).toBe('failed');
  });

  it('says which attempt it is, and how the earlier ones ended', async () => {
    const source = new TestSource();
    const attempts = [
      { attempt: 1, outcome: 'boot_timeout', error: HOSTILE },
      { attempt: 2, outcome: HOSTILE, error: '' }
    ];
    source.answer = async () => decodeDetail({ ...detailJson({ rollout: { attempt: 3 } }), attempts });
    const view = await page(source);
    expect(view.node.querySelector('.ll-facts')?.textContent).toMatch(/Attempt3 · boot timeout · </);
    expectTextOnly(view.node);
  });

  it('says what went wrong and tries again', async () => {
    const source = new TestSource();
    source.answer = () => Promise.reject(new Error('The kernel did not answer within 10 s.'));
    const view = await page(source);
    expect(view.text('ll-detail-error')).toMatch(/did not answer/);
    source.answer = async () => decodeDetail(detailJson());
    await view.after(() => view.button('Try again').click());
    expect(view.byTestId('ll-detail-error')).toBeNull();
    expect(view.byTestId('ll-transcript')).not.toBeNull();
  });

  it('goes back with Escape', async () => {
    const back = jest.fn();
    const view = await page(new TestSource(), back);
    await view.after(() =>
      view.byTestId('ll-rollout-page')?.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }))
    );
    expect(back).toHaveBeenCalledTimes(1);
  });
});
