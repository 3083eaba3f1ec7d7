// All nodes with their processes and threads, from what they publish.

import { get } from "../core/api.js";
import { h, keyed, replace, setText } from "../core/dom.js";
import { bytes, count, duration, now, plural, setTime, timeElement } from "../core/format.js";
import { watch } from "../core/live.js";
import { button, codeBlock, commandHref, commandLink, empty, figure, name, searchField, tag } from "../core/parts.js";
import { apiPath } from "../core/router.js";

const HEALTH = { HEALTHY: "good", DEGRADED: "warn", CRITICAL: "bad", DATABASE_AWAY: "bad" };
const STATES = { running: "good", starting: "info", stopping: "warn", stopped: "muted", giving_up: "bad" };
const PHASES = { i: "idle", r: "running", l: "leading", w: "resting", a: "away", s: "stuck", "?": "unknown" };
// Milliseconds after which a node should have published again: while nobody looks, and while the
// page does and sees nodes publish quickly.
const LATE = 75000;
const SILENT = 10000;
const QUICK = 6000;
// Nodes whose threads can be watched at a time: the server bounds the paths of a page.
const MAX_OPEN = 6;

export const title = () => "Fleet";

export async function show(root, { params, session, navigate, signal }) {
  const cells = new Set();
  const open = new Map();
  let text = params.text ?? "";
  let value = null;
  const figures = {
    nodes: figure("nodes", "–"), workers: figure("workers", "–"), threads: figure("threads that run", "–"),
    late: figure("past their timeout", "–"), memory: figure("memory", "–"), gone: figure("gone", "–"),
  };
  const field = searchField("text", text, "name, host, type", (wanted) => navigate({ text: wanted }, { replace: true }));
  const bar = h("div", { class: "toolbar" }, h("div", { class: "numbers" }, Object.values(figures)),
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
    isOpen: (node) => open.has(node),
    toggle(node) {
      if (open.has(node)) {
        open.get(node).stop();
        open.delete(node);
      } else if (open.size < MAX_OPEN) {
        const entry = { detail: null, stop: () => {} };
        open.set(node, entry);
        entry.stop = watch(apiPath(["fleet", node]), (found) => {
          entry.detail = found.node;
          render();
        });
      }
      render();
    },
  };

  function render() {
    if (!value) return;
    const shown = value.nodes.filter((node) => matches(node, text)).map((node) => open.get(node.node)?.detail ?? node);
    const [here, left] = [shown.filter((node) => !node.gone), shown.filter((node) => node.gone)];
    for (const node of left) if (open.has(node.node)) context.toggle(node.node);
    keyed(living, here, (node) => node.node, (node) => card(node, context));
    keyed(gone, left, (node) => node.node, (node) => card(node, context));
    box.hidden = !left.length;
    setText(goneTitle, `${plural(left.length, "node")} ${left.length === 1 ? "is" : "are"} gone`);
    note.hidden = value.has_slots;
    if (!value.has_slots) setText(note, `Many threads: each is a square here. Open up to ${MAX_OPEN} nodes to see what theirs run.`);
    sum(here, left);
    replaceEmpty(shown.length);
  }

  function replaceEmpty(shown) {
    none.hidden = shown > 0;
    if (shown) return;
    if (value.nodes.length) replace(none, empty("No node matches", "Clear the filter to see all."));
    else replace(none, empty("No node has run here within a day", "Start a supervisor, or a Worker in a program of yours:",
      "cmdbus-supervise --app shop.handlers:registry --dsn-file /etc/shop/dsn"));
  }

  function sum(here, left) {
    const seats = here.flatMap(seatsOf);
    const letters = seats.map((seat) => seat.phases).join("");
    figures.nodes.set(count(here.length), here.length ? undefined : "bad");
    figures.workers.set(count(here.flatMap((node) => node.seats).filter((seat) => seat.pid).length));
    figures.threads.set(`${count(running(letters))} of ${count(letters.length)}`);
    figures.memory.set(bytes(here.reduce((all, node) => all + node.memory, 0)));
    figures.gone.set(count(left.length));
    tick();
  }

  function tick() {
    let late = 0;
    for (const cell of cells) {
      if (!cell.isConnected) cells.delete(cell);
      else if (cell.tick()) late += 1;
    }
    figures.late.set(count(late), late ? "bad" : undefined);
    for (const element of living.children) element.tick();
  }

  root.dataset.rows = "";
  root.addEventListener("row", ({ detail }) => {
    const stops = [...root.querySelectorAll("a.slot, summary, section.node button:not([hidden])")].filter((one) => one.checkVisibility());
    const at = stops.indexOf(document.activeElement);
    if (typeof detail === "number") stops[Math.max(0, Math.min(stops.length - 1, at + detail))]?.focus();
  });
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
      for (const { stop: stopOne } of open.values()) stopOne();
    },
  };
}

const seatsOf = (node) => (node.quarantine ? [...node.seats, node.quarantine] : node.seats);
const running = (phases) => phases.replace(/[^rs]/g, "").length;

