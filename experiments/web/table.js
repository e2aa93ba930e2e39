// Tables that sort by any column, and tell what a column means.
import { make } from "./canvas.js";

/** Makes the headings of `table` buttons that sort its rows. */
export function makeSortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = make("button", { type: "button", className: "sort" }, heading.textContent);
    const help = heading.dataset.help;
    if (help) button.title = help;
    heading.replaceChildren(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sortBy(table, headings, column));
  });
}

function sortBy(table, headings, column) {
  const heading = headings[column];
  const descending = heading.getAttribute("aria-sort") === "ascending";
  for (const other of headings) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
  rows.sort(([a], [b]) => compare(a, b, descending));
  body.append(...rows.map(([, row]) => row));
}

/** A number where the cell has one, else its text; null where the number is missing. */
function key(cell) {
  const value = cell.dataset.value;
  if (value === undefined) return cell.textContent;
  return value === "" ? null : Number(value);
}

/** What is missing goes last either way. */
function compare(a, b, descending) {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return descending ? -order : order;
}
