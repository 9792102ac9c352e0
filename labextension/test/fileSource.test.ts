import { ServerConnection } from '@jupyterlab/services';

import { FileSource, unpack } from '../src/fileSource';
import { encodeFrame } from './frames';

/** Messages as the server packs them. */
function pack(...messages: { header: unknown; buffers: ArrayBuffer[] }[]): ArrayBuffer {
  const bytes: number[] = [];
  for (const { header, buffers } of messages) {
    const parts = [new TextEncoder().encode(JSON.stringify(header)), ...buffers.map(buffer => new Uint8Array(buffer))];
    const head = new Uint8Array(Uint32Array.from([parts.length, ...parts.map(part => part.length)]).buffer);
    bytes.push(...head, ...parts.flatMap(part => [...part]));
  }
  return Uint8Array.from(bytes).buffer;
}

function serve(reply: (url: string, init: RequestInit) => { status: number; body?: ArrayBuffer; type?: string }) {
  const asked: [string, RequestInit][] = [];
  jest.spyOn(ServerConnection, 'makeRequest').mockImplementation(async (url, init) => {
    asked.push([url, init]);
    const { status, body, type } = reply(url, init);
    return {
      ok: status < 400,
      status,
      headers: new Map([['content-type', type ?? 'application/octet-stream']]),
      arrayBuffer: async () => body ?? new ArrayBuffer(0),
      json: async () => ({ message: 'run.llab cannot be read: it is no run.' })
    } as unknown as Response;
  });
  return asked;
}

const settings = { baseUrl: 'http://host/user/ann/' } as ServerConnection.ISettings;
const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 10));

afterEach(() => jest.restoreAllMocks());

describe('an exported run', () => {
  it('is read below the base URL, in as many frames as it takes', async () => {
    const frames = [
      encodeFrame({ lab: 'file:1', rows: [{ row: 0 }] }),
      encodeFrame({ lab: 'file:1', rows: [{ row: 1 }] })
    ];
    const asked = serve(() => ({
      status: 200,
      body: pack(...frames.map(({ data, buffers }) => ({ header: data, buffers })))
    }));
    const source = new FileSource(settings, 'a folder/run.llab');
    expect(source.status).toBe('connecting');
    await settle();
    expect(source.status).toBe('file');
    expect(source.model.rows.count).toBe(2);
    expect(asked[0][0]).toBe('http://host/user/ann/lightning-lab/run?path=a%20folder%2Frun.llab');
  });

  it('answers requests with their columns, and refusals as errors', async () => {
    serve((_, init) => {
      if (init.method === 'GET') {
        return { status: 200, body: pack() };
      }
      const { method } = JSON.parse(init.body as string) as { method: string };
      const header =
        method === 'tokens' ? { ok: true, result: { rows: 1 } } : { ok: false, error: { message: 'There is none.' } };
      return { status: 200, body: pack({ header, buffers: [Int32Array.from([7]).buffer] }) };
    });
    const source = new FileSource(settings, 'run.llab');
    const { result, buffers } = await source.ask('tokens', { id: 'r-1' });
    expect(result).toEqual({ rows: 1 });
    expect([...(buffers[0] as Uint8Array)]).toEqual([7, 0, 0, 0]);
    await expect(source.ask('rollout', {})).rejects.toThrow('There is none.');
    await expect(source.act('pause')).rejects.toThrow(/stored in a file/);
  });

  it.each([
    [404, 'text/html', /does not know Lightning Lab/],
    [422, 'application/json', /cannot be read/]
  ])('says what is wrong at %i', async (status, type, message) => {
    serve(() => ({ status, type }));
    const source = new FileSource(settings, 'run.llab');
    await settle();
    expect(source.status).toBe('disconnected');
    expect(source.problem).toMatch(message);
  });

  it('refuses a truncated stream', () => {
    const whole = pack({ header: { a: 1 }, buffers: [Int32Array.from([1]).buffer] });
    expect(() => unpack(whole.slice(0, whole.byteLength - 2))).toThrow(RangeError);
  });
});
