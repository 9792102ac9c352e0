/** The Run page: what is it doing, is it learning, what is wrong. */

import { EntropyChart, RewardChart } from './charts';
import { GridView } from './gridView';
import { Header } from './header';

export interface IRunPageProps {
  readonly active: boolean;
  readonly onOpen: (id: string) => void;
}

export function RunPage({ active, onOpen }: IRunPageProps): JSX.Element {
  return (
    <div className="ll-page ll-run-page" hidden={!active}>
      <Header />
      <div className="ll-charts">
        <RewardChart />
        <EntropyChart />
      </div>
      <GridView active={active} onOpen={onOpen} />
    </div>
  );
}
