// Dialogs: each action asks the server what it would touch, shows it, and performs it.

import { act, ApiError, preview } from "./api.js";
import { h, replace } from "./dom.js";
import { fieldTime, localTimes } from "./format.js";
import { keep, kept } from "./kept.js";
import { toast } from "./toasts.js";

const KEPT = "cmdbus.operator";
let session = { user: null, operator: null };

/** The session decides whether the operator's name is asked for. */
export function useSession(value) {
  session = value;
}

/** The operator's name: the signed-in user's, else the one that was given before. */
export const operatorName = () => session.user ?? kept(KEPT) ?? session.operator ?? "";

function keepOperator(text) {
  keep(KEPT, text);
  document.dispatchEvent(new CustomEvent("operator", { detail: text }));
}

/**
 * Opens a dialog and returns {element, close}. It closes by Escape, and gives the focus back.
 * `content` and `buttons` are nodes.
 */
export function openDialog(title, content, buttons, { onClose, wide } = {}) {
  const before = document.activeElement;
  const heading = h("h2", { id: "dialog-title" }, title);
  const element = h("dialog", { class: wide && "wide", "aria-labelledby": "dialog-title" }, heading, content, h("div", { class: "buttons" }, buttons));
  element.addEventListener("close", () => {
    element.remove();
    if (before?.isConnected) before.focus({ preventScroll: true });
    onClose?.();
  });
  document.body.append(element);
  element.showModal();
  return { element, heading, close: () => element.close() };
}

function inputOf(field, id) {
  const common = { id, name: field.name, required: Boolean(field.required), "aria-describedby": field.help ? id + "-help" : null };
  const value = field.value ?? "";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  if (field.kind === "json") return h("textarea", { ...common, class: "mono", rows: 10, spellcheck: "false", value: text });
  if (field.kind === "choice") return h("select", { ...common, value: text }, choices(field));
  if (field.kind === "boolean") return h("input", { ...common, required: false, type: "checkbox", checked: field.value === true });
  if (field.kind === "number") return h("input", { ...common, type: "number", step: "any", inputmode: "decimal", value: text });
  if (field.kind === "time") return h("input", { ...common, type: "datetime-local", step: 1, value: fieldTime(field.value) });
  return h("input", { ...common, type: "text", autocomplete: "off", value: text });
}

const choices = (field) =>
  [...(field.required ? [] : [{ value: "", label: "" }]), ...(field.choices ?? [])].map((one) => {
    const { value, label } = typeof one === "object" && one !== null ? one : { value: one, label: one };
    return h("option", { value: String(value), selected: String(value) === String(field.value ?? "") }, String(label ?? value));
  });

/** What a field sends: JSON stays the text that was written, a time is ISO in UTC, no entry is null. */
function valueOf(field, input) {
  if (field.kind === "boolean") return input.checked;
  const text = field.kind === "json" ? input.value : input.value.trim();
  if (text === "") return null;
  if (field.kind === "number") return Number(text);
  if (field.kind === "time") return new Date(text).toISOString();
  return text;
}

/** The reason why a field's value cannot be sent, or null. */
function wrong(field, input) {
  if (field.required && field.kind !== "boolean" && !input.value.trim()) return `${field.label} is needed.`;
  if (!input.validity.valid) return `${field.label}: ${input.validationMessage}`;
  if (field.kind === "json" && input.value.trim()) {
    try {
      JSON.parse(input.value);
    } catch (error) {
      return `${field.label} is not JSON: ${error.message}.`;
    }
  }
  return null;
}

const row = (label, input, help) =>
  h("div", { class: input.type === "checkbox" ? "field check" : "field" }, h("label", { for: input.id }, label), input, help && h("p", { class: "muted", id: input.id + "-help" }, help));

/**
 * Asks for an action and performs it. `body` is {target, values}, and what the preview has shown
 * of the target goes with it: it is performed only while that holds. onDone(result) is called after
 * it, and after its undo. Resolves with the result, or with null where it was not performed.
 */
