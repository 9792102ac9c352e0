import { clip, visible, visibleLine } from '../src/text';
import { byteSize, compact, duration, elapsed, fixed, integer, percent, shortId, signed } from '../src/format';

describe('visible', () => {
  it('leaves ordinary text alone, in any script', () => {
    const text = 'a\tb\nשלום नमस्ते 👩‍🔬 é';
    expect(visible(text)).toBe(text);
  });

  it('shows controls, escapes and NUL by name', () => {
    expect(visible('\u001b[31mred\u0000\u007f\u0085')).toBe('⟨ESC⟩[31mred⟨NUL⟩⟨DEL⟩⟨U+0085⟩');
    expect(visible('a\r\nb\rc')).toBe('a\nb⟨CR⟩c');
  });

  it('shows marks that reorder or hide text', () => {
    expect(visible('\u202eevil\u202c \u2066x\u2069 \u200b\ufeff')).toBe(
      '⟨U+202E⟩evil⟨U+202C⟩ ⟨U+2066⟩x⟨U+2069⟩ ⟨U+200B⟩⟨U+FEFF⟩'
    );
    expect(visible('\u{e0041}')).toBe('⟨U+E0041⟩');
  });

  it('shows lone surrogates and keeps pairs', () => {
    expect(visible('\ud800x\udc00 😀')).toBe('⟨U+D800⟩x⟨U+DC00⟩ 😀');
  });
});

describe('clip', () => {
  it('cuts by characters and by lines', () => {
    expect(clip('abcdef', 3, 10)).toEqual({ head: 'abc', cut: true });
    expect(clip('a\nb\nc', 100, 2)).toEqual({ head: 'a\nb', cut: true });
    expect(clip('a\nb', 100, 2)).toEqual({ head: 'a\nb', cut: false });
  });

  it('does not cut through a pair', () => {
    expect(clip('ab😀', 3, 10)).toEqual({ head: 'ab', cut: true });
  });

  it('is quick on a line of 1 MB', () => {
    expect(clip('x'.repeat(1_000_000), 4000, 40).head).toHaveLength(4000);
  });
});

it('visibleLine keeps to one line', () => {
  expect(visibleLine('a\n\n b\u0000', 10)).toBe('a b⟨NUL⟩');
  expect(visibleLine('abcdef', 3)).toBe('abc…');
});

describe('format', () => {
  it('writes numbers with units and never NaN', () => {
    expect(integer(12345.4)).toBe('12,345');
    expect(fixed(-0.0004)).toBe('0.000');
    expect(fixed(-1.5)).toBe('−1.500');
    expect(signed(0.25)).toBe('+0.250');
    expect(percent(0.03125)).toBe('3.1 %');
    expect(compact(9999)).toBe('9,999');
    expect(compact(12_345)).toBe('12.3 k');
    expect(compact(2_500_000)).toBe('2.5 M');
    for (const show of [integer, fixed, signed, percent, compact, duration, elapsed]) {
      expect(show(NaN)).toBe('–');
      expect(show(null)).toBe('–');
    }
  });

  it('writes times in the unit that fits', () => {
    expect(duration(0.0424)).toBe('42 ms');
    expect(duration(3.21)).toBe('3.2 s');
    expect(duration(245)).toBe('4 m 05 s');
    expect(duration(7620)).toBe('2 h 07 m');
    expect(elapsed(7.4)).toBe('7 s');
    expect(elapsed(59.6)).toBe('1 m 00 s');
  });

  it('shortens ids to their telling end and sizes to three digits', () => {
    expect(shortId('r-01M8M4GY18NP068VM1QP6MCSGT')).toBe('…6MCSGT');
    expect(shortId('g-1')).toBe('g-1');
    expect(shortId('r-openai-agents-2')).toBe('r-openai-agents-2');
    expect(byteSize(1_048_576)).toBe('1.0 MB');
  });
});
