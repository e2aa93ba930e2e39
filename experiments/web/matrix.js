// The q x kv matrix: which rank computes which pair, in which step.
import { pageColour, redrawOnChange, sharpContext } from "./canvas.js";
import { tokens } from "./format.js";
import { channels, rankColour, stepColour } from "./palette.js";

const STRIP = 9;
const MARGIN = 18;

/** Draws the coverage in `canvas` and says in `output` what is under the pointer. */
export class Matrix {
  constructor(canvas, output) {
    this.canvas = canvas;
    this.output = output;
    this.cursor = null;
    this.by = "rank";
    this.step = 0;
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.say(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    redrawOnChange(canvas.parentElement, () => this.draw());
  }

  show(coverage, ranks, steps) {
    Object.assign(this, { coverage, ranks, steps, cursor: null });
    this.say(null);
  }

  /** Colours by `rank` or `step`, with the pairs of step `t` in full colour; `null` for all. */
  highlight(by, t) {
    this.by = by;
    this.step = t;
    this.draw();
  }

  draw() {
    if (!this.coverage) return;
    const size = Math.min(this.canvas.parentElement.clientWidth, 400);
    this.canvas.style.width = `${size}px`;
    const context = sharpContext(this.canvas, size, size);
    this.inner = size - STRIP - MARGIN;
    context.imageSmoothingEnabled = false;
    const { side } = this.coverage;
    const image = new OffscreenCanvas(side, side);
    image.getContext("2d").putImageData(this.pixels(), 0, 0);
    context.drawImage(image, MARGIN + STRIP, MARGIN + STRIP, this.inner, this.inner);
    this.drawOwners(context);
    this.drawFrame(context, size);
  }

  pixels() {
    const { side, rank, step } = this.coverage;
    const data = new ImageData(side, side);
    const masked = channels(pageColour("--masked"));
    const ground = channels(pageColour("--panel"));
    const colours = Array.from({ length: this.by === "rank" ? this.ranks : this.steps }, (_, i) =>
      channels(this.by === "rank" ? rankColour(i, this.ranks) : stepColour(i, this.steps)));
    for (let i = 0; i < side * side; i += 1) {
      const value = this.by === "rank" ? rank[i] : step[i];
      let colour = value < 0 ? masked : colours[value];
      if (value >= 0 && this.step !== null && step[i] !== this.step) {
        colour = colour.map((c, j) => Math.round(0.2 * c + 0.8 * ground[j]));
      }
      data.data.set([...colour, 255], 4 * i);
    }
    return data;
  }

  drawOwners(context) {
    const { side, owner } = this.coverage;
    const cell = this.inner / side;
    for (let i = 0; i < side; i += 1) {
      context.fillStyle = rankColour(owner[i], this.ranks);
      context.fillRect(MARGIN + STRIP + i * cell, MARGIN, cell + 0.5, STRIP - 3);
      context.fillRect(MARGIN, MARGIN + STRIP + i * cell, STRIP - 3, cell + 0.5);
    }
  }

  drawFrame(context, size) {
    context.fillStyle = pageColour("--muted");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillText("keys and values by position →", MARGIN + STRIP, 8);
    context.save();
    context.translate(8, MARGIN + STRIP);
    context.rotate(-Math.PI / 2);
    context.textAlign = "right";
    context.fillText("← queries by position", 0, 0);
    context.restore();
    context.strokeStyle = pageColour("--line");
    context.strokeRect(MARGIN + STRIP - 0.5, MARGIN + STRIP - 0.5, this.inner, this.inner);
    if (this.cursor) {
      const cell = this.inner / this.coverage.side;
      context.strokeStyle = pageColour("--ink");
      context.lineWidth = 2;
      context.strokeRect(MARGIN + STRIP + this.cursor[1] * cell, MARGIN + STRIP + this.cursor[0] * cell, cell, cell);
    }
  }

  point(event) {
    if (!this.coverage) return;
    const { side } = this.coverage;
    const cellOf = (offset) => Math.floor(((offset - MARGIN - STRIP) / this.inner) * side);
    const [q, kv] = [cellOf(event.offsetY), cellOf(event.offsetX)];
    const inside = q >= 0 && kv >= 0 && q < side && kv < side;
    this.say(inside ? [q, kv] : null);
  }

  key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (!move || !this.coverage) return;
    event.preventDefault();
    const last = this.coverage.side - 1;
    const [q, kv] = this.cursor ?? [0, 0];
    const clamp = (n) => Math.min(Math.max(n, 0), last);
    this.say(this.cursor ? [clamp(q + move[0]), clamp(kv + move[1])] : [0, 0]);
  }

  say(cell) {
    this.cursor = cell;
    this.output.textContent = cell ? this.sentence(cell) : this.scaleNote();
    this.draw();
  }

  sentence([q, kv]) {
    const { side, rank, step, owner } = this.coverage;
    const i = q * side + kv;
    const whose = `query ${q} of rank ${owner[q]}, key ${kv} of rank ${owner[kv]}`;
    return rank[i] < 0 ? `${whose}: masked` : `${whose}: computed by rank ${rank[i]} in step ${step[i]}`;
  }

  scaleNote() {
    const { side, scale } = this.coverage;
    const real = Number.isInteger(scale) ? tokens(scale) : `about ${Math.round(scale)}`;
    const drawn = scale === 1 ? "Every pair is drawn." : `Drawn with ${side} positions, one for ${real} tokens.`;
    const heads = this.coverage.heads_divided ? " This is the first head; other ranks compute the others." : "";
    return `${drawn} The edges show who owns a position.${heads}`;
  }
}
