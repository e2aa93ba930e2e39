// One schedule's pass: its ring, its matrix, its timeline.
import { make } from "./canvas.js";
import { percent, seconds } from "./format.js";
import { Matrix } from "./matrix.js";
import { Ring, stepsOf } from "./ring.js";
import { Steps } from "./steps.js";
import { timeline } from "./timeline.js";

const byId = (id) => document.getElementById(id);

/** Shows what the answer says about the chosen schedule. */
export class Detail {
  constructor(choosePass) {
    this.ring = new Ring(byId("ring"));
    this.matrix = new Matrix(byId("matrix"), byId("matrix-text"));
    this.timeline = timeline(byId("timeline"));
    this.steps = new Steps((step, progress) => this.drawStep(step, progress));
    this.shownName = "";
    for (const radio of document.querySelectorAll("input[name=matrix-by]")) {
      radio.addEventListener("change", () => this.drawStep(this.steps.step));
    }
    byId("only-step").addEventListener("change", () => this.drawStep(this.steps.step));
    for (const radio of document.querySelectorAll("input[name=shown-pass]")) {
      radio.addEventListener("change", () => choosePass(radio.value));
    }
  }

  show(answer) {
    const { view, coverage } = answer;
    byId("detail").hidden = view === null;
    byId("too-large").hidden = view !== null;
    if (view === null) return;
    byId("detail-title").textContent = `${answer.shown}, ${view.pass}`;
    const both = answer.prediction.results[0].pass.includes("+");
    byId("shown-pass").hidden = !both;
    for (const radio of document.querySelectorAll("input[name=shown-pass]")) radio.checked = radio.value === view.pass;
    this.view = view;
    const steps = stepsOf(view);
    this.ring.show(view, steps);
    byId("matrix-box").hidden = coverage === null;
    this.hasMatrix = coverage !== null;
    if (coverage) this.matrix.show(coverage, view.ranks, steps.length);
    const name = `${view.name} ${view.pass} ${view.ranks}`;
    this.timeline.show(view, name === this.shownName);
    this.shownName = name;
    this.showTimes();
    this.steps.setCount(steps.length);
  }

  drawStep(step, progress = null) {
    if (!this.view) return;
    this.ring.draw(step, progress);
    if (progress !== null && progress > 0) return;
    byId("step-text").textContent = this.ring.sentence(step);
    const only = byId("only-step").checked;
    const by = document.querySelector("input[name=matrix-by]:checked").value;
    if (this.hasMatrix) this.matrix.highlight(by, only ? step : null);
    this.timeline.showStep(only ? step : null);
  }

  /** Where the time of the idlest, a middling and the busiest rank goes. */
  showTimes() {
    const total = this.view.makespan_ps * 1e-12;
    const order = this.view.times.map((_, rank) => rank).sort((a, b) => this.view.times[a].busy_s - this.view.times[b].busy_s);
    const chosen = order.length <= 8 ? order.sort((a, b) => a - b) : [order[0], order[order.length >> 1], order[order.length - 1]];
    byId("times").replaceChildren(...chosen.map((rank) => timesRow(rank, this.view.times[rank], total)));
  }
}

function timesRow(rank, times, total) {
  const parts = [["busy", times.busy_s, "computing"], ["exposed", times.exposed_s, "waiting for a transfer"], ["wait", times.wait_s, "nothing to do"]];
  const bar = make("span", { className: "times-bar" });
  bar.setAttribute("aria-hidden", "true");
  for (const [name, value] of parts) {
    const part = make("span", { className: `times-${name}` });
    part.style.width = `${(100 * value) / total}%`;
    bar.append(part);
  }
  const text = parts.filter(([, value]) => value > 0).map(([, value, what]) => `${seconds(value, 3)} ${what}`).join(", ");
  const share = make("span", { className: "times-share", textContent: percent(times.busy_s / total) });
  const row = make("li", { title: text }, make("span", { className: "times-rank", textContent: `rank ${rank}` }), bar, share);
  row.append(make("span", { className: "hidden-text", textContent: `: ${text}` }));
  return row;
}
