// Finds the view that the hash names, loads its module and shows it.

import { ApiError, readSession } from "./core/api.js";
import { hideTip } from "./core/charts.js";
import { h } from "./core/dom.js";
import { register } from "./core/keys.js";
import { answered, configure, onState, unwatchAll } from "./core/live.js";
import { link, parse } from "./core/router.js";
import { listenToAll, mark, rename, start } from "./core/shell.js";

const AGAIN = 3000;
// Milliseconds after which a view is shown as far as it is.
const SLOW = 400;
let session = null;
let current = null;
let turn = 0;

// How often a module could not be had: a browser keeps for an address that it failed.
const misses = new Map();

/** The view is read by its module: only letters, so that a hash names no other file. */
async function load(view) {
  const none = new ApiError("The page has no such view.", { status: 404 });
  if (!/^[a-z]+$/.test(view)) throw none;
  try {
    return await import(`./views/${view}.js${misses.has(view) ? "?again=" + misses.get(view) : ""}`);
  } catch (error) {
    if (!(error instanceof TypeError && /import|module/i.test(error.message))) throw error;
    misses.set(view, (misses.get(view) ?? 0) + 1);
    await readSession(); // Says so where the server is away.
    throw none;
  }
}

async function route() {
  const mine = (turn += 1);
  const target = parse(location.hash);
  const same = current && current.view === target.view && current.parts.join("/") === target.parts.join("/");
  if (same && current.shown?.update?.(target.params) === true) {
    current.params = target.params;
    return;
  }
  let module;
  try {
    [session, module] = await Promise.all([session ?? enter(), load(target.view)]);
  } catch (error) {
    if (mine !== turn) return;
    leave();
    mark(target.view);
    fail(error);
    return;
  }
  if (mine === turn) await show(module, target, same);
}

async function enter() {
  const found = await readSession();
  configure(found.live);
  start(found);
  return found;
}

function leave() {
  current?.controller.abort();
  try {
    current?.shown?.close?.();
  } catch (error) {
    reportError(error);
  }
  unwatchAll();
  current = null;
  hideTip();
}

// What was shown stays until the next view has its values, so that nothing jumps.
async function show(module, { view, parts, params }, same) {
  const kept = same ? whereabouts() : null;
  leave();
  const controller = new AbortController();
  const root = h("div", { class: "stack pending" });
  const tools = h("div", { class: "toolbar", id: "view-tools" });
  const own = { view, parts, params, controller, shown: null, title: module.title({ ...params, parts, params }), isShown: false };
  current = own;
  mark(view);
  document.getElementById("view").append(root);
  const appear = () => {
    clearTimeout(slow);
    if (own.isShown || current !== own) return;
    own.isShown = true;
    root.classList.remove("pending");
    place(root);
    document.getElementById("view-tools").replaceWith(tools);
    rename(own.title);
    if (kept) restore(kept);
    else focusHeading();
  };
  const slow = setTimeout(appear, SLOW);
  try {
    const shown = await module.show(root, {
      parts,
      params,
      session,
      navigate,
      tools,
      signal: controller.signal,
      rename: (title) => {
        own.title = title;
        if (own.isShown && current === own) rename(title);
      },
      keys: (entries) => register(entries, controller.signal),
    });
    if (current === own) {
      own.shown = shown;
      answered().then(appear);
    } else shown?.close?.();
  } catch (error) {
    clearTimeout(slow);
    if (current !== own || error.name === "AbortError") return;
    leave();
    fail(error, own.title);
  }
}

function place(content) {
  const view = document.getElementById("view");
  view.classList.remove("unshown");
  view.replaceChildren(content);
}

/** Goes to a hash, or to this view with other parameters: navigate({status: "FAILED", after: null}). */
function navigate(target, { replace: instead = false } = {}) {
  const hash = typeof target === "string" ? target : changed(target);
  if (hash === location.hash) return;
  if (instead) {
    history.replaceState(null, "", hash);
    route();
  } else {
    location.hash = hash;
  }
}

function changed(values) {
  const { view, parts, params } = parse(location.hash);
  return link([view, ...parts], { ...params, ...values });
}

let first = true;

// The first view is painted without a jump of the focus.
function focusHeading() {
  if (first) first = false;
  else document.getElementById("heading").focus({ preventScroll: true });
  scrollTo(0, 0);
}

// A view that is shown again with other parameters keeps the place of the reader.
function whereabouts() {
  const { id, name } = document.activeElement ?? {};
  return { scroll: scrollY, selector: id ? "#" + CSS.escape(id) : name ? `[name="${CSS.escape(name)}"]` : null };
}

function restore({ scroll, selector }) {
  const element = selector && document.querySelector(selector);
  if (element && document.activeElement === document.body) element.focus({ preventScroll: true });
  scrollTo(0, scroll);
}

const ADVICE = {
  401: "The page goes on where it was after you have signed in.",
  403: "This page may not show it: its role or its database role does not allow it.",
  404: "It does not exist, or it has been removed since.",
};
const HEADINGS = { 400: "Not understood", 401: "Not signed in", 403: "Not allowed", 404: "Not found" };

/** Says in place of the view what is wrong, and tries again by itself where that may help. */
function fail(error, title = "Not shown") {
  const passing = error instanceof ApiError && (error.away || error.offline || error.status === 504);
  if (!(error instanceof ApiError)) reportError(error);
  const sentence = error instanceof ApiError ? error.message : "The page itself failed: its console says why.";
  const signedOut = error.status === 401;
  const again = h("button", { type: "button", class: "primary", on: { click: () => (signedOut ? location.reload() : route()) } }, signedOut ? "Sign in" : "Try again");
  const box = h("div", { class: "card problem-box", role: "alert" },
    h("h2", null, error.away ? "PostgreSQL is away" : error.offline ? "Offline" : HEADINGS[error.status] ?? "Not shown"),
    h("p", null, sentence),
    h("p", { class: "muted" }, passing ? "The page tries again by itself." : ADVICE[error.status] ?? ""),
    h("div", { class: "toolbar" }, again, h("a", { href: "#/overview" }, "Overview")));
  place(box);
  rename(title);
  // The buttons of the view before would act on what is no longer shown.
  document.getElementById("view-tools").replaceChildren();
  if (!passing) return;
  const mine = turn;
  setTimeout(() => mine === turn && route(), AGAIN);
}

// A session that began without PostgreSQL does not know what its role may read.
let asked = -Infinity;
onState(async ({ state }) => {
  if (state !== "live" || !session?.away || performance.now() - asked < 5000) return;
  asked = performance.now();
  const found = await enter().catch(() => session);
  if (found.away) return;
  session = found;
  route();
});
addEventListener("hashchange", route);
listenToAll();
route();