function matches(node, text) {
  if (!text) return true;
  const wanted = text.toLowerCase();
  const has = (value) => value !== null && value !== undefined && String(value).toLowerCase().includes(wanted);
  return has(node.name) || has(node.host) || has(node.state) || node.tags.some(has) ||
    seatsOf(node).some((seat) => has(seat.health) || seat.slots?.some((slot) => has(slot.type) || has(slot.domain)));
}

/** A node; `update` does nothing if it has published nothing new. */
function card(node, context) {
  const age = timeElement(node.published_at);
  const tags = h("span", { class: "toolbar" });
  const about = h("p", { class: "muted" });
  const seats = h("div", { class: "seats" });
  const exits = h("details", null);
  const silent = tag("silent", "bad", "It publishes no more: it has died or hangs, or cannot reach the database");
  const heading = h("h2", null, name(node.name), " ", h("span", { class: "muted" }, "on ", name(node.host)));
  const opener = button("Show threads", () => context.toggle(node.node), { small: true });
  const element = h("section", { class: "card node", aria: { label: `${node.name} on ${node.host}` } },
    h("div", { class: "toolbar" }, heading, silent, tags, h("span", { class: "muted push" }, "published ", age), opener), about, seats, exits);
  let known = "";
  let shown = node;
  element.update = (next) => {
    const step = Date.parse(next.published_at) - Date.parse(shown.published_at);
    if (step > 0 && step < QUICK) context.quick = true;
    shown = next;
    const hasSlots = seatsOf(next).some((seat) => seat.slots);
    const version = [next.published_at, next.gone, hasSlots, context.hasSlots()].join();
    opener.hidden = context.hasSlots() || next.gone;
    setText(opener, context.isOpen(next.node) ? "Hide threads" : "Show threads");
    if (version === known) return;
    known = version;
    setTime(age, next.published_at);
    replace(tags, tagsOf(next));
    replace(about, aboutOf(next));
    const items = next.gone ? [] : [...next.seats.map((seat) => ["worker", seat]), ...(next.quarantine ? [["quarantine", next.quarantine]] : [])];
    keyed(seats, items, ([role, seat]) => `${role} ${seat.seat}`, (item) => seatRow(item, context));
    showExits(exits, next, context);
  };
  element.tick = () => {
    const patience = context.quick && shown.steward?.listening ? SILENT : LATE;
    const late = !shown.gone && context.heardSince !== null && now() - Math.max(Date.parse(shown.published_at), context.heardSince) > patience;
    element.classList.toggle("late", late);
    silent.hidden = !late;
  };
  element.tick();
  element.update(node);
  return element;
}

function tagsOf(node) {
  const steward = node.steward;
  const restarts = Object.entries(node.restarts);
  return [
    node.gone ? tag(node.stopped ? "stopped" : "gone without a word", node.stopped ? "muted" : "bad") : tag((node.state ?? "unknown").replace("_", " "), STATES[node.state]),
    !node.gone && node.wanted > 0 && (!steward?.pid ? tag("no steward", "bad") : !steward.listening && tag("polls", "warn", "Its session does not listen: it polls, and publishes each minute")),
    node.undead > 0 && tag(plural(node.undead, "undead process", "undead processes"), "bad", "Processes that survived SIGKILL"),
    restarts.length > 0 && tag("replaced: " + restarts.map(([reason, n]) => `${count(n)} ${reason}`).join(", "), "warn"),
    node.cut && tag("not all threads are shown", "warn"),
  ];
}

function aboutOf(node) {
  const own = [
    node.pid && `pid ${node.pid}`,
    bytes(node.memory),
    node.version && `cmdbus ${node.version}`,
    node.python && `Python ${node.python}`,
    node.postgresql && `PostgreSQL ${Math.floor(node.postgresql / 10000)}.${node.postgresql % 10000}`,
    node.tags.length > 0 && `tags ${node.tags.join(", ")}`,
    (node.priorities[0] !== 0 || node.priorities[1] !== 10) && `priorities ${node.priorities[0]} to ${node.priorities[1]}`,
    node.age_share > 0 && `${node.age_share} % by age`,
  ];
  return [own.filter(Boolean).join(" · "), node.started_at && [" · started ", timeElement(node.started_at)]];
}

