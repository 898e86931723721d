/** What the tool tells: the product, or = where it cannot read the expression: the model of this example knows few characters. */
export function calculator(expression) {
  const [, left, right] = /^(\d+)\*(\d+)$/.exec(expression) ?? [];
  return left === undefined ? '=' : String(Number(left) * Number(right));
}
