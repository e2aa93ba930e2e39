// The explorer: state, controls, the server's answers, and what they are shown as.
import { Refused, presets, simulate } from "./api.js";
import { Controls } from "./controls.js";
import { Detail } from "./detail.js";
import { seconds } from "./format.js";
import { fromHash, question, toHash } from "./state.js";
import { showAssumptions, showHeadline, showSchedules } from "./summary.js";

const byId = (id) => document.getElementById(id);

let state = fromHash(location.hash);
let controls = null;
let changedAt = performance.now();
/** One question at a time: what changes meanwhile is asked when the answer is there. */
let asking = false;
let changedSince = false;
let toml = "";

const detail = new Detail((pass) => change({ shown_pass: pass }));

function change(changes) {
  state = { ...state, ...changes };
  changedAt = performance.now();
  byId("status").dataset.busy = "true";
  // The server works while the controls are drawn.
  update();
  controls.show(state);
}

async function update() {
  changedSince = asking;
  if (asking) return;
  asking = true;
  const began = changedAt;
  try {
    show(await simulate(question(state)), began);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    fail(error.message);
  } finally {
    asking = false;
  }
  if (changedSince) update();
  else history.replaceState(null, "", toHash(state) || location.pathname);
}

function show(answer, began) {
  byId("error").hidden = true;
  byId("results").classList.remove("stale");
  byId("results").hidden = false;
  showHeadline(answer, state.straggler);
  showSchedules(answer, (schedule) => change({ show: schedule }));
  detail.show(answer);
  showAssumptions(answer);
  byId("command").textContent = answer.command;
  toml = answer.toml;
  requestAnimationFrame(() => {
    const status = byId("status");
    delete status.dataset.busy;
    status.textContent = `updated in ${seconds((performance.now() - began) / 1000, 2)}`;
    status.title = `${seconds(answer.took_s, 2)} of it on the server`;
    status.dataset.ms = String(performance.now() - began);
  });
}

/** Keeps the last results in sight, but marks them as not those of the form. */
function fail(message) {
  byId("error").hidden = false;
  byId("error-text").textContent = message;
  byId("results").classList.add("stale");
  byId("status").textContent = "not updated";
  delete byId("status").dataset.busy;
}

async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select and copy by hand";
  }
  setTimeout(() => { button.textContent = label; }, 1500);
}

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([toml], { type: "application/toml" }));
  link.download = "ringlab.toml";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function start() {
  byId("copy-command").addEventListener("click", (event) => copy(byId("command").textContent, event.target));
  byId("copy-link").addEventListener("click", (event) => copy(location.href, event.target));
  byId("download").addEventListener("click", download);
  byId("start-over").addEventListener("click", () => change(fromHash("")));
  window.addEventListener("hashchange", () => change(fromHash(location.hash)));
  if (window.matchMedia("(min-width: 60rem)").matches) byId("controls").open = true;
  try {
    controls = new Controls(await presets(), change);
  } catch (error) {
    fail(error.message);
    return;
  }
  controls.show(state);
  await update();
}

await start();
