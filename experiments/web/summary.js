// All schedules beside each other.
import { make } from "./canvas.js";
import { bytes, count, percent, seconds, times } from "./format.js";

const byId = (id) => document.getElementById(id);

/** The columns after the first: heading, what it means, text of a row, its bar if there is one. */
const COLUMNS = [
  ["Time", "One attention layer, all passes that were asked for", (r) => seconds(r.makespan_s), "time"],
  ["vs ring", "Speed-up over Ring Attention. The mark is the bound: what balance alone allows", (r) => times(r.speedup_vs_ring), "speedup"],
  ["Bound", "Speed-up over ring that balance alone allows: the busiest rank's work under ring over that under this schedule", (r) => times(r.bound_speedup_vs_ring)],
  ["vs 1 GPU", "Speed-up over one GPU that does it all", (r) => times(r.speedup_vs_one_gpu)],
  ["Bubble", "Share of all GPU time in which no kernel runs", (r) => percent(r.bubble_ratio)],
  ["Exposed comm.", "Time in which the worst rank stands still for a transfer", (r) => seconds(r.exposed_comm_s)],
  ["TFLOP/s/GPU", "FLOPs of the mask's area over the time, a GPU", (r) => r.tflops_per_gpu.toFixed(0)],
  ["Memory", "Attention buffers of one layer on the largest rank, without weights and other activations", (r) => bytes(r.peak_memory_bytes)],
];

/** The heading: what was simulated and who wins. */
export function showHeadline(answer, straggler) {
  const rows = answer.prediction.results;
  const best = rows.reduce((a, b) => (b.makespan_s < a.makespan_s ? b : a));
  byId("title").textContent = answer.title.replace(", one attention layer", "");
  const bound = best.bound_speedup_vs_ring;
  const gain = best.speedup_vs_ring;
  const time = `${seconds(best.makespan_s)} for one layer's ${best.pass.replace("+", " and ")}`;
  const alike = rows.every((row) => row.makespan_s <= 1.005 * best.makespan_s);
  const facts = [alike && rows.length > 1 ? `All schedules take the same: ${time}` : `${best.schedule} is the fastest: ${time}`];
  if (rows.length === 1) facts[0] = `${best.schedule} takes ${time}`;
  if (gain !== null && best.schedule !== "ring" && !alike) {
    facts.push(`${times(gain)} the speed of ring, where balance alone allows ${times(bound)}`);
  }
  byId("finding").textContent = `${facts.join(", ")}.`;
  const [rank, factor] = straggler.split(":");
  const slow = straggler ? ` · rank ${rank} takes ${factor}×` : "";
  byId("setup").textContent = `${answer.heads} · ${answer.prediction.cluster}, ${count(answer.gpus, "GPU")}: ${answer.device}${slow}`;
}

/** The table of schedules; `choose` is called with the name of the one that a user wants to see. */
export function showSchedules(answer, choose) {
  const rows = answer.prediction.results;
  const scale = {
    time: Math.max(...rows.map((r) => r.makespan_s)),
    speedup: Math.max(...rows.map((r) => Math.max(r.speedup_vs_ring ?? 0, r.bound_speedup_vs_ring ?? 0))),
  };
  const head = make("tr", {}, make("th", { scope: "col", textContent: "Schedule" }),
    ...COLUMNS.map(([name, help]) => make("th", { scope: "col", title: help, textContent: name })));
  byId("schedule-head").replaceChildren(head);
  byId("schedule-rows").replaceChildren(...rows.map((row) => line(row, scale, row.schedule === answer.shown, choose)));
  const remarks = answer.prediction.left_out.map((text) => `Left out: ${text}`);
  for (const row of rows) {
    if (row.makespan_low_s !== null) {
      remarks.push(`${row.schedule}: ${seconds(row.makespan_low_s)} to ${seconds(row.makespan_high_s)}, the 90% interval by the calibration of the cluster`);
    }
    if (row.notes) remarks.push(`${row.schedule}: ${row.notes}`);
    if (!row.fits) remarks.push(`${row.schedule} does not fit: ${bytes(row.device_memory_bytes)} of memory a GPU`);
  }
  byId("remarks").replaceChildren(...[...new Set(remarks)].map((text) => make("li", { textContent: text })));
}

function line(row, scale, chosen, choose) {
  const radio = make("input", { type: "radio", name: "shown", value: row.schedule, checked: chosen });
  radio.addEventListener("change", () => choose(row.schedule));
  const name = make("th", { scope: "row" }, make("label", {}, radio, row.schedule));
  const cells = COLUMNS.map(([heading, , text, bar]) => {
    const cell = make("td", {}, make("span", { textContent: text(row) }));
    cell.dataset.heading = heading;
    if (bar === "time") cell.append(barOf(row.makespan_s / scale.time));
    if (bar === "speedup" && row.speedup_vs_ring !== null) {
      cell.append(barOf(row.speedup_vs_ring / scale.speedup, row.bound_speedup_vs_ring / scale.speedup));
    }
    return cell;
  });
  const element = make("tr", { className: chosen ? "chosen" : "" }, name, ...cells);
  element.addEventListener("click", (event) => {
    if (!(event.target instanceof HTMLInputElement || event.target.closest("label"))) radio.click();
  });
  return element;
}

function barOf(share, mark) {
  const full = make("span", { className: "bar-fill" });
  full.style.width = `${100 * share}%`;
  const bar = make("span", { className: "bar" }, full);
  bar.setAttribute("aria-hidden", "true");
  if (mark !== undefined) {
    const line = make("span", { className: "bar-mark" });
    line.style.left = `${100 * mark}%`;
    bar.append(line);
  }
  return bar;
}

let shownAssumptions = "";

/** The constants with their sources. */
export function showAssumptions(answer) {
  const text = JSON.stringify(answer.prediction.assumptions);
  if (text === shownAssumptions) return;
  shownAssumptions = text;
  const rows = answer.prediction.assumptions.map((a) => make("tr", {},
    make("th", { scope: "row", textContent: a.what }), make("td", { textContent: a.value }), make("td", { textContent: a.source })));
  byId("assumptions").replaceChildren(...rows);
  byId("assumptions-source").textContent = answer.source;
}
