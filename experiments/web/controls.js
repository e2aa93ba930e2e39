// The form: what the state says, and what a change says to the state.
import { presetText } from "./api.js";
import { make } from "./canvas.js";
import { rate, tokens } from "./format.js";

const OWN = "own";
/** The bandwidth sliders' ends: 1 GB/s and 2^11 GB/s, in quarters of a doubling. */
const PER_DOUBLING = 4;
const LOWEST = 1e9;
/** The most ranks that the slider offers; the field beside it takes more. */
const SLIDER_RANKS = 64;

const byId = (id) => document.getElementById(id);

/** Binds the form to `state`; calls `changed` with what a user changed. */
export class Controls {
  constructor(choices, changed) {
    this.choices = choices;
    this.changed = changed;
    this.fillSelect(byId("cluster"), choices.clusters);
    this.fillSelect(byId("model"), choices.models);
    this.fillSchedules(choices.schedules);
    this.bindPlain();
    this.bindOwnText("cluster");
    this.bindOwnText("model");
    this.bindSequence();
    this.bindBandwidth("link_bandwidth");
    this.bindBandwidth("nic_bandwidth");
    this.bindMask();
    addHelp();
  }

  fillSelect(select, presets) {
    const options = presets.map((p) => make("option", { value: p.name, textContent: p.name, title: p.summary }));
    select.replaceChildren(...options, make("option", { value: OWN, textContent: "my own text…" }));
  }

  fillSchedules(names) {
    const boxes = names.map((name) => {
      const box = make("input", { type: "checkbox", value: name, id: `schedule-${name}` });
      box.addEventListener("change", () => this.schedulesChanged());
      return make("label", { className: "check" }, box, name);
    });
    byId("schedules").replaceChildren(...boxes);
    byId("stripe").addEventListener("input", () => this.schedulesChanged());
  }

  schedulesChanged() {
    const block = 2 ** Number(byId("stripe").value);
    const named = [...document.querySelectorAll("#schedules input:checked")].map((box) => box.value);
    const striped = block > 1 ? `striped:${block}` : "striped";
    const now = this.scheduleNames();
    const asNow = (name) => (name === "striped" ? striped : now.find((n) => n.split(":")[0] === name) ?? name);
    const isAll = block === 1 && named.length === this.choices.schedules.length && !now.some((n) => n.includes(":"));
    const schedule = isAll ? "all" : named.map(asNow).join(",");
    const show = this.state.show.startsWith("striped") ? { show: striped } : {};
    this.changed({ schedule, ...show });
  }

  /** Each of the state's schedules, with its options. */
  scheduleNames() {
    return this.state.schedule === "all" ? this.choices.schedules : this.state.schedule.split(",");
  }

  /** Controls whose value is the state's as it is. */
  bindPlain() {
    for (const id of ["transport", "route", "dtype", "batch"]) {
      byId(id).addEventListener("change", (event) => this.changed({ [id]: event.target.value }));
    }
    for (const id of ["chunks", "prefetch"]) {
      byId(id).addEventListener("input", (event) => this.changed({ [id]: event.target.value }));
    }
    for (const id of ["pad", "needed_only"]) {
      byId(id).addEventListener("change", (event) => this.changed({ [id]: event.target.checked }));
    }
    for (const radio of document.querySelectorAll("input[name=pass]")) {
      radio.addEventListener("change", () => {
        const shown = radio.value === "forward+backward" ? {} : { shown_pass: radio.value };
        this.changed({ pass: radio.value, ...shown });
      });
    }
    byId("cp").addEventListener("change", (event) => this.changed(this.withRanks(event.target.value)));
    byId("cp-slider").addEventListener("input", (event) => this.changed(this.withRanks(event.target.value)));
    for (const id of ["slow-rank", "slow-factor"]) byId(id).addEventListener("input", () => this.stragglerChanged());
  }

  bindOwnText(id) {
    const area = byId(`${id}-text`);
    byId(id).addEventListener("change", async (event) => {
      if (event.target.value !== OWN) {
        this.changed({ [id]: event.target.value, ...(id === "cluster" ? this.withCluster(event.target.value) : {}) });
        return;
      }
      byId(`${id}-own`).hidden = false;
      area.value ||= await presetText(this.state[id]);
      this.changed({ [id]: area.value });
      area.focus();
      area.setSelectionRange(0, 0);
      area.scrollTop = 0;
    });
    area.addEventListener("input", () => this.changed({ [id]: asText(area.value) }));
  }

