// Live values: one stream for all watchers of this tab, closed while the tab is hidden.

import { get, recent } from "./api.js";
import { observeServerTime } from "./format.js";

const watchers = new Set();
const listeners = new Set();
// The values that the open stream has sent, by their paths.
const values = new Map();
const AGAIN = [1000, 2000, 4000, 8000, 15000];
// A stream over which nothing came for so long may hang in a proxy.
const SILENCE = 120000;
// Milliseconds that a stream gets for its first value before the value is asked for.
const PATIENCE = 1500;

let mode = "events";
let source = null;
let opened = "";
let timer = 0;
let failures = 0;
let heard = 0;
let state = { state: "connecting", since: null, error: null, at: null };

/** How values come: "events", or "poll" where the server has one thread. */
export function configure(live) {
  mode = live === "poll" || typeof EventSource === "undefined" ? "poll" : "events";
}

/** Calls back with {state: live|away|offline|paused|connecting, since, error, at} now and later. */
export function onState(listener) {
  listeners.add(listener);
  listener(state);
  return () => listeners.delete(listener);
}

function become(next, detail = {}) {
  const changed = next !== state.state;
  state = { ...state, error: null, ...detail, state: next };
  if (changed && !("since" in detail)) state.since = new Date().toISOString();
  if (next !== "live") for (const watcher of watchers) watcher.answer();
  for (const listener of listeners) listener(state);
  if (changed) for (const watcher of watchers) watcher.onState?.(next, state);
}

const paths = () => [...new Set([...watchers].map((watcher) => watcher.path))];
const query = (list) => "live?" + list.map((path) => "view=" + encodeURIComponent(path)).join("&");

/**
 * Calls onValue(value, at) with the first value and with each that differs from the last, until
 * the returned function is called. onState(state, detail) hears of live, away, offline, paused,
 * and of "failed" with {error} where this view alone cannot be read.
 */
export function watch(path, onValue, onState) {
  const watcher = { path, onValue, onState, text: null };
  watcher.answered = new Promise((resolve) => (watcher.answer = resolve));
  watchers.add(watcher);
  const first = values.get(path) ?? recent(path);
  if (first !== undefined) queueMicrotask(() => deliver(watcher, first, first?.at));
  // The stream is faster, unless the server reads something slow for another view.
  else watcher.timer = setTimeout(read, mode === "poll" ? 0 : PATIENCE, watcher);
  reconnect();
  return () => drop([watcher]);
}

function drop(some) {
  for (const watcher of some) {
    clearTimeout(watcher.timer);
    watcher.answer();
    watchers.delete(watcher);
  }
  reconnect();
}

/** Ends all watching: of a view that was left, or failed before it could say how it is closed. */
export const unwatchAll = () => drop([...watchers]);

async function read(watcher) {
  if (watcher.text !== null || document.hidden) return;
  try {
    const value = await get(watcher.path);
    if (watcher.text === null) deliver(watcher, value, value?.at);
  } catch (error) {
    if (!watchers.has(watcher)) return;
    if (error.away) become("away", { error: error.message });
    else watcher.onState?.(error.offline ? "offline" : "failed", { error });
    watcher.answer();
  }
}

function deliver(watcher, value, at, text = "") {
  if (!watchers.has(watcher)) return;
  watcher.text = text;
  clearTimeout(watcher.timer);
  try {
    watcher.onValue(value, at ?? null);
  } catch (error) {
    // One view's mistake must not end the stream of the others.
    reportError(error);
  }
  watcher.answer();
}

/** Resolves when all that is watched now has its first value, or cannot have one. */
export const answered = () => Promise.all([...watchers].map((watcher) => watcher.answered));

function handle(event, data) {
  heard = performance.now();
  if (event === "view") {
    if (data.at) observeServerTime(data.at);
    const text = mode === "poll" ? JSON.stringify(data.value) : "";
    if (state.state !== "live") become("live", { at: data.at });
    state.at = data.at;
    if (mode === "events") values.set(data.view, data.value);
    for (const watcher of [...watchers]) {
      if (watcher.path !== data.view || (text && watcher.text === text)) continue;
      deliver(watcher, data.value, data.at, text);
    }
  } else if (event === "away") {
    for (const watcher of watchers) clearTimeout(watcher.timer);
    become("away", { error: data.error, since: data.since });
  } else if (event === "back") {
    become("live");
  } else if (event === "again") {
    // This browser, or all of them, have enough streams open: it asks now and then.
    close();
    clearTimeout(timer);
    timer = setTimeout(connect, 1000 * data.seconds);
  } else if (event === "failed") {
    for (const watcher of [...watchers]) {
      if (watcher.path !== data.view) continue;
      clearTimeout(watcher.timer);
      watcher.onState?.("failed", { error: data.error });
      watcher.answer();
    }
  }
}

// Watchers come and go together when a view changes: the stream is opened once for all.
function reconnect() {
  clearTimeout(timer);
  timer = setTimeout(connect, 20);
}

function close() {
  source?.close();
  source = null;
  opened = "";
  values.clear();
}

function connect() {
  clearTimeout(timer);
  const list = paths();
  if (document.hidden || list.length === 0) {
    close();
    if (document.hidden && list.length) become("paused");
    return;
  }
  if (mode === "poll") {
    poll(list);
    return;
  }
  const wanted = query(list);
  if (source && opened === wanted && source.readyState !== EventSource.CLOSED) return;
  close();
  opened = wanted;
  const stream = new EventSource(new URL("api/" + wanted, document.baseURI));
  source = stream;
  heard = performance.now();
  for (const event of ["view", "away", "back", "failed", "again"]) {
    stream.addEventListener(event, (message) => source === stream && handle(event, JSON.parse(message.data)));
  }
  stream.onopen = () => {
    failures = 0;
    heard = performance.now();
    if (state.state !== "away") become("live");
  };
  stream.onerror = () => source === stream && lost(stream);
  timer = setTimeout(guard, SILENCE);
}

function lost(stream) {
  become("offline", { error: "The server of this page does not answer." });
  // The browser's own attempts stop after an answer that is no stream.
  close();
  timer = setTimeout(connect, later());
}

const later = () => AGAIN[Math.min(failures++, AGAIN.length - 1)] * (0.75 + Math.random() / 2);

function guard() {
  if (source && performance.now() - heard >= SILENCE) close();
  connect();
  if (source) timer = setTimeout(guard, SILENCE);
}

async function poll(list) {
  const wanted = query(list);
  if (source) return;
  const controller = new AbortController();
  source = { close: () => controller.abort() };
  const mine = source;
  let pause = 2000;
  try {
    const answer = await get(wanted, {}, { signal: controller.signal });
    failures = 0;
    pause = 1000 * (answer.again ?? 2);
    if (!answer.events.some(({ event }) => event === "away")) become("live");
    for (const { event, data } of answer.events) handle(event, data);
  } catch (error) {
    if (error.name !== "AbortError") {
      become(error.away ? "away" : "offline", { error: error.message });
      pause = later();
    }
  }
  if (source !== mine) return;
  source = null;
  clearTimeout(timer);
  timer = setTimeout(connect, pause);
}

document.addEventListener("visibilitychange", reconnect);
globalThis.addEventListener?.("online", reconnect);
