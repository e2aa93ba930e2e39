// How it looks: on a narrow screen, in both colour schemes, to assistive technology.
import assert from "node:assert/strict";
import path from "node:path";

const PHONE = { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true };

/** Elements that stick out of the page to the right. */
function overflow(page) {
  return page.evaluate(() => {
    const width = document.documentElement.clientWidth;
    const inScroller = (e) => e.closest(".scroll, .hidden-text, thead");
    const out = [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > width + 0.5 && !inScroller(e));
    return { scroll: document.documentElement.scrollWidth - width, out: out.slice(0, 3).map((e) => e.id || e.className || e.tagName) };
  });
}

async function openAll(page) {
  await page.evaluate(() => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
}

export async function a_phone_needs_no_sideways_scrolling(harness) {
  const hashes = ["", "#cluster=h100-8x8-rail&cp=64&seq=1Mi&pass=forward%2Bbackward", "#mask=docs%3A30000%2C90000%2C11072&seq=", "#show=dist-flash&link_bandwidth=2+GB%2Fs"];
  for (const hash of hashes) {
    const page = await harness.explore(hash, PHONE);
    await openAll(page);
    assert.deepEqual(await overflow(page), { scroll: 0, out: [] }, hash);
  }
  const page = await harness.open(`${harness.address}#seq=nonsense`, PHONE);
  await page.locator("#error").waitFor({ state: "visible" });
  assert.deepEqual(await overflow(page), { scroll: 0, out: [] });
  harness.complaints = harness.complaints.filter((c) => !c.includes("400"));
}

/** Texts whose contrast with what is behind them is below WCAG's 4.5, or 3 for large ones. */
function faintTexts(page) {
  return page.evaluate(() => {
    const channels = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
    const luminance = ([r, g, b]) => {
      const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const behind = (element) => {
      for (let e = element; e; e = e.parentElement) {
        const colour = channels(getComputedStyle(e).backgroundColor);
        if (colour.length === 3 || colour[3] === 1) return colour;
      }
      return [255, 255, 255];
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const faint = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement;
      const box = element.getBoundingClientRect();
      if (!node.textContent.trim() || box.width < 2 || element.closest("script, style, svg, option, .hidden-text")) continue;
      const style = getComputedStyle(element);
      if (style.visibility === "hidden") continue;
      const [a, b] = [luminance(channels(style.color)), luminance(behind(element))].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05);
      const large = parseFloat(style.fontSize) >= 24;
      if (ratio < (large ? 3 : 4.5)) faint.push(`${node.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return faint;
  });
}

export async function texts_have_contrast_in_both_schemes(harness) {
  harness.ringlab("simulate", "--report", "looks.html", "-o", "looks.txt");
  for (const colorScheme of ["light", "dark"]) {
    const page = await harness.explore("#mask=full&link_bandwidth=9+GB%2Fs", { colorScheme });
    await openAll(page);
    await page.waitForTimeout(200);
    assert.deepEqual(await faintTexts(page), [], colorScheme);
    const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(ground, colorScheme === "dark" ? "rgb(16, 21, 27)" : "rgb(244, 245, 247)");
    const report = await harness.open(`file://${path.join(harness.folder, "looks.html")}`, { colorScheme });
    await openAll(report);
    assert.deepEqual(await faintTexts(report), [], `report, ${colorScheme}`);
  }
}

export async function everything_has_a_name(harness) {
  const page = await harness.explore();
  await openAll(page);
  const nameless = await page.evaluate(() => [...document.querySelectorAll("input, select, textarea, button, canvas, svg, [role]")].filter((e) => {
    const labels = [...(e.labels ?? [])].map((l) => l.textContent).join("");
    return !(labels + (e.getAttribute("aria-label") ?? "") + (e.tagName === "svg" || e.tagName === "CANVAS" ? "" : e.textContent)).trim();
  }).map((e) => e.outerHTML.slice(0, 90)));
  assert.deepEqual(nameless.filter((html) => !html.includes("aria-live")), []);
  const twice = await page.evaluate(() => {
    const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
    return ids.filter((id, i) => ids.indexOf(id) !== i);
  });
  assert.deepEqual(twice, []);
  assert.equal(await page.locator("h1").count(), 1);
  assert.equal(await page.evaluate(() => document.documentElement.lang), "en");
}
