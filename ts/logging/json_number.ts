/** A number as JSON holds it: "NaN", "Infinity" or "-Infinity" where it has no number for it. */
export const jsonNumber = (value: number): number | string =>
  Number.isFinite(value) ? value : String(value);
