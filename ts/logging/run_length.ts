export interface RunLength {
  /** Steps done before this session. */
  firstStep: number;
  totalSteps: number;
}
