// Colours for ranks and steps that colour-blind readers tell apart.

/** Okabe and Ito's colours without black, the darker and lighter ones in turn. */
const FEW = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8A8A8A"];

/** Stops of the cividis scale: lightness grows evenly for every kind of colour vision. */
const SCALE = [[0, 34, 78], [39, 63, 108], [87, 93, 109], [124, 123, 120], [165, 155, 115], [209, 189, 96], [254, 232, 56]];

function onScale(share) {
  const place = Math.min(Math.max(share, 0), 1) * (SCALE.length - 1);
  const below = Math.min(Math.floor(place), SCALE.length - 2);
  const part = place - below;
  return SCALE[below].map((c, i) => Math.round(c + (SCALE[below + 1][i] - c) * part));
}

const hex = (rgb) => `#${rgb.map((c) => c.toString(16).padStart(2, "0")).join("")}`;

/** The colour of rank `rank` of `ranks`: one of eight, or a place on a scale. */
export function rankColour(rank, ranks) {
  return ranks <= FEW.length ? FEW[rank] : hex(onScale(rank / (ranks - 1)));
}

/** The colour of step `step` of `steps`. */
export function stepColour(step, steps) {
  return hex(onScale(steps > 1 ? step / (steps - 1) : 0));
}

/** Black or white, whichever is read more easily on `colour`. */
export function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => {
    const c = parseInt(colour.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return luminance > 0.18 ? "#000000" : "#ffffff";
}

/** Red, green and blue of `#rrggbb`. */
export function channels(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}
