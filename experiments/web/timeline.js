// A timeline of all ranks: zooms, moves, and tells what a span is.
import { make, pageColour, redrawOnChange, sharpContext } from "./canvas.js";
import { bytes, flops, percent, seconds, significant } from "./format.js";

const GUTTER = 58;
const AXIS = 26;
const PICO = 1e-12;
const HELP = "Arrow keys move, + and - zoom, 0 shows all, N and P go to the next and previous span. "
  + "With a mouse: drag to move, Ctrl and wheel to zoom, hover for details.";

/** Heights of a rank's rows of kernels, sends and receives, by the number of ranks. */
function rowHeights(ranks) {
  if (ranks <= 16) return { kernels: 15, transfers: 5, gap: 6 };
  if (ranks <= 64) return { kernels: 9, transfers: 3, gap: 3 };
  return { kernels: 6, transfers: 0, gap: 1 };
}

/** Draws `view` in `container`; returns what changes it. */
export function timeline(container, view) {
  const chart = new Timeline(container);
  if (view) chart.show(view);
  return chart;
}

class Timeline {
  constructor(container) {
    this.view = null;
    this.step = null;
    this.selected = -1;
    this.window = [0, 1];
    this.canvas = make("canvas", { tabIndex: 0, className: "timeline-canvas" });
    this.canvas.setAttribute("role", "img");
    this.scroller = make("div", { className: "timeline-scroll" }, this.canvas);
    this.detail = make("output", { className: "timeline-detail" });
    this.legend = make("ul", { className: "legend" });
    const buttons = make("div", { className: "buttons" },
      this.button("Zoom in", "+", () => this.zoom(0.5)),
      this.button("Zoom out", "−", () => this.zoom(2)),
      this.button("Show all", "Show all", () => this.reset()));
    const bar = make("div", { className: "timeline-bar" }, this.legend, buttons);
    container.replaceChildren(bar, this.scroller, this.detail);
    this.listen();
    redrawOnChange(this.scroller, () => this.draw());
  }

  button(name, text, action) {
    const button = make("button", { type: "button", textContent: text, title: name });
    button.setAttribute("aria-label", name);
    button.addEventListener("click", action);
    return button;
  }

  /** Another timeline; the zoom is kept if `keep`. */
  show(view, keep = false) {
    const shares = this.view ? this.window.map((t) => t / this.view.makespan_ps) : [0, 1];
    this.view = view;
    this.window = keep ? shares.map((s) => s * view.makespan_ps) : [0, view.makespan_ps];
    this.selected = -1;
    this.heights = rowHeights(view.ranks);
    const { kernels, transfers, gap } = this.heights;
    this.rowHeight = kernels + 2 * transfers + gap;
    this.canvas.setAttribute("aria-label",
      `Timeline of ${view.name} ${view.pass}, ${view.ranks} ranks, ${seconds(view.makespan_ps * PICO)}. ${HELP}`);
    this.describe();
    this.drawLegend();
    this.draw();
  }

  /** Only the spans of `step` in full colour; null for all. */
  showStep(step) {
    this.step = step;
    this.draw();
  }

  drawLegend() {
    const used = new Set(this.view.spans.class);
    const entries = this.view.classes.map((kind, i) => [kind, i]).filter(([, i]) => used.has(i));
    const swatch = ([kind]) => {
      const box = make("span", { className: "swatch" });
      box.style.background = kind.hatching
        ? `repeating-linear-gradient(${kind.hatching[0]}deg, ${kind.colour} 0 3px, ${kind.hatching[1]} 3px 4.3px)`
        : visible(kind.colour);
      return make("li", {}, box, kind.name);
    };
    const idle = make("li", {}, make("span", { className: "swatch idle" }), "no kernel runs");
    this.legend.replaceChildren(...entries.map(swatch), idle);
  }

  top(rank, track) {
    const { kernels, transfers } = this.heights;
    return AXIS + rank * this.rowHeight + (track === 0 ? 0 : kernels + (track - 1) * transfers);
  }

  x(time) {
    const [from, to] = this.window;
    return GUTTER + ((time - from) / (to - from)) * (this.width - GUTTER);
  }

  time(x) {
    const [from, to] = this.window;
    return from + ((x - GUTTER) / (this.width - GUTTER)) * (to - from);
  }

