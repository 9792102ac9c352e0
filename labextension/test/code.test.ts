import { asCode, pythonString } from '../src/code';

it('the selection becomes the code that yields it', () => {
  expect(asCode({})).toBe('run');
  expect(asCode({ step: 37 })).toBe('run.rollouts(step=37)');
  expect(asCode({ step: 37, rollout: 'r-1' })).toBe('run.rollout("r-1")');
  expect(asCode({ rollout: 'r-1', call: 'c' }, 3)).toBe('run.rollout("r-1").call(3)');
  expect(asCode({ rollout: 'r-1' }, 0, 'll.load("a.llab")')).toBe('ll.load("a.llab").rollout("r-1").call(0)');
});

it('ids stay inside their string, whatever they hold', () => {
  expect(pythonString('"); import os; ("')).toBe('"\\"); import os; (\\""');
  expect(pythonString('a\\\n\u202e\ud83d\ude00')).toBe('"a\\\\\\n\\u202e\\U0001f600"');
});
