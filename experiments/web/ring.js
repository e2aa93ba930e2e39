// The ring of ranks in one step: who computes which block, and what travels.
import { bytes, count } from "./format.js";
import { inkOn, rankColour } from "./palette.js";

const SIZE = 400;
const CENTRE = SIZE / 2;
/** A span's queries or keys that are nobody's; below that, those of several ranks. */
const NOBODY = -1;
const MOST_ARROWS = 300;
const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** What every step does: kernels by rank, and the messages that travel meanwhile, which the next step needs. */
export function stepsOf(view) {
  const { rank, class: kinds, step, q, kv, peer, bytes: moved, label } = view.spans;
  const attends = [];
  const messages = [];
  for (let i = 0; i < rank.length; i += 1) {
    const kind = view.classes[kinds[i]];
    if (kind.track === 0 && kv[i] !== NOBODY) {
      (attends[step[i]] ??= []).push({ rank: rank[i], q: q[i], kv: kv[i], label: view.labels[label[i]] });
    } else if (kind.track === 1) {
      const message = { from: rank[i], to: peer[i], owner: kv[i] >= 0 ? kv[i] : Math.max(q[i], 0), isKv: kv[i] !== NOBODY, bytes: moved[i], label: view.labels[label[i]] };
      (messages[Math.max(step[i] - 1, 0)] ??= []).push(message);
    }
  }
  return Array.from(attends, (a, t) => ({ attends: a ?? [], messages: messages[t] ?? [] }));
}

/** One message for each pair of ranks; none where there are too many arrows to tell apart. */
function distinct(messages) {
  const pairs = new Map(messages.map((message) => [`${message.from} ${message.to}`, message]));
  return pairs.size <= MOST_ARROWS ? [...pairs.values()] : [];
}

/** What a rank computes, in a few letters. */
function shortName({ rank, q, kv }) {
  if (kv < 0) return "many kv";
  return q >= 0 && q !== rank ? `q${q}×${kv}` : `kv ${kv}`;
}

/** Draws the ring in `svg`. */
export class Ring {
  constructor(svg) {
    this.svg = svg;
    svg.setAttribute("viewBox", `0 0 ${SIZE} ${SIZE}`);
  }

  show(view, steps) {
    this.ranks = view.ranks;
    this.steps = steps;
    this.radius = this.ranks > 1 ? 158 : 0;
    this.node = Math.min(30, Math.max(3, (Math.PI * this.radius) / this.ranks * 0.72 || 40));
  }

  place(rank, radius = this.radius) {
    const angle = (2 * Math.PI * rank) / this.ranks - Math.PI / 2;
    return [CENTRE + radius * Math.cos(angle), CENTRE + radius * Math.sin(angle)];
  }

  /** Draws step `t`; messages are `progress` of their way. */
  draw(t, progress = null) {
    const { attends, messages } = this.steps[t];
    this.svg.replaceChildren();
    this.svg.append(shape("circle", { cx: CENTRE, cy: CENTRE, r: this.radius, class: "ring-track" }));
    for (const message of distinct(messages)) this.drawMessage(message, progress);
    for (let rank = 0; rank < this.ranks; rank += 1) this.drawRank(rank, attends.filter((a) => a.rank === rank));
    this.svg.append(
      shape("text", { x: CENTRE, y: CENTRE - (this.ranks > 1 ? 10 : 70), class: "ring-step" }, `step ${t}`),
      shape("text", { x: CENTRE, y: CENTRE + (this.ranks > 1 ? 16 : -46), class: "ring-note" }, `of 0 to ${this.steps.length - 1}`));
    this.svg.setAttribute("aria-label", this.sentence(t));
  }

  drawRank(rank, attends) {
    const [x, y] = this.place(rank);
    const first = attends[0];
    const colour = first ? rankColour(first.kv >= 0 ? first.kv : rank, this.ranks) : "";
    const circle = shape("circle", { cx: x, cy: y, r: this.node, class: first ? "ring-rank" : "ring-rank idle" });
    if (first) circle.setAttribute("fill", colour);
    const title = attends.map((a) => a.label).join(", ") || "no attention in this step";
    circle.append(shape("title", {}, `rank ${rank}: ${title}`));
    this.svg.append(circle);
    if (this.ranks > 24) return;
    const ink = first ? inkOn(colour) : "";
    const big = this.node >= 20;
    const name = shape("text", { x, y: big ? y - 5 : y, class: "ring-name" }, String(rank));
    if (ink) name.style.fill = ink;
    this.svg.append(name);
    if (!big) return;
    const what = shape("text", { x, y: y + 10, class: "ring-what" }, first ? shortName(first) : "idle");
    if (ink) what.style.fill = ink;
    this.svg.append(what);
  }

  drawMessage({ from, to, owner, isKv, label }, progress) {
    const [[x1, y1], [x2, y2]] = [this.place(from), this.place(to)];
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const [dx, dy] = [(x2 - x1) / length, (y2 - y1) / length];
    const gap = this.node + 3;
    if (length < 2 * gap + 4) return;
    const [ax, ay, bx, by] = [x1 + dx * gap, y1 + dy * gap, x2 - dx * gap, y2 - dy * gap];
    const colour = rankColour(owner, this.ranks);
    const line = shape("line", { x1: ax, y1: ay, x2: bx, y2: by, class: isKv ? "ring-message" : "ring-message other" });
    line.append(shape("title", {}, label));
    const tip = Math.min(9, length / 4);
    const head = [[bx, by], [bx - dx * tip - dy * tip * 0.5, by - dy * tip + dx * tip * 0.5], [bx - dx * tip + dy * tip * 0.5, by - dy * tip - dx * tip * 0.5]];
    this.svg.append(line, shape("polygon", { points: head.map((p) => p.join(",")).join(" "), class: "ring-head" }));
    if (progress === null) return;
    const packet = shape("rect", { x: ax + (bx - ax) * progress - 5, y: ay + (by - ay) * progress - 5, width: 10, height: 10, rx: 2, class: "ring-packet" });
    packet.setAttribute("fill", colour);
    this.svg.append(packet);
  }

  /** What the step does, in words. */
  sentence(t) {
    const { attends, messages } = this.steps[t];
    const busy = new Set(attends.map((a) => a.rank)).size;
    const helpers = new Set(attends.filter((a) => a.q >= 0 && a.q !== a.rank).map((a) => a.rank)).size;
    const moved = messages.reduce((sum, m) => sum + m.bytes, 0);
    const parts = [`Step ${t}: ${busy} of ${count(this.ranks, "rank")} ${busy === 1 ? "computes" : "compute"}`];
    if (helpers > 0) parts.push(`${helpers} of them for another rank`);
    const sent = messages.length > 0 ? `${bytes(moved)} in ${count(messages.length, "message")}` : "nothing";
    return `${parts.join(", ")}; ${t + 1 < this.steps.length ? `for the next step, ${sent} is sent` : `${sent} is left to send`}.`;
  }
}
