// The page's state: the run file's keys, and what is shown. The address holds all of it.

/** What the page starts from; the run file's defaults with padding, so that every length and degree can be tried. */
export const DEFAULTS = Object.freeze({
  cluster: "dgx-h100", link_bandwidth: "", nic_bandwidth: "", model: "llama-3-8b",
  straggler: "", seq: "128Ki", mask: "", batch: "1", pad: true, dtype: "bf16", cp: "8", schedule: "ring,zigzag,striped,dist-flash",
  pass: "forward", transport: "copy-engine", route: "neighbour", chunks: "1", prefetch: "1", needed_only: false,
  show: "zigzag", shown_pass: "forward",
});

/** Keys that say what is shown and are no part of the run. */
const VIEW_KEYS = ["show", "shown_pass"];

/** The state that a link's fragment holds, with defaults for what it leaves out. */
export function fromHash(hash) {
  const state = { ...DEFAULTS };
  for (const [key, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!(key in DEFAULTS)) state[key] = value;
    else state[key] = typeof DEFAULTS[key] === "boolean" ? value === "true" : value;
  }
  return state;
}

/** The fragment of `state`: everything that differs from the defaults. */
export function toHash(state) {
  const changed = Object.entries(state).filter(([key, value]) => value !== DEFAULTS[key] && value !== undefined);
  const text = new URLSearchParams(changed.map(([key, value]) => [key, String(value)])).toString();
  return text ? `#${text}` : "";
}

/** What the server is asked for `state`. */
export function question(state) {
  const run = {};
  for (const [key, value] of Object.entries(state)) {
    if (value !== "" && !VIEW_KEYS.includes(key)) run[key] = key === "schedule" ? value.split(",").filter(Boolean) : value;
  }
  return { run, show: state.show, pass: state.shown_pass };
}