  draw() {
    if (!this.view) return;
    this.width = Math.max(this.scroller.clientWidth, GUTTER + 60);
    const height = AXIS + this.view.ranks * this.rowHeight + 2;
    const context = sharpContext(this.canvas, this.width, height);
    this.patterns = this.view.classes.map((kind) => fill(context, kind));
    this.drawGround(context, height);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, this.width - GUTTER, height);
    context.clip();
    this.drawSpans(context);
    context.restore();
  }

  drawGround(context, height) {
    const [ink, grid] = [pageColour("--muted"), pageColour("--grid")];
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = ink;
    context.textBaseline = "middle";
    const every = Math.ceil(11 / this.rowHeight);
    context.textAlign = "right";
    for (let rank = 0; rank < this.view.ranks; rank += every) {
      context.fillText(rank === 0 ? "rank 0" : String(rank), GUTTER - 8, this.top(rank, 0) + this.heights.kernels / 2);
    }
    context.textAlign = "center";
    for (const tick of ticks(this.window, (this.width - GUTTER) / 90)) {
      const x = this.x(tick);
      context.fillStyle = grid;
      context.fillRect(Math.round(x), AXIS - 6, 1, height - AXIS + 6);
      context.fillStyle = ink;
      const label = tick === 0 ? "0" : seconds(tick * PICO, 3 + Math.max(0, Math.ceil(Math.log10(tick / (this.window[1] - this.window[0])))));
      const half = context.measureText(label).width / 2;
      context.fillText(label, Math.min(Math.max(x, GUTTER + half - 4), this.width - half - 2), 10);
    }
    context.fillStyle = pageColour("--idle");
    const [left, right] = [Math.max(this.x(0), GUTTER), Math.min(this.x(this.view.makespan_ps), this.width)];
    for (let rank = 0; rank < this.view.ranks; rank += 1) {
      context.fillRect(left, this.top(rank, 0), right - left, this.heights.kernels);
    }
  }

  drawSpans(context) {
    const { rank, class: kinds, step, start_ps: start, end_ps: end } = this.view.spans;
    const drawn = new Map();
    for (let i = 0; i < rank.length; i += 1) {
      if (end[i] < this.window[0] || start[i] > this.window[1]) continue;
      const track = this.view.classes[kinds[i]].track;
      const height = track === 0 ? this.heights.kernels : this.heights.transfers;
      if (height === 0) continue;
      const left = this.x(start[i]);
      const right = Math.max(this.x(end[i]), left + 0.75);
      const row = rank[i] * 3 + track;
      if (right < (drawn.get(row) ?? -1) + 0.25) continue;
      drawn.set(row, right);
      context.globalAlpha = this.step === null || step[i] === this.step ? 1 : 0.28;
      context.fillStyle = this.patterns[kinds[i]];
      const [y, h] = [this.top(rank[i], track), track === 0 ? height : height - 1];
      context.fillRect(left, y, right - left - (right - left > 3 ? 0.75 : 0), h);
      if (track === 0 && height > 12) this.inscribe(context, i, left, right, y + height / 2);
    }
    context.globalAlpha = 1;
    if (this.selected >= 0) this.outline(context, this.selected);
  }

  inscribe(context, i, left, right, y) {
    const { q, kv, rank, class: kinds, label } = this.view.spans;
    const texts = [this.view.labels[label[i]].replace(" masked", "").replace(" x ", " × ")];
    if (kv[i] >= 0 && q[i] >= 0) texts.push(q[i] === rank[i] ? `kv${kv[i]}` : `q${q[i]}`);
    const [from, to] = [Math.max(left, GUTTER), Math.min(right, this.width)];
    const text = texts.find((t) => context.measureText(t).width < to - from - 8);
    if (!text) return;
    const kind = this.view.classes[kinds[i]];
    if (kind.hatching) {
      const half = context.measureText(text).width / 2 + 3;
      context.fillStyle = kind.colour;
      context.fillRect((from + to) / 2 - half, y - 6, 2 * half, 12);
    }
    context.fillStyle = kind.ink;
    context.fillText(text, (from + to) / 2, y + 0.5);
  }

  outline(context, i) {
    const { rank, class: kinds, start_ps: start, end_ps: end } = this.view.spans;
    const track = this.view.classes[kinds[i]].track;
    const height = track === 0 ? this.heights.kernels : this.heights.transfers;
    context.strokeStyle = pageColour("--ink");
    context.lineWidth = 2;
    const left = this.x(start[i]);
    context.strokeRect(left, this.top(rank[i], track), Math.max(this.x(end[i]) - left, 2), height);
  }

  zoom(factor, about = (this.window[0] + this.window[1]) / 2) {
    const all = this.view.makespan_ps;
    const length = Math.min(Math.max((this.window[1] - this.window[0]) * factor, all / 1e5), all);
    const share = (about - this.window[0]) / (this.window[1] - this.window[0]);
    this.moveTo(about - share * length, length);
  }

  moveTo(from, length = this.window[1] - this.window[0]) {
    const start = Math.min(Math.max(from, 0), this.view.makespan_ps - length);
    this.window = [start, start + length];
    this.draw();
  }

  reset() {
    this.window = [0, this.view.makespan_ps];
    this.select(-1);
  }

  select(i) {
    this.selected = i;
    if (i >= 0) {
      const { start_ps: start, end_ps: end, rank } = this.view.spans;
      if (start[i] < this.window[0] || end[i] > this.window[1]) {
        this.moveTo((start[i] + end[i]) / 2 - (this.window[1] - this.window[0]) / 2);
      }
      const y = this.top(rank[i], 0);
      const { scrollTop, clientHeight } = this.scroller;
      if (y < scrollTop || y > scrollTop + clientHeight - 20) this.scroller.scrollTop = y - clientHeight / 2;
    }
    this.describe(i);
    this.draw();
  }

  describe(i = this.selected) {
    this.detail.textContent = i < 0 ? this.summary() : this.sentence(i);
  }

  summary() {
    const { makespan_ps: all, bubble_ratio: bubble } = this.view;
    return `${seconds(all * PICO)} in all, ${percent(bubble)} of GPU time without a kernel. Point at a bar for its details.`;
  }

  sentence(i) {
    const { rank, class: kinds, step, start_ps: start, end_ps: end, label, bytes: moved, flops: work } = this.view.spans;
    const length = (end[i] - start[i]) * PICO;
    const facts = [`rank ${rank[i]}, step ${step[i]}: ${this.view.labels[label[i]]}`, this.view.classes[kinds[i]].name,
      `${seconds(length)} from ${seconds(start[i] * PICO)} on`];
    if (moved[i] > 0) facts.push(`${bytes(moved[i])} at ${bytes(moved[i] / length)}/s`);
    if (work[i] > 0) facts.push(`${flops(work[i])} at ${significant(work[i] / length / 1e12)} TFLOP/s`);
    return facts.join(" · ");
  }

  /** The span at a place of the canvas, -1 for none. */
  at(x, y) {
    const { rank, class: kinds, start_ps: start, end_ps: end } = this.view.spans;
    const row = Math.floor((y - AXIS) / this.rowHeight);
    const inside = y - AXIS - row * this.rowHeight;
    const { kernels, transfers } = this.heights;
    const track = inside < kernels ? 0 : Math.min(1 + Math.floor((inside - kernels) / Math.max(transfers, 1)), 2);
    const [early, late] = [this.time(x - 1.5), this.time(x + 1.5)];
    return rank.findIndex((r, i) => r === row && this.view.classes[kinds[i]].track === track
      && start[i] <= late && end[i] >= early);
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("wheel", (event) => {
      if (!(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(event.offsetX));
    }, { passive: false });
    let grabbed = null;
    canvas.addEventListener("pointerdown", (event) => {
      grabbed = { x: event.offsetX, from: this.window[0] };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.view) return;
      if (grabbed) {
        const perPixel = (this.window[1] - this.window[0]) / (this.width - GUTTER);
        this.moveTo(grabbed.from - (event.offsetX - grabbed.x) * perPixel);
      } else {
        this.hover(this.at(event.offsetX, event.offsetY));
      }
    });
    canvas.addEventListener("pointerup", (event) => {
      if (grabbed && Math.abs(event.offsetX - grabbed.x) < 4) this.select(this.at(event.offsetX, event.offsetY));
      grabbed = null;
    });
    canvas.addEventListener("pointercancel", () => { grabbed = null; });
    canvas.addEventListener("pointerleave", () => this.view && this.describe());
    canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.time(event.offsetX)));
  }

  hover(i) {
    this.describe(i >= 0 ? i : this.selected);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.view) return;
    const length = this.window[1] - this.window[0];
    const last = this.view.spans.rank.length - 1;
    const actions = {
      "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), "0": () => this.reset(),
      ArrowLeft: () => this.moveTo(this.window[0] - length / 8), ArrowRight: () => this.moveTo(this.window[0] + length / 8),
      n: () => this.select(Math.min(this.selected + 1, last)), p: () => this.select(Math.max(this.selected - 1, 0)),
      Escape: () => this.select(-1),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
}

/** Black is the page's ink, which is white on a dark page. */
function visible(colour) {
  return colour === "#000000" ? pageColour("--ink") : colour;
}

/** The paint of a kind of span. */
function fill(context, kind) {
  if (!kind.hatching) return visible(kind.colour);
  const size = 7;
  const tile = make("canvas", { width: size, height: size });
  const pen = tile.getContext("2d");
  pen.fillStyle = kind.colour;
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = kind.hatching[1];
  pen.lineWidth = 1.4;
  const down = kind.hatching[0] >= 0 ? 1 : -1;
  for (const shift of [-size, 0, size]) {
    pen.beginPath();
    pen.moveTo(shift - 1, down > 0 ? size + 1 : -1);
    pen.lineTo(shift + size + 1, down > 0 ? -1 : size + 1);
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}

/** About `wanted` round times in a window. */
function ticks([from, to], wanted) {
  const rough = (to - from) / Math.max(wanted, 2);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? 10 * power;
  const found = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) found.push(Math.round(t));
  return found;
}
