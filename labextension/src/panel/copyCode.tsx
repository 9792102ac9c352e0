/** "Copy as code": the selection as Python, ready to paste into a cell. */

import { Clipboard } from '@jupyterlab/apputils';
import { useEffect, useState } from 'react';

import { asCode, pythonString } from '../code';
import { useView } from './view';

const CONFIRM_MS = 1500;

export function CopyCode({ ordinal = null }: { ordinal?: number | null }): JSX.Element {
  const { source, trans } = useView();
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    const timer = copied ? setTimeout(() => setCopied(false), CONFIRM_MS) : undefined;
    return () => clearTimeout(timer);
  }, [copied]);
  const run = source.path ? `ll.load(${pythonString(source.path)})` : 'run';
  const code = asCode(source.selection.current, ordinal, run);
  return (
    <button
      type="button"
      className="ll-button"
      data-testid="ll-copy-code"
      title={code}
      onClick={() => {
        Clipboard.copyToSystem(code);
        setCopied(true);
      }}
    >
      <span aria-live="polite">{copied ? trans.__('Copied') : trans.__('Copy as code')}</span>
    </button>
  );
}
