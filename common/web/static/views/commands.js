// Commands: a search, page by page, and what can be done with what it finds.

import { get } from "../core/api.js";
import { h, replace, setText } from "../core/dom.js";
import { clock, count, duration, plural, timeElement, NONE } from "../core/format.js";
import { watch } from "../core/live.js";
import { breakable, button, commandHref, commandKey, commandLink, empty, name, restrictedNote, statusTag, tag } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";
import { table } from "../core/table.js";
import { commandActions } from "./command_actions.js";
import { filterBar, filtersOf, queryOf } from "./command_filters.js";

// Pages that "Search on" reads, at most.
const ROUNDS = 500;
// Commands on a page: all of them can be selected for an action.
const SIZES = ["100", "300", "1000"];
const FIRST_COMMAND = `from cmdbus import CommandBus

with CommandBus("postgresql:///mydb") as bus:
    bus.send("payments", "DebitAccount", {"account_id": 1, "amount": 5})`;
// Where a page came from, by its cursor: for the way back.
const BEFORE = new Map();

export const title = () => "Commands";

const COLUMNS = [
  { key: "type", label: "Command", narrow: "title", width: "minmax(110px, 1fr)", render: (row) => [h("span", { class: "muted" }, name(row.domain), " / "), name(row.type)] },
  { key: "command_id", label: "Id", width: "minmax(84px, 100px)", render: (row) => commandLink(row.domain, row.command_id) },
  { key: "status", label: "Status", width: "minmax(84px, 104px)", render: (row) => (row.gone ? tag("moved on", "muted", "It does not meet the filters any more.") : statusTag(row.status)) },
  { key: "created_at", label: "Sent", width: "minmax(60px, 100px)", render: (row) => timeElement(row.created_at) },
  { key: "waited", label: "Waited", align: "right", width: "minmax(56px, 96px)", narrow: "hide", render: (row) => duration(row.waited) },
  { key: "ran", label: "Ran", align: "right", width: "minmax(70px, 114px)", render: ran },
  { key: "attempts", label: "Attempts", align: "right", width: "minmax(48px, 84px)", narrow: "hide", render: (row) => (row.max_attempts ? `${row.attempts} of ${row.max_attempts}` : String(row.attempts)) },
  { key: "error", label: "Error", width: "minmax(22%, 1fr)", render: (row) => (row.error_code ? [h("span", { class: "mono" }, breakable(row.error_code)), row.error_message && h("span", { class: "muted" }, " ", row.error_message.slice(0, 160))] : null) },
];

function ran(row) {
  if (row.status === "IN_PROGRESS") return h("span", null, "since ", timeElement(row.started_at, "clock"));
  if (row.status === "PENDING" && Date.parse(row.due_at) > Date.parse(row.created_at)) return h("span", null, "due ", timeElement(row.due_at));
  return row.ran === null ? NONE : duration(row.ran);
}

/** How many of the rows are in both. */
function shared(before, now) {
  const keys = new Set(before.map(commandKey));
  return now.filter((row) => keys.has(commandKey(row))).length;
}

/** The rows that are shown as they are now; those that a search would not find again are gone. */
function blended(shown, { commands, next }) {
  const now = new Map(commands.map((row) => [commandKey(row), row]));
  const last = next && commands.length ? commands.at(-1).created_at : "";
  return shown.map((row) => now.get(commandKey(row)) ?? (row.created_at > last ? { ...row, gone: true } : row));
}

function whyEmpty(value, given) {
  if (value.commands.length) return [];
  if (value.next) return empty("Nothing found so far", "The search can go on.");
  if (given.after) return empty("No more commands", "The pages end here.");
  if (Object.keys(filtersOf(given)).length) return [empty("Nothing matches", "No command meets all of these filters."), h("p", { class: "empty" }, h("a", { href: "#/commands" }, "Clear filters"))];
  return empty("No command has been sent yet", "A first one, from Python:", FIRST_COMMAND);
}

/** The way to other pages; `sizes` chooses the number of rows. */
function pagerOf(value, given, sizes) {
  const back = BEFORE.get(given.after);
  const way = (label, after) => h("a", { class: "button", href: link(["commands"], { ...given, after }) }, label);
  if (value.next) BEFORE.set(value.next, given.after ?? "");
  if (BEFORE.size > 500) BEFORE.delete(BEFORE.keys().next().value);
  return [
    given.after && way("First page", null),
    given.after && back && way("Newer", back),
    value.next && way("Older", value.next),
    h("span", { class: "muted" }, value.commands.length ? plural(value.commands.length, "command") + (value.next ? " on this page" : "") : ""),
    (value.next || given.rows) && h("span", { class: "push" }, sizes),
  ];
}

const stopText = ({ at, read }) => `The search has looked at about ${count(read)} commands${at ? `, back to ${clock(at)}` : ""}, and stopped there.`;

