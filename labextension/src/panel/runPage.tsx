/** The Run page: what is it doing, is it learning, what is wrong. */

import { useCallback, useRef, useState } from 'react';

import type { IFocus } from '../order';
import { Charts } from './charts';
import { GridView, Shape } from './gridView';
import { Header } from './header';
import { Problems } from './problems';
import type { Shade } from '../strip/shades';
import type { IRunSource } from '../tokens';
import { useView } from './view';

export interface IRunPageProps {
  readonly active: boolean;
  /**
   * @param from - the run that it belongs to, where that is not the one on show.
   * @param shade - what its tokens are to be coloured by.
   */
  readonly onOpen: (id: string, from?: IRunSource, shade?: Shade) => void;
}

export function RunPage({ active, onOpen }: IRunPageProps): JSX.Element {
  const { source, trans } = useView();
  const { run } = source.model;
  const [focus, setFocus] = useState<IFocus | null>(null);
  const [shape, setShape] = useState<Shape>('table');
  const shade = useRef<Shade>();
  shade.current = focus?.shade;
  const openFocused = useCallback(
    (id: string, from?: IRunSource) => onOpen(id, from, from ? undefined : shade.current),
    [onOpen]
  );
  const comparing = shape === 'compare';
  const onBrush = useCallback(
    (steps: readonly [number, number]) => {
      const [from, to] = steps;
      setFocus({ label: from === to ? trans.__('step %1', from) : trans.__('steps %1 to %2', from, to), steps });
      source.selection.set({ run: source.model.run?.id, step: from });
    },
    [source, trans]
  );
  return (
    <div className="ll-page ll-run-page" hidden={!active}>
      <Header onOpen={onOpen} />
      {!comparing && <Problems onFocus={setFocus} />}
      {!comparing && run !== null && run.kind !== 'single' && (
        <Charts onBrush={onBrush} brushed={focus?.steps ?? null} />
      )}
      <GridView {...{ active, focus, shape }} onOpen={openFocused} onFocus={setFocus} onShape={setShape} />
    </div>
  );
}
