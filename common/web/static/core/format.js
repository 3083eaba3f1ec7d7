// Figures, durations and times as the page writes them.

import { h } from "./dom.js";

export const NONE = "–";
const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const timeFormat = (options) => new Intl.DateTimeFormat(undefined, { hourCycle: "h23", ...options });
const EXACT = timeFormat({ dateStyle: "medium", timeStyle: "medium" });
const CLOCK = timeFormat({ timeStyle: "medium" });
const DAY = timeFormat({ month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const YEAR = timeFormat({ dateStyle: "medium" });

const absent = (value) => value === null || value === undefined || Number.isNaN(value);

// Milliseconds that this computer's clock is ahead of the server's.
let ahead = 0;
let smallest = Infinity;

/** Learns the difference of the clocks from a time of the server that has just arrived. */
export function observeServerTime(iso) {
  const difference = Date.now() - Date.parse(iso);
  if (!(Math.abs(difference) < smallest)) return;
  smallest = Math.abs(difference);
  // What is read may be a few seconds old: only a clock that is wrong by more matters.
  ahead = smallest > 5000 ? difference : 0;
}

/** The time now by the server's clock, in milliseconds. */
export const now = () => Date.now() - ahead;

/** 0.4 s, 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (absent(seconds)) return NONE;
  const sign = seconds < 0 ? "−" : "";
  const all = Math.abs(seconds);
  if (all === 0) return "0 s";
  if (all < 0.001) return sign + "< 1 ms";
  if (all < 0.9995) return `${sign}${Math.round(all * 1000)} ms`;
  if (all < 9.95) return `${sign}${all.toFixed(1)} s`;
  const whole = Math.round(all);
  if (whole < 60) return `${sign}${whole} s`;
  const [large, unit, small, part] =
    whole < 3600 ? [60, "min", 1, "s"] : whole < 86400 ? [3600, "h", 60, "min"] : [86400, "d", 3600, "h"];
  const first = Math.floor(whole / large);
  const rest = Math.floor((whole % large) / small);
  return `${sign}${unit === "d" ? count(first) : first} ${unit}${rest ? ` ${rest} ${part}` : ""}`;
}

/** How long ago a time was, or in how long it will be; in at most one unit. */
export function ago(iso) {
  if (!iso) return NONE;
  const seconds = (now() - Date.parse(iso)) / 1000;
  if (Number.isNaN(seconds)) return String(iso);
  const all = Math.abs(seconds);
  if (all < 1.5) return "now";
  const text = rough(all);
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}

function rough(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${COUNT.format(Math.round(seconds / 86400))} d`;
}

/** The time in the viewer's zone: the clock alone on the same day, else with its date. */
export function clock(iso) {
  const at = new Date(iso);
  if (!iso || Number.isNaN(at.getTime())) return iso ? String(iso) : NONE;
  const today = new Date(now());
  if (at.toDateString() === today.toDateString()) return CLOCK.format(at);
  return at.getFullYear() === today.getFullYear() ? DAY.format(at) : YEAR.format(at);
}

/** The exact time in the viewer's zone and in UTC. */
export function exact(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? String(iso) : `${EXACT.format(at)} (${at.toISOString()})`;
}

/**
 * A `time` element in the viewer's zone with the exact time in its title. It says how long ago the
 * time was and ticks; with `form` "clock" it says the time itself, with "both" one after the other.
 */
export function timeElement(iso, form = "ago") {
  if (!iso) return h("span", { class: "muted" }, NONE);
  const element = h("time", { datetime: iso, title: exact(iso), data: { form } });
  element.textContent = timeText(iso, form);
  return element;
}

function timeText(iso, form) {
  if (form === "clock") return clock(iso);
  return form === "both" ? `${clock(iso)}, ${ago(iso)}` : ago(iso);
}

const SERVER_TIME = /(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?\+00:00)/;

/** A sentence of the server with its times, which are UTC, in the viewer's zone. */
export function localTimes(sentence) {
  const parts = String(sentence).split(SERVER_TIME);
  const found = [parts[0]];
  for (let at = 1; at < parts.length; at += 3) found.push(timeElement(`${parts[at]}T${parts[at + 1]}`, "clock"), parts[at + 2]);
  return found;
}

/** A time as a field for dates shows it, in the viewer's zone; empty without one. */
export function fieldTime(iso) {
  const at = new Date(iso ?? "");
  return Number.isNaN(at.getTime()) ? "" : new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

/** Gives a `time` element another time, without building it again. */
export function setTime(element, iso) {
  if (element.getAttribute("datetime") !== iso) {
    element.setAttribute("datetime", iso);
    element.title = exact(iso);
  }
  const text = timeText(iso, element.dataset.form);
  if (element.textContent !== text) element.textContent = text;
}

/** Moves the ticking times on; the shell calls it each second while the page is visible. */
export function tick(root = document) {
  for (const element of root.querySelectorAll("time[data-form]")) {
    if (element.dataset.form !== "clock") setTime(element, element.getAttribute("datetime"));
  }
}

/** 1,204 */
export const count = (n) => (absent(n) ? NONE : COUNT.format(n));

/** A word with its number: 1 command, 1,204 commands. */
export const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;

/** 12.3/s; rates below one in ten seconds are per minute or hour. */
export function rate(n) {
  if (absent(n)) return NONE;
  if (n === 0) return "0/s";
  if (n >= 100) return `${COUNT.format(n)}/s`;
  if (n >= 0.1) return `${digits(n)}/s`;
  return n * 60 >= 0.1 ? `${digits(n * 60)}/min` : `${digits(n * 3600)}/h`;
}

const digits = (n) => (n >= 10 ? String(Math.round(n)) : n.toFixed(1).replace(/\.0$/, ""));

/** 12.3 KiB */
export function bytes(n) {
  if (absent(n)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = n;
  while (value >= 1023.95 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 99.95 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** The end of an id, which differs where its beginning is a time. */
export const short = (id) => (!id ? NONE : String(id).length <= 12 ? String(id) : "…" + String(id).slice(-8));

/** 12 %; never 0 % or 100 % for what is not. */
export function percent(part, whole) {
  if (absent(part) || !whole) return NONE;
  const value = (100 * part) / whole;
  if (part > 0 && value < 1) return "< 1 %";
  if (part < whole && value > 99) return "> 99 %";
  return `${Math.round(value)} %`;
}
