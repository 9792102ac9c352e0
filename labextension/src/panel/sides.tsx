/** A break from both sides, as text and as ids, the first difference marked. */

import { integer, words } from '../format';
import { decodeSides } from '../decodeAnswers';
import { tokenLabel } from '../strip/flow';
import type { IBreakSide, IBreakSides } from '../wireRollout';
import { useAnswer } from './useAnswer';
import { useView } from './view';

interface ISideProps {
  readonly title: string;
  readonly side: IBreakSide;
  readonly start: number;
  readonly index: number;
}

function Side({ title, side, start, index }: ISideProps): JSX.Element {
  const { trans } = useView();
  const at = index - start;
  return (
    <div className="ll-side-row">
      <h4>
        {title}{' '}
        <span className="ll-dim">
          {trans.__('tokens %1 to %2 of %3', integer(start), integer(start + side.ids.length), integer(side.tokens))}
        </span>
      </h4>
      <p className="ll-side-tokens" tabIndex={0}>
        {start > 0 && <span className="ll-dim">… </span>}
        {side.ids.map((id, i) => (
          <span key={i} className={i < at ? 'll-tok ll-mod-same' : i === at ? 'll-tok ll-mod-first' : 'll-tok'}>
            <b dir="auto">{tokenLabel(side.texts[i], id)}</b>
            <i>{id}</i>
          </span>
        ))}
        {side.ids.length <= at && <span className="ll-tok ll-mod-first">{trans.__('(ends here)')}</span>}
      </p>
    </div>
  );
}

export function SidesView({ sides, cause }: { sides: IBreakSides; cause: string }): JSX.Element {
  const { trans } = useView();
  return (
    <>
      <p>
        <b className="ll-tag ll-mod-warn">{words(cause)}</b> {sides.sentence} {sides.stitching}
      </p>
      <Side title={trans.__('In the sample')} side={sides.sample} start={sides.start} index={sides.index} />
      <Side title={trans.__('In the next prompt')} side={sides.prompt} start={sides.start} index={sides.index} />
    </>
  );
}

export interface ISidesProps {
  readonly id: string;
  /** Place of the break in the rollout. */
  readonly place: number;
  readonly cause: string;
  readonly stamp: string;
  readonly onClose: () => void;
}

export function Sides({ id, place, cause, stamp, onClose }: ISidesProps): JSX.Element {
  const { source, trans, visible } = useView();
  const { value, error } = useAnswer(source, 'sides', { id, break: place }, stamp, visible, answer =>
    decodeSides(answer.result)
  );
  return (
    <section className="ll-sides" data-testid="ll-sides" aria-label={trans.__('Both sides of the break')}>
      <button type="button" className="ll-link ll-close" onClick={onClose}>
        {trans.__('Close')}
      </button>
      {error && <p role="alert">{error}</p>}
      {!value && !error && <p className="ll-dim">{trans.__('Fetching both sides…')}</p>}
      {value && <SidesView sides={value} cause={cause} />}
    </section>
  );
}
