// Numbers with their units, four significant digits as on the command line.

const PREFIXES = [[1e-12, "p"], [1e-9, "n"], [1e-6, "µ"], [1e-3, "m"], [1, ""], [1e3, "k"], [1e6, "M"], [1e9, "G"], [1e12, "T"], [1e15, "P"]];

/** Up to `digits` significant digits without trailing zeros. */
export function significant(value, digits = 4) {
  return String(Number(value.toPrecision(digits)));
}

function withPrefix(value, unit, digits, smallest) {
  if (!Number.isFinite(value)) return value === Infinity ? "infinite" : "–";
  if (value === 0) return `0 ${unit}`;
  let chosen = PREFIXES.find(([factor]) => factor >= smallest);
  for (const prefix of PREFIXES) {
    const fits = Math.abs(value) * (1 + 0.5 / 10 ** digits) >= prefix[0];
    if (prefix[0] >= smallest && fits) chosen = prefix;
  }
  return `${significant(value / chosen[0], digits)} ${chosen[1]}${unit}`;
}

/** A duration in seconds: `12.3 ms`. */
export function seconds(value, digits = 4) {
  return Math.abs(value) >= 1 ? `${significant(value, digits)} s` : withPrefix(value, "s", digits, 1e-12);
}

/** Bytes: `33.55 MB`. */
export function bytes(value) {
  return withPrefix(value, "B", 4, 1);
}

/** Bytes a second, infinite for null. */
export function rate(value) {
  return value === null ? "infinite" : withPrefix(value, "B/s", 4, 1);
}

/** FLOPs: `1.2 TFLOP`. */
export function flops(value) {
  return withPrefix(value, "FLOP", 4, 1);
}

/** A ratio: `1.87×`; a dash where there is none. */
export function times(value) {
  return value === null || value === undefined ? "–" : `${value.toFixed(2)}×`;
}

/** A share: `12.3 %`. */
export function percent(value) {
  return `${(100 * value).toFixed(1)} %`;
}

/** A token count with the binary suffix that divides it: `128Ki`. */
export function tokens(value) {
  for (const [factor, suffix] of [[2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"]]) {
    if (value >= factor && value % factor === 0) return `${value / factor}${suffix}`;
  }
  return String(value);
}

/** `1 rank`, `3 ranks`. */
export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
