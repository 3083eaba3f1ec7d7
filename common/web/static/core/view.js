// What views have in common: live values, filters in the hash, pages, actions, audit trails.

import { get } from "./api.js";
import { confirmAction } from "./confirm.js";
import { h, onChange, replace, setText } from "./dom.js";
import { timeElement } from "./format.js";
import { watch } from "./live.js";
import { button, empty, indented, panel, payloadBlock, preformatted, restrictedNote, words } from "./parts.js";
import { table } from "./table.js";

/** A column of a table. */
export const col = (key, label, render, more) => ({ key, label, render, ...more });

/** The column of a time. */
export const when = (key, label, more) => col(key, label, (row) => timeElement(row[key]), more);

/**
 * Reads a path, shows it by draw(value), and again whenever it changes. The first error is the
 * view's own; later ones are shown above it. Resolves with what closes the view.
 */
export async function live(root, path, signal, draw) {
  const problem = problemNote();
  const first = await get(path, {}, { signal });
  root.prepend(problem);
  if (first.restricted) root.prepend(restrictedNote());
  draw(first);
  return { close: problem.watch(path, (value) => value !== first && draw(value)) };
}

/** A note with a `watch(path, draw)` of its own: it says why the path cannot be read, until it can. */
export function problemNote() {
  const note = h("p", { class: "note note-bad", role: "alert", hidden: true });
  const show = (error) => {
    note.hidden = !error;
    setText(note, error ? (error.message ?? error) : "");
  };
  note.watch = (path, draw) => watch(path, (value) => {
    show(null);
    draw(value);
  }, (state, { error }) => show(state === "failed" && error));
  return note;
}

/** Fields that change parameters of the hash: [name, label, choices] each. */
export function filters(fields, params, navigate) {
  const change = ({ target }) => navigate({ [target.name]: target.value.trim() || null, after: null });
  return h("form", { class: "filters", role: "search", on: { change, submit: (event) => event.preventDefault() } },
    fields.filter(Boolean).map(([name, label, choices]) => h("label", null, label, choices
      ? h("select", { name, value: params[name] ?? "" }, h("option", { value: "" }, "any"), choices.map((value) => h("option", { value }, words(value))))
      : h("input", { name, value: params[name] ?? "", type: "search", autocomplete: "off" }))));
}

/** A list in pages: the first is live, and a button reads the others. `path(params)` names a page. */
export async function paged(root, { params, signal }, { path, rows, keyOf, ...options }) {
  const shown = table({ keyOf, ...options });
  const more = button("More", read);
  let head = [];
  let tail = [];
  let next = null;
  root.append(h("div", { class: "card flush" }, shown.element), h("div", { class: "toolbar" }, more));
  const put = (first, others, after) => {
    const keys = new Set(first.map(keyOf));
    [head, tail, next] = [first, others.filter((row) => !keys.has(keyOf(row)) && keys.add(keyOf(row))), after];
    more.hidden = !next;
    shown.update([...head, ...tail]);
  };
  async function read() {
    more.disabled = true;
    try {
      const value = await get(path({ ...params, after: next }), {}, { signal });
      put(head, [...tail, ...rows(value)], value.next);
    } finally {
      more.disabled = false;
    }
  }
  return live(root, path(params), signal, (value) => {
    const found = rows(value);
    // Rows that newer ones have pushed off the first page stay, if there are others behind them.
    if (tail.length) put(found, [...head.filter((row) => row.created_at <= found.at(-1)?.created_at), ...tail], next);
    else put(found, [], value.next);
  });
}

/** A button that asks for an action on a target; absent where this page cannot act. */
export const acting = (session, label, action, target, options) =>
  session.acts && button(label, () => confirmAction(action, { target }), options);

/** Who has set something, when and why, behind what is set. */
export const setBy = (set) => set && [
  Object.entries(set.values).map(([key, value]) => `${key.replace("_", " ")} ${value ?? "none"}`).join(", "),
  h("span", { class: "muted" }, set.operator ? ` by ${set.operator}, ` : ", ", timeElement(set.at), set.reason && `: ${set.reason}`)];

/** An audit trail at the end of a view: a function of its events, the latest first. */
export function trail(root) {
  const shown = table({
    label: "Audit trail",
    keyOf: ({ at, kind, message }) => `${at} ${kind} ${message}`,
    columns: [
      col("kind", "Event", (event) => words(event.kind), { narrow: "title" }),
      col("at", "When", (event) => timeElement(event.at, "both")),
      col("operator", "Operator"),
      col("message", "Reason", reasonOf),
    ],
    empty: empty("Nothing yet", "What operators do is kept here."),
  });
  const note = h("p", { class: "muted" }, "Earlier events are not shown.");
  const box = panel("Audit trail", shown.element, note);
  return (events, more = false) => {
    if (!events) return;
    if (!box.isConnected) root.append(box);
    note.hidden = !more;
    shown.update(events);
  };
}

const reasonOf = ({ code, message, details }) => [
  [code, message].filter(Boolean).join(": "),
  details && h("details", null, h("summary", null, "Details"), preformatted("Details", indented(details.text)))];

/** A payload with its heading, which is drawn again only where it has changed. */
export function payloadPanel(title, file) {
  const box = h("div");
  box.update = onChange((payload) => replace(box, payload && payload.text !== "null" && panel(title, payloadBlock(payload, file))));
  return box;
}
