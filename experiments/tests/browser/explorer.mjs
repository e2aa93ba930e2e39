// What the explorer does: its numbers are the command line's, its links and files reproduce it, the keyboard suffices.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { agrees, change, settled, shownRows } from "./harness.mjs";

/** The schedules that the page starts with. */
const FOUR = ["--schedule", "ring,zigzag,striped,dist-flash"];

async function assertShows(page, rows) {
  const shown = await shownRows(page);
  assert.deepEqual(Object.keys(shown), rows.map((row) => row.schedule));
  for (const row of rows) {
    const cells = shown[row.schedule];
    assert.ok(agrees(cells.Time, row.makespan_s), `${row.schedule}: ${cells.Time} is not ${row.makespan_s} s`);
    assert.equal(cells["vs ring"], `${row.speedup_vs_ring.toFixed(2)}×`);
    assert.equal(cells.Bound, `${row.bound_speedup_vs_ring.toFixed(2)}×`);
    assert.equal(cells.Bubble, `${(100 * row.bubble_ratio).toFixed(1)} %`);
  }
}

export async function sliders_show_the_command_lines_numbers(harness) {
  const page = await harness.explore();
  await assertShows(page, harness.simulate(...FOUR, "--pad"));
  await change(page, () => page.locator("#seq-slider").press("ArrowRight"));
  await assertShows(page, harness.simulate(...FOUR, "--pad", "--seq", "256Ki"));
  await change(page, () => page.locator("#cp-slider").fill("5"));
  await assertShows(page, harness.simulate(...FOUR, "--pad", "--seq", "256Ki", "--cp", "5"));
  await change(page, () => page.locator("#link_bandwidth").fill("4"));
  const rate = await page.locator("#link_bandwidth-value").textContent();
  assert.equal(rate, "2 GB/s");
  await assertShows(page, harness.simulate(...FOUR, "--pad", "--seq", "256Ki", "--cp", "5", "--link-bandwidth", rate));
  await change(page, () => page.locator("#link_bandwidth-reset").click());
  await change(page, () => page.getByText("Both", { exact: true }).click());
  await assertShows(page, harness.simulate(...FOUR, "--pad", "--seq", "256Ki", "--cp", "5", "--pass", "forward+backward"));
}

export async function every_control_reaches_the_command(harness) {
  const page = await harness.explore();
  await page.locator(".more > summary").click();
  const steps = [
    () => page.locator("#cluster").selectOption("h100-2x8-rail"),
    () => page.locator("#model").selectOption("qwen2.5-7b"),
    () => page.locator("#nic_bandwidth").fill("8"),
    () => page.locator("#mask").selectOption("window"),
    () => page.locator("#mask-detail").fill("16Ki").then(() => page.locator("#mask-detail").press("Enter")),
    () => page.locator("#stripe").fill("6"),
    () => page.locator("#schedule-ring").uncheck(),
    () => page.locator("#transport").selectOption("nccl"),
    () => page.locator("#route").selectOption("direct"),
    () => page.locator("#chunks").fill("2"),
    () => page.locator("#prefetch").fill("2"),
    () => page.locator("#slow-rank").fill("3").then(() => page.locator("#slow-factor").fill("1.5")),
    () => page.locator("#dtype").selectOption("fp16"),
    () => page.locator("#batch").fill("2").then(() => page.locator("#batch").press("Tab")),
    () => page.locator("#needed_only").check(),
    () => page.locator("#pad").uncheck(),
    () => page.getByText("Backward", { exact: true }).click(),
  ];
  for (const step of steps) await change(page, step);
  const command = await page.locator("#command").textContent();
  assert.equal(command, "ringlab simulate --cluster h100-2x8-rail --nic-bandwidth '4 GB/s' --model qwen2.5-7b --seq 128Ki "
    + "--mask window:16Ki --batch 2 --dtype fp16 --schedule zigzag,striped:64,dist-flash --pass backward --transport nccl "
    + "--route direct --chunks 2 --prefetch 2 --needed-only --straggler 3:1.5");
  const words = command.replaceAll("'4 GB/s'", "4GB/s").split(" ").slice(2);
  await assertShows(page, harness.simulate(...words.map((word) => (word === "4GB/s" ? "4 GB/s" : word))));
}

export async function a_link_reproduces_the_page(harness) {
  const page = await harness.explore("#cp=6&seq=96Ki&show=dist-flash");
  await change(page, () => page.locator("#mask").selectOption("docs"));
  await change(page, () => page.locator("#stripe").fill("3"));
  const other = await harness.explore(new URL(page.url()).hash);
  const controls = (p) => p.evaluate(() => [...document.querySelectorAll("form input, form select")].map((c) => [c.id || c.value, c.type.match(/checkbox|radio/) ? c.checked : c.value]));
  assert.deepEqual(await controls(other), await controls(page));
  assert.deepEqual(await shownRows(other), await shownRows(page));
  assert.equal(await other.locator("#detail-title").textContent(), "dist-flash, forward");
  assert.equal(await other.locator("#command").textContent(), await page.locator("#command").textContent());
}

