/** Interfaces that plugins share, and the names of commands. */

import { JSONObject, Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';

import type { RunModel } from './model';
import type { IAnswer } from './request';
import type { Selection } from './selection';
import type { IRolloutDetail } from './wireRollout';

export const EXTENSION_VERSION = '0.1.0';

export namespace CommandIDs {
  export const openPanel = 'lightning-lab:open-panel';
}

/** What a user may ask of a running lab. */
export type ActionName = 'pause' | 'resume' | 'stop' | 'cancel';

/**
 * How it stands with what a view shows:
 * `connecting` no connection yet · `waiting` connected, no lab has spoken · `live` · `disconnected` the server does not
 * answer · `gone` the kernel ended · `mismatch` another schema · `saved` a stored state · `file` an exported run.
 */
export type SourceStatus = 'connecting' | 'waiting' | 'live' | 'disconnected' | 'gone' | 'mismatch' | 'saved' | 'file';

/** Where a view's data comes from: a kernel, a saved output, or a file. */
export interface IRunSource extends IDisposable {
  readonly model: RunModel;
  readonly selection: Selection;
  readonly status: SourceStatus;
  /** Why it is so, in one sentence; empty when there is nothing to say. */
  readonly problem: string;
  readonly statusChanged: ISignal<IRunSource, void>;
  /** Fetch one rollout. Rejects with an `Error` whose message says what happened and what to do. */
  detail(rolloutId: string): Promise<IRolloutDetail>;
  /** Ask for anything else that can be read: `tokens`, `sides`, `weights` … Rejects like `detail`. */
  ask(method: string, params: JSONObject): Promise<IAnswer>;
  /** Ask the lab for something, `cancel` also for one rollout. Rejects with the reason when it cannot. */
  act(name: ActionName, rolloutId?: string): Promise<void>;
  /** Try again to reach a kernel that is not answering. */
  reconnect(): void;
  /** The file that it reads, below the server's root; absent for a kernel or a notebook's output. */
  readonly path?: string;
  /** Whether `act` can do anything at all; a saved state cannot be paused. */
  readonly canAct: boolean;
}

/** One link per kernel, shared by every view of it and closed with the last of them. */
export interface ILinkRegistry {
  /** Take a share of the kernel's link; dispose of it to give it back. */
  acquire(kernel: { readonly id: string; readonly name: string }): IRunSource;
}

export const ILinkRegistry = new Token<ILinkRegistry>(
  'lightning-lab:ILinkRegistry',
  'Live links to the labs of running kernels, one per kernel.'
);
