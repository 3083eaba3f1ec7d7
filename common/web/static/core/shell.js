// The frame around the views: navigation, state of the live values, theme, operator, help.

import { signOut } from "./api.js";
import { openDialog } from "./dialog.js";
import { h, replace, setText } from "./dom.js";
import { clock, duration, now, tick } from "./format.js";
import { listed, listen, register } from "./keys.js";
import { keep } from "./kept.js";
import { onState } from "./live.js";
import { TABLES } from "./table.js";
import { askOperator, operatorName, useSession } from "./operator.js";
import { toast } from "./toasts.js";

const THEMES = { system: "light", light: "dark", dark: "system" };
const PARENTS = { command: "commands", batch: "batches", process: "processes", domain: "overview" };
const GO = { o: "overview", f: "fleet", c: "commands", t: "troubleshooting", b: "batches", p: "processes", l: "limits", r: "breakers", s: "schedules", q: "bridges" };

const NAMELESS = "Your name …";

const byId = (id) => document.getElementById(id);

/** Shows the session in the header and starts what ticks. */
export function start(session) {
  useSession(session);
  setText(byId("where"), [session.database, session.schema].filter(Boolean).join(" / "));
  const operator = h("button", { id: "operator-name", type: "button", class: "plain", title: "The operator's name in the audit trail", on: { click: askOperator } }, operatorName() || NAMELESS);
  replace(byId("tools"),
    session.acts ? (session.user ? h("span", { class: "name" }, session.user) : operator) : h("span", { class: "tag", title: "This page can only show" }, session.user ?? null, session.user ? " · " : null, "viewer"),
    session.signs_out && h("button", { type: "button", class: "plain", on: { click: leave } }, "Sign out"),
    themeButton(),
    h("button", { type: "button", class: "plain", "aria-label": "Keys and help", title: "Keys and help (?)", on: { click: help } }, "?"));
}

async function leave() {
  try {
    await signOut();
    location.reload();
  } catch (error) {
    toast(error.message, { tone: "bad" });
  }
}

/** Starts keys and the state of the header: once, before the session is known. */
export function listenToAll() {
  listen();
  register([
    { key: "?", label: "This help", run: help },
    { key: "/", label: "Filter", run: () => focusFilter() },
    { key: "j", label: "Next row", run: () => toRows(1) },
    { key: "k", label: "Previous row", run: () => toRows(-1) },
    { key: "x", label: "Select the row", run: () => toRows("select") },
    { key: "t h", label: "Other theme", run: () => byId("theme")?.click() },
    ...Object.entries(GO).map(([key, view]) => ({ key: `g ${key}`, label: `Go to ${view}`, run: () => (location.hash = `#/${view}`) })),
  ]);
  byId("skip").addEventListener("click", (event) => {
    // The hash is the route: the link only moves the focus.
    event.preventDefault();
    byId("main").focus();
  });
  document.addEventListener("operator", ({ detail }) => setText(byId("operator-name"), detail || NAMELESS));
  showState();
  setInterval(() => document.hidden || tick(), 1000);
}

function focusFilter() {
  const field = document.querySelector("#view [data-filter], #view input[type=search], #view .filters input, #view .filters select");
  field?.focus();
  field?.select?.();
  return Boolean(field);
}

function toRows(detail) {
  const own = document.activeElement?.closest?.("[data-rows]");
  const rows = own ?? document.querySelector(`${TABLES}[data-rows="first"]`) ?? document.querySelector(TABLES);
  rows?.dispatchEvent(new CustomEvent("row", { detail }));
  return Boolean(rows);
}

function themeButton() {
  const root = document.documentElement;
  const theme = () => root.dataset.theme ?? "system";
  const element = h("button", { id: "theme", type: "button", class: "plain", on: { click: next } });
  function show() {
    replace(element, { system: "◐", light: "☀", dark: "☾" }[theme()]);
    element.setAttribute("aria-label", `Theme: ${theme()}`);
    element.title = `Theme: ${theme()}`;
  }
  function next() {
    const chosen = THEMES[theme()];
    if (chosen === "system") delete root.dataset.theme;
    else root.dataset.theme = chosen;
    keep("cmdbus.theme", chosen === "system" ? null : chosen);
    show();
  }
  show();
  return element;
}

/** Marks the view in the navigation. */
export function mark(view) {
  const current = PARENTS[view] ?? view;
  for (const link of byId("nav").querySelectorAll("a")) {
    if (link.dataset.view === current) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else link.removeAttribute("aria-current");
  }
}

/** Names the view in its heading and in the window's title. */
export function rename(title) {
  setText(byId("heading"), title);
  document.title = `${byId("heading").textContent} · cmdbus`;
}

function showState() {
  const box = byId("state");
  const text = h("span");
  const age = h("span", { class: "muted", "aria-hidden": "true" });
  replace(box, h("span", { class: "lamp", "aria-hidden": "true" }), text, age);
  let shown = {};
  const draw = () => {
    setText(text, sentence(shown));
    const seconds = shown.at && shown.state !== "live" ? (now() - Date.parse(shown.at)) / 1000 : 0;
    setText(age, seconds > 5 ? ` (${duration(Math.round(seconds))} old)` : "");
    box.dataset.state = shown.state;
    box.title = shown.error ?? "";
  };
  onState((state) => {
    shown = state;
    draw();
  });
  setInterval(() => document.hidden || draw(), 1000);
}

function sentence({ state, since, at }) {
  if (state === "live") return "live";
  if (state === "paused") return "paused";
  if (state === "away") return `PostgreSQL is away since ${clock(since)}${at ? ": showing what was read then" : ""}`;
  if (state === "offline") return `offline since ${clock(since)}, trying again`;
  return "";
}

/** Shows the keys that work now. */
export function help() {
  const seen = new Map();
  for (const { key, label } of listed()) seen.set(key, label);
  const rows = [...seen, ["Enter", "Open the row"], ["Escape", "Close a dialog, leave a field"]];
  const dialog = openDialog("Keys",
    h("dl", { class: "keys" }, rows.map(([key, label]) => h("div", null, h("dt", null, key.split(" ").map((one) => h("kbd", null, one))), h("dd", null, label)))),
    h("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, "Close"));
}
