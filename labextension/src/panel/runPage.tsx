/** The Run page: what is it doing, is it learning, what is wrong. */

import { EntropyChart, RewardChart } from './charts';
import { GridView } from './gridView';
import { Header } from './header';
import { useView } from './view';

export interface IRunPageProps {
  readonly active: boolean;
  readonly onOpen: (id: string) => void;
}

export function RunPage({ active, onOpen }: IRunPageProps): JSX.Element {
  const { run } = useView().source.model;
  return (
    <div className="ll-page ll-run-page" hidden={!active}>
      <Header />
      {run !== null && run.kind !== 'single' && (
        <div className="ll-charts">
          <RewardChart />
          <EntropyChart />
        </div>
      )}
      <GridView active={active} onOpen={onOpen} />
    </div>
  );
}
