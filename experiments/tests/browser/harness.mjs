// A running explorer, a browser that reports every error and every foreign request, and the command line.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";

const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

export class Harness {
  constructor(binary, modules, chromium) {
    this.binary = path.resolve(binary);
    this.playwright = createRequire(path.resolve(modules, "package.json"))("playwright-core");
    this.executablePath = chromium;
    this.folder = mkdtempSync(path.join(tmpdir(), "ringlab-browser-"));
    this.complaints = [];
  }

  async start() {
    this.server = spawn(this.binary, ["explore"], { stdio: ["ignore", "pipe", "ignore"] });
    this.address = await new Promise((resolve, reject) => {
      this.server.stdout.once("data", (data) => resolve(String(data).trim()));
      this.server.once("exit", (code) => reject(new Error(`ringlab explore ended with ${code}`)));
    });
    this.browser = await this.playwright.chromium.launch({ executablePath: this.executablePath, headless: true, args: FLAGS });
  }

  async stop() {
    await this.browser?.close();
    this.server?.kill();
    rmSync(this.folder, { recursive: true });
  }

  /** A page in a context of its own; `options` as of the browser's contexts. */
  async open(url, options = {}) {
    const context = await this.browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
    await context.grantPermissions([]);
    const page = await context.newPage();
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) this.complaints.push(`console: ${message.text()}`);
    });
    page.on("pageerror", (error) => this.complaints.push(`uncaught: ${error.message}`));
    page.on("request", (request) => {
      const own = request.url().startsWith(this.address) || /^(blob|file):/.test(request.url());
      if (!own) this.complaints.push(`foreign request: ${request.url()}`);
    });
    await page.goto(url);
    return page;
  }

  /** The explorer, after its first answer. */
  async explore(hash = "", options = {}) {
    const page = await this.open(`${this.address}${hash}`, options);
    await settled(page);
    return page;
  }

  /** The command line's standard output. */
  ringlab(...args) {
    return execFileSync(this.binary, args, { cwd: this.folder, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  }

  /** `simulate`'s rows. */
  simulate(...args) {
    return JSON.parse(this.ringlab("simulate", "--format", "json", ...args)).results;
  }
}

/** Waits until the page shows what its controls say. */
export async function settled(page) {
  await page.waitForFunction(() => {
    const status = document.getElementById("status");
    return !status.dataset.busy && /updated/.test(status.textContent);
  });
}

/** Does `action` and waits for the answer to it. */
export async function change(page, action) {
  await page.evaluate(() => { delete document.getElementById("status").dataset.ms; });
  await action();
  await page.waitForFunction(() => document.getElementById("status").dataset.ms);
  await settled(page);
}

/** The table of schedules: `{ zigzag: { Time: "27.45 ms", ... } }`. */
export function shownRows(page) {
  return page.evaluate(() => Object.fromEntries([...document.querySelectorAll("#schedule-rows tr")].map((row) => {
    const cells = [...row.querySelectorAll("td")].map((cell) => [cell.dataset.heading, cell.querySelector("span").textContent]);
    return [row.querySelector("th").textContent.trim(), Object.fromEntries(cells)];
  })));
}

const SECONDS = { s: 1, ms: 1e-3, "µs": 1e-6, ns: 1e-9 };

/** `27.45 ms` in seconds. */
export function secondsOf(text) {
  const [, number, unit] = /^([\d.]+) (s|ms|µs|ns)$/.exec(text);
  return Number(number) * SECONDS[unit];
}

/** Whether four shown digits are those of `value`. */
export function agrees(text, value) {
  return Math.abs(secondsOf(text) - value) <= 6e-4 * value;
}
