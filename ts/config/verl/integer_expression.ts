/**
 * The shell's $((...)) for + - * / % and parentheses over integers and variables. null: anything else, an unknown variable, or
 * a division by zero.
 */
export function integerExpression(text: string, variable: (name: string) => string | null): number | null {
  const tokens = text.match(/\d+|\$?\{?[A-Za-z_]\w*\}?|[-+*/%()]|\S/g) ?? [];
  let at = 0;

  const atom = (): number => {
    const token = tokens[at++] ?? '';
    if (token === '-') return -atom();
    if (token === '+') return atom();
    if (token === '(') {
      const value = sum();
      return tokens[at++] === ')' ? value : Number.NaN;
    }
    const name = /^\$?\{?([A-Za-z_]\w*)\}?$/.exec(token)?.[1];
    const digits = name === undefined ? token : (variable(name) ?? '').trim();
    return /^-?\d+$/.test(digits) ? Number(digits) : Number.NaN;
  };
  const product = (): number => {
    let value = atom();
    for (
      let operator = tokens[at];
      operator !== undefined && '*/%'.includes(operator);
      operator = tokens[at]
    ) {
      at++;
      const right = atom();
      if (operator === '*') value *= right;
      else if (operator === '/') value = Math.trunc(value / right);
      else value %= right;
    }
    return value;
  };
  const sum = (): number => {
    let value = product();
    for (let operator = tokens[at]; operator === '+' || operator === '-'; operator = tokens[at]) {
      at++;
      const right = product();
      value = operator === '+' ? value + right : value - right;
    }
    return value;
  };

  const value = sum();
  return at === tokens.length && Number.isSafeInteger(value) ? value : null;
}
