/** What everything that an agent has not waited for ends with: its trajectory is over, and nobody needs to hear of that. */
export class TrajectoryEnded extends Error {}
