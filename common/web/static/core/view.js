// What views have in common: live values, filters in the hash, pages, actions, audit trails.

import { get } from "./api.js";
import { confirmAction } from "./confirm.js";
import { h, onChange, replace, setText } from "./dom.js";
import { timeElement } from "./format.js";
import { watch } from "./live.js";
import { button, empty, indented, panel, payloadBlock, preformatted, restrictedNote, words } from "./parts.js";
import { table } from "./table.js";
import { toast } from "./toasts.js";

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

/**
 * Rows of a first page, which is live, and of those that a button reads behind it by `read(after)`.
 * `at` is the field by which they are sorted, the latest first; show(rows) gets all of them.
 */
export function pages({ keyOf, at = "created_at", read, show }, label = "More") {
  const more = button(label, readOn, { small: true });
  let [head, tail, next] = [[], [], null];

  function put(first, others, after) {
    const keys = new Set(first.map(keyOf));
    [head, tail, next] = [first, others.filter((row) => !keys.has(keyOf(row)) && keys.add(keyOf(row))), after];
    more.hidden = !next;
    show([...head, ...tail]);
  }

  async function readOn() {
    more.disabled = true;
    try {
      const [rows, after] = await read(next);
      put(head, [...tail, ...rows], after);
    } catch (error) {
      if (error.name !== "AbortError") toast(error.message, { tone: "bad" });
    } finally {
      more.disabled = false;
    }
  }

  return {
    more,
    /** The first page as it is now. Rows that newer ones have pushed off it stay, if there are others behind them. */
    update(rows, after) {
      if (tail.length) put(rows, [...head.filter((row) => row[at] <= rows.at(-1)?.[at]), ...tail], next);
      else put(rows, [], after);
    },
    /** Drops these rows from the pages that are not live, or all of them. */
    forget: (keys) => put(head, tail.filter((row) => keys && !keys.has(keyOf(row))), next),
  };
}

/** A list in pages. `path(params)` names one of them, and rows(value) are what it holds. */
export function paged(root, { params, signal }, { path, rows, keyOf, ...options }) {
  const shown = table({ keyOf, ...options });
  const read = async (after) => {
    const value = await get(path({ ...params, after }), {}, { signal });
    return [rows(value), value.next];
  };
  const list = pages({ keyOf, read, show: shown.update });
  root.append(h("div", { class: "card flush" }, shown.element), h("div", { class: "toolbar" }, list.more));
  return live(root, path(params), signal, (value) => list.update(rows(value), value.next));
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
