// Which step is shown: a slider, single steps, playing.

const STEP_MS = 1100;
/** Share of a step in which its messages travel; then the picture rests. */
const TRAVEL = 0.7;

const byId = (id) => document.getElementById(id);

/** The step control; `draw` gets the step and how far its messages are, null for no motion. */
export class Steps {
  constructor(draw) {
    this.draw = draw;
    this.step = 0;
    this.count = 1;
    this.frame = null;
    this.still = window.matchMedia("(prefers-reduced-motion: reduce)");
    byId("step").addEventListener("input", (event) => this.jump(Number(event.target.value)));
    byId("step-back").addEventListener("click", () => this.jump((this.step + this.count - 1) % this.count));
    byId("step-on").addEventListener("click", () => this.jump((this.step + 1) % this.count));
    byId("play").addEventListener("click", () => (this.frame === null ? this.play() : this.stop()));
  }

  /** Another number of steps; the shown one is kept where there is one. */
  setCount(count) {
    this.count = Math.max(count, 1);
    byId("step").max = String(this.count - 1);
    this.show(Math.min(this.step, this.count - 1));
  }

  jump(step) {
    this.stop();
    this.show(step);
  }

  show(step, progress = null) {
    this.step = step;
    byId("step").value = String(step);
    byId("step").setAttribute("aria-valuetext", `step ${step}`);
    this.draw(step, progress);
  }

  play() {
    byId("play").textContent = "Pause";
    let began = performance.now();
    const turn = (now) => {
      if (now - began >= STEP_MS) {
        began = now;
        this.show((this.step + 1) % this.count, this.still.matches ? null : 0);
      } else if (!this.still.matches) {
        this.draw(this.step, Math.min((now - began) / STEP_MS / TRAVEL, 1));
      }
      this.frame = requestAnimationFrame(turn);
    };
    this.frame = requestAnimationFrame(turn);
  }

  stop() {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.frame = null;
    byId("play").textContent = "Play";
  }
}
