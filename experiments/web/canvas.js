// What drawings share: sharp pixels, the page's colours, redrawing when either changes.

/** Fits `canvas` to `width` by `height` CSS pixels and returns its context in those units. */
export function sharpContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** The value of a custom property of the page, such as `--ink`. */
export function pageColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Calls `draw` whenever `element` gets another width or the page another colour scheme. */
export function redrawOnChange(element, draw) {
  let width = -1;
  new ResizeObserver(() => {
    if (element.clientWidth !== width) {
      width = element.clientWidth;
      draw();
    }
  }).observe(element);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

/** An element with properties and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "role") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