export async function show(root, { params, session, navigate, signal, keys }) {
  const filters = filterBar({ navigate, restricted: !session.reads_data });
  const problem = h("p", { class: "note note-bad", role: "alert", hidden: true });
  const tools = h("div", { class: "toolbar", role: "group", "aria-label": "Actions", css: { "min-height": "34px" } });
  const selection = h("span", { class: "muted" });
  const buttons = h("span", { class: "toolbar" });
  const news = h("button", { type: "button", class: "small push", hidden: true, on: { click: () => present(latest) } });
  const nothing = h("div");
  const stopped = h("div", { class: "toolbar note note-info", role: "status", hidden: true });
  const pager = h("nav", { class: "toolbar", "aria-label": "Pages" });
  const rows = h("select", { "aria-label": "Commands on a page", on: { change: () => navigate({ rows: rows.value === SIZES[0] ? null : rows.value }) } },
    SIZES.map((size) => h("option", { value: size }, `${size} on a page`)));
  const list = table({ columns: COLUMNS, keyOf: commandKey, label: "Commands", selectable: session.acts, onSelect: drawTools, empty: nothing, link: commandHref, rowClass: (row) => row.gone && "muted" });
  tools.append(selection, buttons, news);
  root.append(filters.element, session.reads_data ? "" : restrictedNote(), problem, tools, list.element, stopped, pager);

  const actions = commandActions(() => list.clear());
  let given = params;
  let query = {};
  let latest = null;
  let shown = null;
  let fresh = true;
  let isOver = false;
  let stopWatching = () => {};
  let searching = null;
  list.element.addEventListener("pointerenter", () => (isOver = true));
  list.element.addEventListener("pointerleave", () => (isOver = false));

  function open(next) {
    const turned = next.after !== given.after || given === next;
    given = next;
    query = queryOf(given);
    filters.fill(given);
    rows.value = SIZES.includes(given.rows) ? given.rows : SIZES[0];
    searching?.abort();
    stopWatching();
    fresh = true;
    list.element.setAttribute("aria-busy", "true");
    stopWatching = watch(apiPath("commands", query), (value) => arrive(value, turned), failed);
  }

  function failed(state, { error } = {}) {
    if (state !== "failed") return;
    problem.hidden = false;
    setText(problem, error?.message ?? String(error));
    list.element.removeAttribute("aria-busy");
    if (!fresh) return;
    // What was found before is no answer to what was asked now.
    replace(nothing);
    list.update((shown = []));
    replace(pager);
    stopped.hidden = true;
  }

  // Rows come and go under the reader's eyes only while the reader does nothing with them.
  const reading = () => list.selected().length > 0 || list.focused() || isOver || scrollY > 60;

  function arrive(value, turned) {
    latest = value;
    problem.hidden = true;
    list.element.removeAttribute("aria-busy");
    if (!fresh && reading()) {
      blend(value);
      return;
    }
    if (fresh && turned && shown) scrollTo(0, 0);
    fresh = false;
    present(value);
  }

  function present(value) {
    shown = value.commands;
    news.hidden = true;
    replace(nothing, whyEmpty(value, given));
    list.update(shown);
    drawEnd(value);
    drawTools();
  }

  /** Changes the rows that are shown, and says how many are not. */
  function blend(value) {
    const more = value.commands.length - shared(shown, value.commands);
    shown = blended(shown, value);
    news.hidden = more === 0;
    setText(news, `${plural(more, "newer command")}: show`);
    list.update(shown);
    drawTools();
  }

  function drawEnd(value) {
    stopped.hidden = !value.stopped || !value.next;
    if (!stopped.hidden) tellStop(value, button("Search on", searchOn, { small: true }));
    replace(pager, pagerOf(value, given, rows));
  }

  const tellStop = (value, action) => replace(stopped, h("span", null, stopText(value.stopped)), action);

  /** Goes on until something is found, or the end. */
  async function searchOn() {
    const mine = (searching = new AbortController());
    signal.addEventListener("abort", () => mine.abort(), { once: true });
    let after = latest.next;
    let read = latest.stopped.read;
    const stop = button("Stop", () => mine.abort(), { small: true });
    try {
      for (let round = 0; round < ROUNDS && !mine.signal.aborted; round += 1) {
        const value = await get("commands", { ...query, after }, { signal: mine.signal });
        if (value.commands.length || !value.next) break;
        after = value.next;
        read += value.stopped?.read ?? 0;
        tellStop({ stopped: { at: value.stopped?.at, read } }, stop);
      }
    } catch (error) {
      if (error.name !== "AbortError") failed("failed", { error });
    }
    if (!signal.aborted && searching === mine) navigate({ after });
  }

  function drawTools() {
    if (!session.acts) return;
    const selected = list.selected();
    setText(selection, selected.length ? `${count(selected.length)} selected` : "");
    const isEmpty = !latest?.commands.length && !latest?.next;
    const all = isEmpty ? null : actions.forAll(filtersOf(given), query.since);
    if (!selected.length) replace(buttons, all);
    // Those of this page alone may not be what the reader means by all.
    else replace(buttons, actions.forRows(selected), button("Select none", () => list.clear(), { small: true, tone: "plain" }), selected.length === shown?.length && all);
  }

  function retry() {
    const rows = list.selected().length ? list.selected() : [list.focused()].filter(Boolean);
    return session.acts && actions.retry(rows);
  }
  keys([{ key: "r", label: "Retry what is in trouble", run: retry }]);

  open(params);
  return {
    close: () => stopWatching(),
    update(next) {
      if (JSON.stringify(next) !== JSON.stringify(given)) {
        list.clear();
        open(next);
      }
      return true;
    },
  };
}
