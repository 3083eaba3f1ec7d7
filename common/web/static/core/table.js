// A table of many rows: kept nodes, keys for rows, selection, cards where it is narrow.

import { columnWidths } from "./columns.js";
import { arrange, h, keysOf, replace, setText } from "./dom.js";

// Milliseconds that a slice of an update may take before the browser gets its turn.
const SLICE = 8;
const FIRST = 120;
// Characters after which a text may be shown in part.
const CUT = 90;

// The tables of a view, which the keys j and k walk through.
export const TABLES = "#view [data-rows]:not([hidden])";

const turn = () => (globalThis.scheduler?.yield ? scheduler.yield() : new Promise((resolve) => setTimeout(resolve)));

/**
 * columns: [{key, label, render(row) -> node or text, align: "right", narrow: "hide" | "title",
 * width}]; without `render` the value of `key` is shown, and `width` is a track of CSS, such as
 * "120px" or "1fr". keyOf(row) names a row; link(row) is where Enter and a click lead; `selectable`
 * adds boxes, and onSelect(rows) hears of each change. `empty` is a node or text shown instead of
 * rows. `label` names the table for screen readers. Keys go first to the one that is `primary`.
 */
export function table({ columns, keyOf, link, selectable = false, onSelect, empty, label, rowClass, primary }) {
  const chosen = new Map();
  let rows = [];
  let run = 0;
  const body = h("tbody", { role: "rowgroup" });
  const all = h("input", { type: "checkbox", "aria-label": "Select all rows", on: { change: () => selectAll(all.checked) } });
  const heading = (classes, content) => h("th", { role: "columnheader", scope: "col", class: classes }, content);
  const head = h("tr", { role: "row" }, selectable && heading("box", all), columns.map((column) => heading(classOf(column), column.label)));
  const grid = h("table", { class: "rows", role: "table", "aria-label": label, data: { rows: primary ? "first" : "" } }, h("thead", { role: "rowgroup" }, head), body);
  const nothing = h("div", { hidden: true }, typeof empty === "string" ? h("p", { class: "empty" }, empty) : empty);
  const element = h("div", { class: "table" }, grid, nothing);
  const nodes = new Map();

  function classOf(column) {
    return [column.align === "right" && "right", column.narrow && "narrow-" + column.narrow].filter(Boolean).join(" ");
  }

  const widths = columnWidths(columns);
  let template = "";

  function fill(cell, index, row) {
    put(cell, columns[index], row);
    cell.classList.toggle("long", cell.textContent.length > CUT);
    widths.measure(index, cell);
  }

  function widen() {
    const next = [...(selectable ? ["36px"] : []), ...widths.tracks()].join(" ");
    if (next !== template) grid.style.setProperty("--columns", (template = next));
  }

  function put(cell, column, row) {
    const given = column.render ? column.render(row) : row[column.key];
    // A list is one element, so that it stays together where rows are cards.
    const value = !Array.isArray(given) ? given : given.some(Boolean) ? h("span", null, given) : "";
    const same = value instanceof Node && cell.childNodes.length === 1 && cell.firstChild.isEqualNode(value);
    if (typeof value === "object" || cell.childElementCount) same || replace(cell, value);
    else setText(cell, value);
  }

  function build(key, row) {
    const box = selectable && h("input", { type: "checkbox", "aria-label": "Select", checked: chosen.has(key), on: { change: () => select(key, box.checked) } });
    const cells = columns.map((column, index) => {
      const cell = h("td", { role: "cell", class: classOf(column), data: { label: column.label } });
      fill(cell, index, row);
      return cell;
    });
    const node = h("tr", { role: "row", tabindex: "-1" }, selectable && h("td", { role: "cell", class: "box" }, box), cells);
    const entry = { key, row, text: JSON.stringify(row), node, cells, box };
    node.entry = entry;
    dress(entry);
    return entry;
  }

  function dress(entry) {
    entry.node.className = [rowClass?.(entry.row), link && "linked", chosen.has(entry.key) && "selected"].filter(Boolean).join(" ");
    if (entry.box) entry.box.checked = chosen.has(entry.key);
  }

  function refresh(entry, row) {
    const text = JSON.stringify(row);
    if (text === entry.text) return;
    entry.row = row;
    entry.text = text;
    columns.forEach((column, index) => fill(entry.cells[index], index, row));
    dress(entry);
  }

  /** Shows the rows; the first screen at once, the rest in slices. Resolves when all are shown. */
  async function update(next) {
    const mine = (run += 1);
    rows = next;
    const keys = keysOf(rows, keyOf);
    const wanted = new Set(keys);
    for (const key of [...nodes.keys()]) if (!wanted.has(key)) nodes.delete(key);
    let dropped = false;
    for (const key of [...chosen.keys()]) if (!wanted.has(key)) dropped = chosen.delete(key);
    grid.hidden = rows.length === 0;
    grid.classList.toggle("many", rows.length > 100);
    nothing.hidden = rows.length > 0;
    let began = performance.now();
    let placed = 0;
    for (let index = 0; index < rows.length; index += 1) {
      const entry = nodes.get(keys[index]);
      if (entry) refresh(entry, rows[index]);
      else nodes.set(keys[index], build(keys[index], rows[index]));
      if (chosen.has(keys[index])) chosen.set(keys[index], rows[index]);
      if (index + 1 >= FIRST && performance.now() - began > SLICE) {
        if (placed === 0 || index - placed > 200) arrangeTo((placed = index + 1));
        await turn();
        if (mine !== run) return;
        began = performance.now();
      }
    }
    arrangeTo(rows.length);
    if (dropped) changed();
    roving();

    function arrangeTo(end) {
      widen();
      const shown = keys.slice(0, end).map((key) => nodes.get(key).node);
      // Rows further down stay until their turn, so that the page does not get shorter and jump.
      if (end < keys.length) {
        const ready = new Set(shown);
        for (const node of body.children) if (!ready.has(node) && wanted.has(node.entry.key)) shown.push(node);
      }
      arrange(body, shown);
    }
  }

  function roving(current = body.querySelector('tr[tabindex="0"]') ?? body.firstElementChild) {
    for (const other of body.querySelectorAll('tr[tabindex="0"]')) if (other !== current) other.tabIndex = -1;
    if (current) current.tabIndex = 0;
    return current;
  }

  function focus(node) {
    if (!node) return;
    roving(node).focus({ preventScroll: true });
    node.scrollIntoView({ block: "nearest" });
  }

  const active = () => {
    const node = document.activeElement?.closest?.("tr");
    return node && body.contains(node) ? node : null;
  };

  function move(by) {
    const current = active();
    if (!current) return focus(body.querySelector('tr[tabindex="0"]') ?? body.firstElementChild);
    const next = by > 0 ? current.nextElementSibling : current.previousElementSibling;
    if (next) return focus(next);
    const all = [...document.querySelectorAll(TABLES)];
    all[all.indexOf(grid) + by]?.dispatchEvent(new CustomEvent("row", { detail: by > 0 ? "first" : "last" }));
  }

  function select(key, on) {
    const entry = nodes.get(key);
    if (on) chosen.set(key, entry.row);
    else chosen.delete(key);
    dress(entry);
    changed();
  }

  function selectAll(on) {
    chosen.clear();
    if (on) for (const [key, entry] of nodes) chosen.set(key, entry.row);
    for (const entry of nodes.values()) dress(entry);
    changed();
  }

  function changed() {
    all.checked = chosen.size > 0 && chosen.size === nodes.size;
    all.indeterminate = chosen.size > 0 && chosen.size < nodes.size;
    onSelect?.([...chosen.values()]);
  }

  const open = (entry) => link && (location.hash = link(entry.row));

  body.addEventListener("click", (event) => {
    const node = event.target.closest("tr");
    if (!node?.entry) return;
    roving(node);
    if (event.target.closest("a, button, input, select, summary, label")) return;
    if (String(getSelection()) || event.detail > 1) return;
    open(node.entry);
  });
  body.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.target.tagName !== "TR" || event.ctrlKey || event.metaKey || event.altKey || !(by || event.key === "Enter")) return;
    event.preventDefault();
    if (by) move(by);
    else open(event.target.entry);
  });
  // The keys j, k and x come from core/keys.js, to the table that has the focus or comes first.
  grid.addEventListener("row", (event) => {
    if (event.detail === "select") {
      const entry = active()?.entry;
      if (selectable && entry) select(entry.key, !chosen.has(entry.key));
    } else if (event.detail === "first") focus(body.firstElementChild);
    else if (event.detail === "last") focus(body.lastElementChild);
    else move(event.detail);
  });

  return {
    element,
    update,
    selected: () => [...chosen.values()],
    clear: () => selectAll(false),
    /** The row that has the focus, or null. */
    focused: () => active()?.entry.row ?? null,
  };
}