  /** What changes along with the cluster: its own links, and no more ranks than it has GPUs. */
  withCluster(name) {
    const { gpus } = this.choices.clusters.find((c) => c.name === name) ?? { gpus: Infinity };
    const changes = { link_bandwidth: "", nic_bandwidth: "" };
    return Number(this.state.cp) > gpus ? { ...changes, ...this.withRanks(String(gpus)) } : changes;
  }

  /** Another number of ranks, without a straggler that is none of them. */
  withRanks(cp) {
    const gone = this.state.straggler && Number(this.state.straggler.split(":")[0]) >= Number(cp);
    return gone ? { cp, straggler: "" } : { cp };
  }

  stragglerChanged() {
    const factor = Number(byId("slow-factor").value);
    this.changed({ straggler: factor > 1 ? `${byId("slow-rank").value || 0}:${factor}` : "" });
  }

  bindSequence() {
    byId("seq-slider").addEventListener("input", (event) => this.changed({ seq: tokens(2 ** Number(event.target.value)) }));
    byId("seq").addEventListener("change", (event) => this.changed({ seq: event.target.value.trim() }));
  }

  bindBandwidth(id) {
    const slider = byId(id);
    slider.addEventListener("input", () => {
      this.changed({ [id]: rate(rounded(LOWEST * 2 ** (Number(slider.value) / PER_DOUBLING))) });
    });
    byId(`${id}-reset`).addEventListener("click", () => {
      this.changed({ [id]: "" });
      slider.focus();
    });
  }

  bindMask() {
    const changed = () => {
      const [kind, detail] = [byId("mask").value, byId("mask-detail").value.trim()];
      const examples = { window: "4Ki", docs: "48Ki,64Ki,16Ki" };
      const value = detail || examples[kind];
      const mask = kind in examples ? `${kind}:${value}` : kind;
      this.changed({ mask, ...(kind === "docs" ? { seq: "" } : this.state.seq ? {} : { seq: "128Ki" }) });
    };
    byId("mask").addEventListener("change", () => {
      byId("mask-detail").value = "";
      changed();
    });
    byId("mask-detail").addEventListener("change", changed);
  }

  /** Shows `state` in every control. */
  show(state) {
    this.state = state;
    for (const id of ["transport", "route", "dtype", "batch", "cp", "chunks", "prefetch"]) setValue(byId(id), state[id]);
    for (const id of ["pad", "needed_only"]) byId(id).checked = state[id];
    for (const radio of document.querySelectorAll("input[name=pass]")) radio.checked = radio.value === state.pass;
    const cluster = this.choices.clusters.find((c) => c.name === state.cluster);
    byId("cp-slider").max = String(Math.min(cluster?.gpus ?? SLIDER_RANKS, SLIDER_RANKS));
    setValue(byId("cp-slider"), state.cp);
    byId("chunks-value").textContent = state.chunks;
    byId("prefetch-value").textContent = state.prefetch;
    this.showOwnText("cluster");
    this.showOwnText("model");
    this.showSequence();
    this.showBandwidth("link_bandwidth");
    this.showBandwidth("nic_bandwidth");
    this.showMask();
    this.showStraggler();
    this.showSchedules();
  }

  showOwnText(id) {
    const text = this.state[id];
    const own = text.includes("\n");
    const select = byId(id);
    if (!own && ![...select.options].some((o) => o.value === text)) {
      select.prepend(make("option", { value: text, textContent: text }));
    }
    select.value = own ? OWN : text;
    byId(`${id}-own`).hidden = !own;
    if (own) setValue(byId(`${id}-text`), text);
    const preset = this.choices[`${id}s`].find((p) => p.name === text);
    byId(`${id}-summary`).textContent = preset ? preset.summary : "";
  }

  /** Packed documents say themselves how many tokens there are. */
  showSequence() {
    const [kind, lengths] = splitMask(this.state.mask);
    const documents = kind === "docs" ? lengths.split(",").map(tokensOf) : null;
    const count = documents ? documents.reduce((a, b) => a + b, 0) : tokensOf(this.state.seq);
    byId("seq").disabled = byId("seq-slider").disabled = documents !== null;
    setValue(byId("seq"), documents ? tokens(count) : this.state.seq);
    if (count) setValue(byId("seq-slider"), String(Math.round(Math.log2(count))));
    byId("seq-slider").setAttribute("aria-valuetext", `${byId("seq").value} tokens`);
  }

