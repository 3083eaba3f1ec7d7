// All nodes with their processes and threads, from what they publish.

import { h, keyed, replace, setText } from "../core/dom.js";
import { bytes, count, now, plural } from "../core/format.js";
import { watch } from "../core/live.js";
import { empty, figure, searchField } from "../core/parts.js";
import { apiPath } from "../core/router.js";
import { nodeCard, seatsOf } from "./fleet_node.js";
import { running } from "./fleet_seat.js";

// Nodes whose threads can be watched at a time: the server bounds the paths of a page.
const MAX_OPEN = 6;

export const title = () => "Fleet";

export async function show(root, { params, session, navigate, signal }) {
  const cells = new Set();
  let text = params.text ?? "";
  let value = null;
  const figures = figuresOfFleet();
  const open = openNodes(render);
  const field = searchField("text", text, "name, host, type", (wanted) => navigate({ text: wanted }, { replace: true }));
  const bar = h("div", { class: "toolbar" }, h("div", { class: "numbers" }, figures.elements),
    h("div", { class: "filters push" }, h("label", null, "Show nodes with", field)));
  const note = h("p", { class: "note note-info", hidden: true });
  const living = h("div", { class: "stack" });
  const gone = h("div", { class: "stack" });
  const goneTitle = h("summary", null);
  const box = h("details", { hidden: true }, goneTitle, gone);
  const none = h("div", { hidden: true });
  replace(root, bar, note, none, living, box);

  const context = {
    session, cells, signal,
    quick: false,
    // Since when the page has heard of nodes without a gap; null while it does not.
    heardSince: now(),
    hasSlots: () => value.has_slots,
    isOpen: open.has,
    toggle: open.toggle,
  };

  function render() {
    if (!value) return;
    const shown = value.nodes.filter((node) => matches(node, text)).map((node) => open.detailOf(node.node) ?? node);
    const [here, left] = [shown.filter((node) => !node.gone), shown.filter((node) => node.gone)];
    for (const node of left) if (open.has(node.node)) open.toggle(node.node);
    keyed(living, here, (node) => node.node, (node) => nodeCard(node, context));
    keyed(gone, left, (node) => node.node, (node) => nodeCard(node, context));
    box.hidden = !left.length;
    setText(goneTitle, `${plural(left.length, "node")} ${left.length === 1 ? "is" : "are"} gone`);
    note.hidden = value.has_slots;
    if (!value.has_slots) setText(note, `Many threads: each is a square here. Open up to ${MAX_OPEN} nodes to see what theirs run.`);
    figures.show(here, left);
    tick();
    none.hidden = shown.length > 0;
    if (!shown.length) replace(none, whyEmpty(value.nodes.length));
  }

  function tick() {
    let late = 0;
    for (const cell of cells) {
      if (!cell.isConnected) cells.delete(cell);
      else if (cell.tick()) late += 1;
    }
    figures.showLate(late);
    for (const element of living.children) element.tick();
  }

  walkRows(root);
  const stop = watch("fleet", (found) => {
    value = found;
    render();
  }, (state) => {
    context.heardSince = state === "live" ? now() : null;
  });
  const timer = setInterval(() => document.hidden || tick(), 1000);
  return {
    update(next) {
      text = next.text ?? "";
      if (field.value !== text && document.activeElement !== field) field.value = text;
      render();
      return true;
    },
    close() {
      stop();
      clearInterval(timer);
      open.close();
    },
  };
}

function figuresOfFleet() {
  const figures = {
    nodes: figure("nodes", "–"), workers: figure("workers", "–"), threads: figure("threads that run", "–"),
    late: figure("past their timeout", "–"), memory: figure("memory", "–"), gone: figure("gone", "–"),
  };
  return {
    elements: Object.values(figures),
    show(here, left) {
      const seats = here.flatMap(seatsOf);
      const letters = seats.map((seat) => seat.phases).join("");
      figures.nodes.set(count(here.length), here.length ? undefined : "bad");
      figures.workers.set(count(here.flatMap((node) => node.seats).filter((seat) => seat.pid).length));
      figures.threads.set(`${count(running(letters))} of ${count(letters.length)}`);
      figures.memory.set(bytes(here.reduce((all, node) => all + node.memory, 0)));
      figures.gone.set(count(left.length));
    },
    showLate: (late) => figures.late.set(count(late), late ? "bad" : undefined),
  };
}

/** The nodes whose threads are watched; `changed` is called when there is news of one. */
function openNodes(changed) {
  const entries = new Map();
  return {
    has: (node) => entries.has(node),
    detailOf: (node) => entries.get(node)?.detail,
    toggle(node) {
      if (entries.has(node)) {
        entries.get(node).stop();
        entries.delete(node);
      } else if (entries.size < MAX_OPEN) {
        const entry = { detail: null, stop: () => {} };
        entries.set(node, entry);
        entry.stop = watch(apiPath(["fleet", node]), (found) => {
          entry.detail = found.node;
          changed();
        });
      }
      changed();
    },
    close() {
      for (const { stop } of entries.values()) stop();
    },
  };
}

const whyEmpty = (nodes) => (nodes
  ? empty("No node matches", "Clear the filter to see all.")
  : empty("No node has run here within a day", "Start a supervisor, or a Worker in a program of yours:",
    "cmdbus-supervise --app shop.handlers:registry --dsn-file /etc/shop/dsn"));

/** Lets the keys that go from row to row go from thread to thread. */
function walkRows(root) {
  root.dataset.rows = "";
  root.addEventListener("row", ({ detail }) => {
    const stops = [...root.querySelectorAll("a.slot, summary, section.node button:not([hidden])")].filter((one) => one.checkVisibility());
    const at = stops.indexOf(document.activeElement);
    if (typeof detail === "number") stops[Math.max(0, Math.min(stops.length - 1, at + detail))]?.focus();
  });
}

function matches(node, text) {
  if (!text) return true;
  const wanted = text.toLowerCase();
  const has = (value) => value !== null && value !== undefined && String(value).toLowerCase().includes(wanted);
  return has(node.name) || has(node.host) || has(node.state) || node.tags.some(has) ||
    seatsOf(node).some((seat) => has(seat.health) || seat.slots?.some((slot) => has(slot.type) || has(slot.domain)));
}
