/** What browsers have and jsdom lacks. */
const { TextDecoder, TextEncoder } = require('util');

class ResizeObserver {
  constructor(callback) {
    this._callback = callback;
  }
  observe(target) {
    this._callback([{ target, contentRect: { width: 1280, height: 520 } }], this);
  }
  disconnect() {}
  unobserve() {}
}

const noNetwork = () => Promise.reject(new Error('There is no network in tests.'));

Object.assign(globalThis, {
  TextDecoder,
  TextEncoder,
  ResizeObserver,
  DragEvent: class extends MouseEvent {},
  IS_REACT_ACT_ENVIRONMENT: true,
  requestIdleCallback: callback => setTimeout(callback, 0),
  matchMedia: () => ({ matches: false, addListener() {}, addEventListener() {} }),
  fetch: noNetwork,
  Request: class {},
  Response: class {},
  Headers: class {}
});

/* jsdom paints nothing: what is drawn is tested in the browser. */
HTMLCanvasElement.prototype.getContext = () => null;
