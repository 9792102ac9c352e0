import { axisLabels, reading } from '../src/format';

it('a reading is short and never a zero that is none', () => {
  expect([0, 1184, 0.462, 6.4e-14, -0.25, null].map(reading)).toEqual([
    '0',
    '1,184',
    '0.462',
    '6.4e−14',
    '−0.250',
    '–'
  ]);
});

it('labels of an axis differ where its values do', () => {
  expect(axisLabels([0, 2e-14, 4e-14])).toEqual(['0', '2e−14', '4e−14']);
  expect(axisLabels([-0.05, 0, 0.05])).toEqual(['−0.05', '0', '0.05']);
  expect(axisLabels([0, 2000, 40000])).toEqual(['0', '2,000', '40.0 k']);
});
