// Parts that many views share, so that the same thing looks the same everywhere.

import { h, setText, visible } from "./dom.js";
import { bytes, short, NONE } from "./format.js";
import { link } from "./router.js";

const TONES = {
  PENDING: "info", IN_PROGRESS: "run", COMPLETED: "good", FAILED: "warn", CANCELED: "muted",
  IN_TROUBLESHOOTING_QUEUE: "bad", COMPLETED_WITH_FAILURES: "warn",
  RUNNING: "run", WAITING: "info", COMPENSATING: "warn", COMPENSATED: "warn", IN_TROUBLE: "bad",
  WAITING_FOR_REPLY: "run", WAITING_FOR_TSQ: "bad", SUCCESS: "good",
  CLOSED: "good", OPEN: "bad", HALF_OPEN: "warn",
};

const WORDS = { IN_TROUBLESHOOTING_QUEUE: "in trouble", WAITING_FOR_TSQ: "waiting for an operator" };

/** IN_TROUBLESHOOTING_QUEUE as "in trouble", COMPLETED_WITH_FAILURES as "completed with failures". */
export const words = (status) => WORDS[status] ?? String(status).toLowerCase().replaceAll("_", " ");

const BREAKS = /[_/.]./;

/** A text that breaks after _, / and . rather than inside a word. */
export const breakable = (text) =>
  typeof text !== "string" || !BREAKS.test(text) ? text : text.split(/(?<=[_/.])(?=.)/).flatMap((part, index) => (index ? [h("wbr"), part] : part));

/** A small label; tone is good, warn, bad, info, run or muted. */
export const tag = (text, tone, title) => h("span", { class: ["tag", tone && "tag-" + tone], title }, breakable(text));

/** The label of a status of a command, batch, process or breaker. */
export const statusTag = (status) => (status ? tag(words(status), TONES[String(status).toUpperCase()] ?? "muted") : NONE);

/** A name from outside, isolated from the direction of the text around it. */
export const name = (text) => h("bdi", { class: "name" }, breakable(text));

export const domainLink = (domain) => h("a", { href: link(["domain", domain]), class: "name" }, domain);

/** The link to one command, by the end of its id with the whole id in its title. */
export const commandLink = (domain, id, text) =>
  h("a", { href: commandHref({ domain, command_id: id }), class: "mono", title: id }, text ?? short(id));

/** What names a command in a table, and in the target of an action. */
export const commandKey = (row) => `${row.domain} ${row.command_id}`;
export const commandsTarget = (rows) => ({ target: { commands: rows.map((row) => [row.domain, row.command_id]) } });
export const commandHref = (row) => link(["command", row.domain, row.command_id]);

/** Says that there is nothing, why, and what to do next; `code` is an example to copy. */
export const empty = (title, text, code) =>
  h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), text && h("p", null, text), code && codeBlock(code));

/** Preformatted text, which the keyboard can scroll. */
export const preformatted = (label, ...text) => h("pre", { tabindex: "0", role: "group", "aria-label": label }, text);

/** Preformatted text with a button that copies it. */
export const codeBlock = (text, label = "Text") => h("div", { class: "code" }, preformatted(label, text), copyButton(text));

/** A button that copies the text, which may be given by a function. */
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "small", on: { click: copy } }, label);
  async function copy() {
    const value = typeof text === "function" ? text() : text;
    let done = true;
    try {
      await navigator.clipboard.writeText(value);
    } catch {
      done = copyBySelection(value, button);
    }
    button.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = label), 1500);
  }
  return button;
}

// Without https and off loopback a page has no clipboard.
function copyBySelection(value, near) {
  const area = h("textarea", { class: "unseen", value, "aria-hidden": "true" });
  (near.closest("dialog") ?? document.body).append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  near.focus({ preventScroll: true });
  return done;
}

/** JSON text indented for a reader; text that is not JSON stays as it is. Numbers keep their digits. */
export function indented(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let depth = 0;
  const line = () => "\n" + "  ".repeat(Math.min(depth, 40));
  return text.replace(/"(?:[^"\\]|\\.)*"|[[{]\s*[\]}]|[[{]|[\]}]|,|:|\s+/g, (part) => {
    if (part === ",") return part + line();
    if (part === ":") return ": ";
    if (/^\s/.test(part)) return "";
    if (part.length > 1) return part[0] === '"' ? part : part[0] + part.at(-1);
    depth += /[[{]/.test(part) ? 1 : -1;
    return /[[{]/.test(part) ? part + line() : line() + part;
  });
}

/**
 * A payload {text, bytes, cut, problem} of the server: indented, with its size, a copy and a
 * download. `read` resolves with all of its text, where more than the beginning can be had.
 */
export function payloadBlock({ text, bytes: size, cut, problem }, file, read) {
  const isPart = cut && !problem && read;
  return h("div", { class: "code" },
    problem && h("p", { class: "note" }, problem),
    preformatted(file, cut ? text : indented(text), isPart && "…"),
    h("div", { class: "toolbar" }, h("span", { class: "muted" }, cut ? `the beginning of ${bytes(size)}` : bytes(size)),
      isPart ? downloadButton(read, file, "Download all") : [copyButton(text), downloadButton(() => text, file)]));
}

/** A button that saves a text as a file; `read` returns or resolves with the text. */
function downloadButton(read, file, label = "Download") {
  return button(label, save, { small: true });
  async function save() {
    const url = URL.createObjectURL(new Blob([await read()], { type: "application/json" }));
    h("a", { href: url, download: visible(file).replace(/[^\w.-]+/g, "-") }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }
}

/** A card with a heading. */
export const panel = (title, ...children) =>
  h("section", { class: "card" }, title && h("h2", null, title), ...children);

/** Names and values as a description list; pairs whose value is null are left out. */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined)
    .map(([label, value]) => h("div", null, h("dt", null, label), h("dd", null, value))));

/** A figure with its label; `set(text, tone)` changes it. */
export function figure(label, value, { tone, href, title } = {}) {
  const number = h("span");
  const element = h(href ? "a" : "div", { class: "figure", href, title }, number, h("span", { class: "figure-label" }, label));
  element.set = (text, newTone) => {
    setText(number, text);
    number.className = `figure-value text-${newTone ?? tone}`;
  };
  element.set(value);
  return element;
}

/** A button; `tone` is primary or danger. */
export const button = (label, run, { tone, title, small, disabled } = {}) =>
  h("button", { type: "button", class: [tone, small && "small"], title, disabled, on: { click: run } }, label);

/** A field that narrows what the view shows, as the reader types; the key / goes there. */
export const searchField = (name, text, placeholder, onText) =>
  h("input", { type: "search", name, value: text ?? "", placeholder, "aria-label": placeholder, data: { filter: "" }, on: { input: ({ target }) => onText(target.value) } });

/** One of a few choices as a row of pressed buttons: choices are [value, label] pairs. */
export function choice(label, choices, chosen, onChoose) {
  return h("div", { class: "choice", role: "group", "aria-label": label }, choices.map(([value, text]) =>
    h("button", { type: "button", aria: { pressed: String(value === chosen) }, on: { click: () => onChoose(value) } }, text)));
}

/** What the role of the database cannot read is named once, above the view. */
export const restrictedNote = () =>
  h("p", { class: "note" }, "The database role of this page cannot read data, results, messages and keys.");
