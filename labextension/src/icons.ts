import { LabIcon } from '@jupyterlab/ui-components';

import bolt from '../style/bolt.svg';

export const labIcon = new LabIcon({ name: 'lightning-lab:bolt', svgstr: bolt });
