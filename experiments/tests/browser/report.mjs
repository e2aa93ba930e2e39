// A report opened as a file.
import assert from "node:assert/strict";
import path from "node:path";

export async function a_report_sorts_zooms_and_asks_for_nothing(harness) {
  const rows = harness.simulate("--pass", "forward+backward", "--report", "report.html");
  const page = await harness.open(`file://${path.join(harness.folder, "report.html")}`);
  const requests = [];
  page.on("request", (request) => requests.push(request.url()));
  await page.reload();
  assert.equal(requests.length, 1, requests.join("\n"));

  const names = () => page.locator("table.sortable").first().locator("tbody tr td:first-child").allTextContents();
  const by = (key) => [...rows].sort((a, b) => key(a) - key(b)).map((r) => r.schedule);
  const heading = page.locator("th", { hasText: /^time/ });
  await heading.getByRole("button").click();
  assert.deepEqual(await names(), by((r) => r.makespan_s));
  assert.equal(await heading.getAttribute("aria-sort"), "ascending");
  await heading.getByRole("button").press("Enter");
  assert.deepEqual(await names(), by((r) => -r.makespan_s));
  await page.locator("th", { hasText: /^memory/ }).getByRole("button").click();
  assert.equal((await names()).at(-1), by((r) => r.peak_memory_bytes).at(-1));
  assert.equal(await heading.getAttribute("aria-sort"), "none");
  await page.locator("th", { hasText: /^schedule/ }).getByRole("button").click();
  assert.deepEqual(await names(), rows.map((r) => r.schedule).sort());

  assert.equal(await page.locator(".timeline canvas").count(), 2 * rows.length);
  const first = page.locator(".timeline").first();
  const picture = () => first.locator("canvas").evaluate((canvas) => canvas.toDataURL());
  const whole = await picture();
  await first.getByRole("button", { name: "Zoom in" }).click();
  assert.notEqual(await picture(), whole);
  await first.getByRole("button", { name: "Show all" }).click();
  assert.equal(await picture(), whole);
  await first.locator("canvas").hover({ position: { x: 70, y: 33 } });
  assert.match(await first.locator("output").textContent(), /^rank 0, step 0: q0 x kv0 masked · own queries, masked block · .* TFLOP\/s$/);
  assert.match(await page.locator("pre").textContent(), /simulate --format json --pass forward\+backward --report report\.html$/);

  const phone = await harness.open(page.url(), { viewport: { width: 360, height: 740 } });
  assert.equal(await phone.evaluate(() => document.documentElement.scrollWidth), 360);
}
