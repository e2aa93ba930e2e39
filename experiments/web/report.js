// Wakes a report: its tables sort and its timelines are drawn.
import { makeSortable } from "./table.js";
import { timeline } from "./timeline.js";

for (const table of document.querySelectorAll("table.sortable")) makeSortable(table);
for (const place of document.querySelectorAll("[data-view]")) {
  timeline(place, JSON.parse(document.getElementById(place.dataset.view).textContent));
}
