/** Untrusted text, bounded: long text shows its beginning and how much more there is. */

import { useState } from 'react';

import { byteSize, integer } from '../format';
import { clip, visible } from '../text';
import { useView } from './view';

export interface ITextBlockProps {
  readonly text: string;
  /** Monospaced, for code and program output; prose otherwise. */
  readonly code?: boolean;
  readonly characters?: number;
  readonly lines?: number;
  readonly testId?: string;
}

export function TextBlock({ text, code = false, characters = 4000, lines = 40, testId }: ITextBlockProps): JSX.Element {
  const { trans } = useView();
  const [all, setAll] = useState(false);
  const { head, cut } = clip(text, characters, lines);
  const shown = all ? text : head;
  return (
    <div className="ll-text" data-testid={testId}>
      <pre
        className={`ll-text-body ${code ? 'll-mod-code' : 'll-mod-prose'} ${all && cut ? 'll-mod-all' : ''}`}
        tabIndex={all && cut ? 0 : undefined}
        dir="auto"
      >
        {visible(shown)}
      </pre>
      {cut && (
        <button className="ll-link" type="button" onClick={() => setAll(!all)} aria-expanded={all}>
          {all
            ? trans.__('Show less')
            : trans.__(
                'Show all (%1, %2 characters more)',
                byteSize(utf8Length(text)),
                integer(text.length - head.length)
              )}
        </button>
      )}
    </div>
  );
}

/** Bytes of a text in UTF-8, without encoding it. */
function utf8Length(text: string): number {
  let bytes = text.length;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code > 0x7ff) {
      bytes += code >= 0xd800 && code <= 0xdfff ? 1 : 2;
    } else if (code > 0x7f) {
      bytes += 1;
    }
  }
  return bytes;
}