  showBandwidth(id) {
    const cluster = this.choices.clusters.find((c) => c.name === this.state.cluster);
    const preset = cluster ? presetRate(cluster, id, this.state.transport) : undefined;
    const field = byId(`${id}-field`);
    field.hidden = id === "nic_bandwidth" && preset === undefined && cluster !== undefined;
    const given = this.state[id];
    const value = given ? bytesPerSecond(given) : preset ?? Infinity;
    const place = Number.isFinite(value) ? Math.round(PER_DOUBLING * Math.log2(value / LOWEST)) : 44;
    const slider = byId(id);
    setValue(slider, String(Math.min(Math.max(place, 0), 44)));
    const text = given || (preset === undefined ? "as in the text" : rate(preset));
    byId(`${id}-value`).textContent = text;
    slider.setAttribute("aria-valuetext", text);
    byId(`${id}-reset`).hidden = !given;
  }

  showMask() {
    const [kind, detail] = splitMask(this.state.mask);
    byId("mask").value = kind;
    const field = byId("mask-detail");
    field.parentElement.hidden = detail === null;
    byId("mask-detail-label").textContent = kind === "window" ? "Window, in tokens" : "Lengths of the documents";
    if (detail !== null) setValue(field, detail);
  }

  showStraggler() {
    const [rank, factor] = this.state.straggler ? this.state.straggler.split(":") : [null, "1"];
    if (rank !== null) setValue(byId("slow-rank"), rank);
    byId("slow-rank").max = String(Number(this.state.cp) - 1);
    setValue(byId("slow-factor"), factor);
    const text = factor === "1" ? "none" : `rank ${rank} takes ${factor}×`;
    byId("straggler-value").textContent = text;
    byId("slow-factor").setAttribute("aria-valuetext", text);
  }

  showSchedules() {
    const names = this.scheduleNames();
    for (const box of document.querySelectorAll("#schedules input")) {
      box.checked = names.some((n) => n.split(":")[0] === box.value.split(":")[0]);
    }
    const block = Number(names.find((n) => n.startsWith("striped:"))?.split(":")[1] ?? 1);
    setValue(byId("stripe"), String(Math.round(Math.log2(block))));
    byId("stripe-value").textContent = block === 1 ? "1 token" : `${tokens(block)} tokens`;
    byId("stripe-field").hidden = !names.some((n) => n.startsWith("striped"));
  }
}

/** What a transfer reaches on a preset, null for an infinite rate, undefined where there is no such link. */
function presetRate(cluster, id, transport) {
  if (id === "nic_bandwidth") return cluster.nic_bandwidth ?? undefined;
  return transport === "nccl" ? cluster.nccl_bandwidth : cluster.copy_bandwidth;
}

/** Leaves a control alone that already says so: its cursor stays where it is. */
function setValue(control, value) {
  if (control.value !== value) control.value = value;
}

/** Text of one line is told from a preset's name by its line end. */
function asText(text) {
  return text.includes("\n") ? text : `${text}\n`;
}

function splitMask(mask) {
  if (["", "full", "causal"].includes(mask)) return [mask, null];
  const at = mask.indexOf(":");
  return [mask.slice(0, at), mask.slice(at + 1)];
}

/** Three significant digits, as people write rates. */
function rounded(value) {
  return Number(value.toPrecision(3));
}

const UNITS = { "": 1, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, k: 1e3, K: 1e3, M: 1e6, G: 1e9, T: 1e12 };

function tokensOf(text) {
  const match = /^([\d.]+)\s*(Ki|Mi|Gi|k|M|G)?$/.exec(text.trim());
  return match ? Number(match[1]) * UNITS[match[2] ?? ""] : 0;
}

function bytesPerSecond(text) {
  const match = /^([\d.]+)\s*([kKMGT]?)(B|b)\/s$/.exec(text);
  return match ? (Number(match[1]) * UNITS[match[2]]) / (match[3] === "b" ? 8 : 1) : Infinity;
}

/** A button beside each label that has a `data-help`, with the text in a tooltip for hover and focus. */
function addHelp() {
  document.querySelectorAll("[data-help]").forEach((label, i) => {
    const tip = make("span", { className: "tip", role: "tooltip", id: `tip-${i}`, textContent: label.dataset.help });
    const button = make("button", { type: "button", className: "help", textContent: "?" });
    button.setAttribute("aria-label", `About: ${label.textContent.trim()}`);
    button.setAttribute("aria-describedby", tip.id);
    button.addEventListener("keydown", (event) => event.key === "Escape" && button.blur());
    label.after(button, tip);
  });
}
