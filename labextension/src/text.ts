/**
 * Untrusted text, made visible: what a model, a tool or a stored run says is shown as the characters it is made of.
 *
 * Control characters (ANSI escapes, NUL), marks that reorder or hide text, and lone surrogates are replaced by visible
 * stand-ins; nothing is interpreted. Tabs and line breaks stay.
 */

/** C0 controls without tab and newline; DEL; C1 controls. */
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
/** Bidi embeddings, overrides, isolates and marks; zero-width characters; line and paragraph separators; BOM. */
const INVISIBLE = /[\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
const LONE_SURROGATES = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
/** Tag characters: an invisible alphabet that can carry instructions. */
const TAGS = /\udb40[\udc00-\udc7f]/g;

function codeName(character: string): string {
  return `⟨U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')}⟩`;
}

/** Names of the C0 controls. Their picture characters (␛) are missing in many fonts. */
const C0 = (
  'NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI ' +
  'DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US'
).split(' ');

function controlName(character: string): string {
  const code = character.charCodeAt(0);
  return code < C0.length ? `⟨${C0[code]}⟩` : code === 0x7f ? '⟨DEL⟩' : codeName(character);
}

/** The text with everything invisible or unpaired replaced by something that can be seen. */
export function visible(text: string): string {
  return text
    .replace(/\r\n/g, '\n')
    .replace(CONTROLS, controlName)
    .replace(TAGS, codeName)
    .replace(INVISIBLE, codeName)
    .replace(LONE_SURROGATES, codeName);
}

/** The same on one line, at most `limit` characters. */
export function visibleLine(text: string, limit = 200): string {
  const { head, cut } = clip(text, limit, Infinity);
  return visible(head).replace(/\s+/g, ' ') + (cut ? '…' : '');
}

/** The beginning of a text: at most `characters` and `lines`, not through a surrogate pair. */
export function clip(text: string, characters: number, lines: number): { head: string; cut: boolean } {
  let end = Math.min(text.length, characters);
  let at = -1;
  for (let line = 0; line < lines; line++) {
    at = text.indexOf('\n', at + 1);
    if (at < 0 || at >= end) {
      break;
    }
    if (line === lines - 1) {
      end = at;
    }
  }
  const last = text.charCodeAt(end - 1);
  if (end < text.length && last >= 0xd800 && last <= 0xdbff) {
    end -= 1;
  }
  return { head: text.slice(0, end), cut: end < text.length };
}