/** A process: its health, and its threads as cells. */
function seatRow([role, seat], context) {
  const health = tag("", "muted");
  const own = h("span", null);
  const since = timeElement(seat.since ?? new Date(0).toISOString());
  const about = h("span", { class: "muted" }, own, " · started ", since);
  const reasons = h("p", { class: "text-bad", hidden: true });
  const threads = h("div", { class: "slots" });
  const element = h("div", { class: "seat" },
    h("div", { class: "toolbar" }, h("h3", null, role === "worker" ? `worker ${seat.seat}` : role), health, about), reasons, threads);
  element.update = ([, next]) => {
    setText(health, next.pid ? (next.health ?? "unknown").toLowerCase().replace("_", " ") : "no process");
    health.className = `tag tag-${next.pid ? (HEALTH[next.health] ?? "muted") : "bad"}`;
    about.hidden = !next.pid || !next.since;
    if (!about.hidden) {
      setText(own, seatAbout(next));
      setTime(since, next.since);
    }
    reasons.hidden = !next.reasons.length;
    setText(reasons, next.reasons.join("; "));
    threads.classList.toggle("small", !next.slots);
    if (next.slots && threads.phases) {
      for (const name of ["role", "aria-label"]) threads.removeAttribute(name);
      threads.phases = null;
    }
    if (next.slots) keyed(threads, next.slots, (slot) => "s" + slot.slot, (slot) => cell(slot, context));
    else squares(threads, next.phases);
  };
  element.update([role, seat]);
  return element;
}

function seatAbout(seat) {
  const range = seat.min_threads !== seat.max_threads ? ` (${seat.min_threads} to ${seat.max_threads})` : "";
  return [`pid ${seat.pid}`, seat.memory && bytes(seat.memory), seat.threads && plural(seat.threads, "thread") + range,
    seat.generation > 1 && `process ${seat.generation}`].filter(Boolean).join(" · ");
}

function squares(box, phases) {
  if (box.phases === phases) return;
  box.phases = phases;
  const busy = running(phases);
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `${busy} of ${plural(phases.length, "thread")} run${phases.includes("s") ? ", some are stuck" : ""}`);
  keyed(box, [...phases].map((letter, index) => [index, letter]), ([index]) => "p" + index, ([, letter]) => h("i", { class: "slot-" + PHASES[letter] }));
}

/** A thread. With a command it is its link, and a bar of the time until its timeout. */
function cell(slot, context) {
  const element = slot.command_id ? busyCell(slot, context) : h("span", { class: "slot" });
  element.update = (next) => {
    if ((next.command_id ?? null) !== (slot.command_id ?? null)) return cell(next, context);
    slot = next;
    element.className = `slot slot-${next.phase ?? "unknown"}`;
    if (next.command_id) element.tick();
    else setText(element, next.phase ?? "unknown");
    return element;
  };
  return element.update(slot);
}

function busyCell(slot, context) {
  const time = h("span", { class: "slot-time" });
  const element = h("a", {
    href: commandHref(slot),
    title: `${slot.domain}/${slot.type}, attempt ${slot.attempt}, thread ${slot.slot}`,
  }, h("span", { class: "slot-name" }, name(slot.type)), time);
  const since = Date.parse(slot.since);
  let due = Date.parse(slot.due);
  /** Whether it is past its timeout. */
  element.tick = (next = slot) => {
    due = Date.parse(next.due);
    const seconds = Math.max(0, (now() - since) / 1000);
    const part = due > since ? Math.min(1, (now() - since) / (due - since)) : 0;
    const late = due < now();
    setText(time, duration(seconds < 10 ? Math.round(seconds * 10) / 10 : seconds));
    element.style.setProperty("--part", part.toFixed(3));
    element.classList.toggle("slot-late", late);
    return late;
  };
  context.cells.add(element);
  return element;
}

/** Kills and crashes, each with what ran and, for operators, its stack. */
function showExits(box, node, context) {
  box.hidden = !node.exits.length;
  if (!node.exits.length) return;
  const known = node.exits[0].number;
  if (box.known === known) return;
  box.known = known;
  const list = h("ul", { class: "exits" }, node.exits.map((one) => exitRow(node, one, context)));
  replace(box, h("summary", null, `${plural(node.exits.length, "kill or crash", "kills and crashes")}, the last `, timeElement(node.exits[0].at)), list);
}

function exitRow(node, one, context) {
  const stack = h("div", null);
  const look = button("Stack", async () => {
    look.disabled = true;
    try {
      const { stacks } = await get(apiPath(["fleet", node.node, "stacks"]), {}, { signal: context.signal });
      const found = stacks[one.number];
      replace(stack, found ? codeBlock(found) : h("p", { class: "muted" }, "It left no stack."));
    } catch (error) {
      look.disabled = false;
      if (error.name !== "AbortError") replace(stack, h("p", { class: "problem" }, error.message));
    }
  }, { small: true });
  return h("li", null,
    h("div", { class: "toolbar" }, timeElement(one.at, "both"), tag(one.verdict === "none" ? one.signal ?? `code ${one.code}` : one.verdict, "bad"),
      h("span", null, `${one.role} ${one.role === "worker" ? one.seat + ", " : ""}pid ${one.pid}, ${one.reason}`), context.session.reads_data && look),
    one.commands.length > 0 && h("p", null, "It ran ", one.commands.map((command, index) => [index > 0 && ", ", name(`${command.domain}/${command.type}`), " ",
      commandLink(command.domain, command.command_id), command.charged && [" ", tag("charged", "bad", "The exit is attributed to this command")]])),
    stack);
}
