/** Why rollouts end, in two kinds. */

const INFRASTRUCTURE = new Set([
  'boot_timeout',
  'oom',
  'image_pull',
  'evicted',
  'grader_error',
  'policy_error',
  'cancelled',
  'lost'
]);

/** Outcomes that say nothing about the agent and are never turned into reward 0. */
export function isInfrastructure(outcome: string): boolean {
  return INFRASTRUCTURE.has(outcome);
}