export function confirmAction(name, body, { onDone } = {}) {
  return new Promise((resolve) => {
    let result = null;
    const problem = h("p", { class: "problem", role: "alert" });
    const content = h("form", { method: "dialog", novalidate: true }, h("p", { class: "muted" }, "Asking what it would touch …"));
    const cancel = h("button", { type: "button", on: { click: () => dialog.close() } }, "Back");
    const confirm = h("button", { type: "button", class: "primary", disabled: true }, "…");
    const dialog = openDialog("One moment", h("div", { class: "stack" }, content, problem), [cancel, confirm], { onClose: () => resolve(result) });
    const fail = (error) => {
      replace(problem, error.message);
      if (!(error instanceof ApiError)) reportError(error);
    };
    ask().catch((error) => {
      replace(dialog.heading, "Not possible");
      replace(content);
      confirm.hidden = true;
      replace(cancel, "Close");
      fail(error);
    });

    async function ask() {
      const shown = await preview(name, body);
      if (!dialog.element.open) return;
      replace(dialog.heading, shown.title);
      const fields = (shown.fields ?? []).map((field, index) => ({ field, input: inputOf(field, `field-${index}`) }));
      const reason = h("input", { id: "reason", type: "text", autocomplete: "off", maxLength: 1000, value: body.reason ?? "" });
      const operator = session.user ? null : h("input", { id: "operator", type: "text", autocomplete: "name", required: true, value: operatorName() });
      replace(content,
        [shown.touches ?? []].flat().map((sentence) => h("p", null, localTimes(sentence))),
        shown.undo ? h("p", { class: "muted" }, localTimes(shown.undo)) : h("p", { class: "note" }, "This cannot be undone."),
        fields.map(({ field, input }) => row(field.label, input, field.help)),
        row("Reason", reason, "Kept in the audit trail."),
        operator ? row("Your name", operator, "Kept in the audit trail and in this browser.") : h("p", { class: "muted" }, `The audit trail will name ${session.user}.`));
      replace(confirm, shown.confirm ?? "Confirm");
      if (shown.grave) confirm.className = "danger";
      confirm.disabled = false;
      (fields[0]?.input ?? (operator && !operator.value ? operator : shown.grave ? reason : confirm)).focus();
      content.addEventListener("submit", (event) => {
        event.preventDefault();
        if (!confirm.disabled) confirm.click();
      });
      confirm.addEventListener("click", async () => {
        const said = fields.map(({ field, input }) => wrong(field, input)).find(Boolean) ?? (operator && !operator.value.trim() ? "Your name is needed for the audit trail." : null);
        replace(problem, said);
        if (said) return;
        const values = { ...body.values };
        for (const { field, input } of fields) values[field.name] = valueOf(field, input);
        if (operator) keepOperator(operator.value.trim());
        confirm.disabled = true;
        try {
          result = await act(name, { ...body, values, ...(shown.state && { state: shown.state }), reason: reason.value.trim(), operator: operatorName() });
        } catch (error) {
          fail(error);
          confirm.disabled = false;
          return;
        }
        dialog.close();
        tell(result, onDone);
      });
      // Enter confirms what is not grave: a form without a button of its own does not submit.
      content.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && event.target.tagName === "INPUT" && !event.isComposing) {
          event.preventDefault();
          if (shown.grave) confirm.focus();
          else confirm.click();
        }
      });
    }
  });
}

function tell(result, onDone) {
  const undo = result.undo;
  toast(result.done, {
    tone: "good",
    action: undo && { label: undo.label ?? "Undo", run: () => takeBack(undo, onDone) },
    detail: undo ? null : result.undone,
  });
  onDone?.(result);
}

async function takeBack(undo, onDone) {
  try {
    const result = await act(undo.action, { reason: "undone in the page", ...undo.body, operator: operatorName() });
    toast(result.done, { tone: "good" });
    onDone?.(result);
  } catch (error) {
    toast(error.message, { tone: "bad" });
  }
}

/** Asks for the operator's name alone. */
export function askOperator() {
  const input = h("input", { id: "operator", type: "text", autocomplete: "name", value: operatorName() });
  const done = () => {
    keepOperator(input.value.trim());
    dialog.close();
  };
  const form = h("form", { on: { submit: (event) => { event.preventDefault(); done(); } } }, row("Your name", input, "The audit trail of every action names it. This browser keeps it."));
  const dialog = openDialog("Operator", form, [
    h("button", { type: "button", on: { click: () => dialog.close() } }, "Back"),
    h("button", { type: "button", class: "primary", on: { click: done } }, "Keep"),
  ]);
  input.focus();
}