export async function the_download_runs_on_the_command_line(harness) {
  const page = await harness.explore("#cp=12&seq=1Mi&cluster=h100-2x8-rail&schedule=ring,striped:16");
  await change(page, () => page.locator("#model").selectOption("own"));
  const config = JSON.stringify({
    model_type: "llama", num_hidden_layers: 2, hidden_size: 2048, num_attention_heads: 16, num_key_value_heads: 4,
    intermediate_size: 8192, vocab_size: 32000,
  }, null, 1);
  await change(page, () => page.locator("#model-text").fill(config));
  assert.match(await page.locator("#setup").textContent(), /^16 query and 4 kv heads of 128/);
  const [download] = await Promise.all([page.waitForEvent("download"), page.locator("#download").click()]);
  assert.equal(download.suggestedFilename(), "ringlab.toml");
  await download.saveAs(path.join(harness.folder, "ringlab.toml"));
  assert.match(readFileSync(path.join(harness.folder, "ringlab.toml"), "utf8"), /"num_attention_heads": 16/);
  assert.equal(await page.locator("#command").textContent(), "ringlab simulate --run ringlab.toml");
  await assertShows(page, harness.simulate("--run", "ringlab.toml"));
  const other = await harness.explore(new URL(page.url()).hash);
  assert.deepEqual(await shownRows(other), await shownRows(page), "a link holds the text as well");
}

export async function mistakes_are_explained_and_undone(harness) {
  const page = await harness.explore();
  const before = await shownRows(page);
  const wrong = async (text) => {
    await page.locator("#seq").fill(text);
    await page.locator("#seq").press("Enter");
    await page.locator("#error").waitFor({ state: "visible" });
    return page.locator("#error-text").textContent();
  };
  assert.match(await wrong("12 apples"), /invalid value '12 apples' for '--seq/);
  assert.deepEqual(await shownRows(page), before, "the last results stay in sight");
  assert.ok(await page.locator("#results.stale").isVisible());
  await page.locator("#seq").fill("128Ki");
  await page.locator("#seq").press("Enter");
  await page.locator("#error").waitFor({ state: "hidden" });
  await settled(page);
  // Browsers report a refused request by themselves.
  harness.complaints = harness.complaints.filter((c) => !c.includes("status of 400"));
  await change(page, () => page.locator("#mask").selectOption("full"));
  assert.match(await page.locator("#remarks").textContent(), /dist-flash.*causal masks only/);
  await assertShows(page, harness.simulate("--schedule", "ring,zigzag,striped", "--pad", "--mask", "full"));
}

export async function the_keyboard_suffices(harness) {
  const page = await harness.explore();
  const reached = new Set();
  for (let i = 0; i < 90; i += 1) {
    await page.keyboard.press("Tab");
    const found = await page.evaluate(() => {
      const element = document.activeElement;
      const styles = [element, element.nextElementSibling].filter(Boolean).map((e) => getComputedStyle(e));
      const seen = styles.some((s) => s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 1);
      const tag = element.id || element.getAttribute("name") || element.className || element.tagName;
      return { tag, seen, isBody: element === document.body };
    });
    if (found.isBody) break;
    assert.ok(found.seen, `${found.tag} shows no focus`);
    reached.add(found.tag);
  }
  for (const id of ["skip", "seq-slider", "cp", "mask", "pass", "cluster", "link_bandwidth", "shown", "play", "step", "matrix", "timeline-canvas", "copy-link", "download"]) {
    assert.ok(reached.has(id), `${id} is not reached by Tab: ${[...reached].join(", ")}`);
  }
  await page.locator("input[name=shown]:checked").focus();
  await change(page, () => page.keyboard.press("ArrowUp"));
  assert.equal(await page.locator("#detail-title").textContent(), "ring, forward");
  await page.locator("#timeline canvas").focus();
  await page.keyboard.press("n");
  assert.match(await page.locator(".timeline-detail").textContent(), /^rank 0, step 1: KeyValue of 0: 0 -> 1 · send · /);
  await page.locator("#matrix").focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  assert.match(await page.locator("#matrix-text").textContent(), /^query 1 of rank 0, key 0 of rank 0: computed by rank 0 in step 0$/);
  await page.locator("#step").press("ArrowRight");
  assert.match(await page.locator("#step-text").textContent(), /^Step 1: 7 of 8 ranks compute/);
}

export async function playing_moves_unless_motion_is_unwanted(harness) {
  for (const [reducedMotion, packets] of [["no-preference", true], ["reduce", false]]) {
    const page = await harness.explore("", { reducedMotion });
    await page.locator("#play").click();
    await page.waitForTimeout(400);
    assert.equal(await page.locator(".ring-packet").count() > 0, packets, reducedMotion);
    await page.waitForFunction(() => document.getElementById("step").value === "1");
    await page.locator("#play").click();
    assert.equal(await page.locator("#play").textContent(), "Play");
  }
}

export async function answers_come_at_once(harness) {
  const notes = [];
  for (const ranks of [8, 64]) {
    const page = await harness.explore(`#cluster=h100-8x8-rail&cp=${ranks}&seq=1Mi`);
    const times = [];
    for (let i = 0; i < 9; i += 1) {
      await change(page, () => page.locator("#link_bandwidth").fill(String(20 + i)));
      times.push(Number(await page.evaluate(() => document.getElementById("status").dataset.ms)));
    }
    const median = times.sort((a, b) => a - b)[4];
    notes.push(`P = ${ranks}: ${Math.round(median)} ms from change to picture`);
    assert.ok(median < 1000, notes.at(-1));
  }
  return notes.join(", ");
}
