// Actions: each asks the server what it would touch, shows it, and performs it.

import { act, ApiError, preview } from "./api.js";
import { openDialog } from "./dialog.js";
import { h, replace } from "./dom.js";
import { inputOf, labelled, valueOf, wrong } from "./fields.js";
import { localTimes } from "./format.js";
import { keepOperator, operatorField, operatorName, signedIn } from "./operator.js";
import { button } from "./parts.js";
import { toast } from "./toasts.js";

/**
 * Asks for an action and performs it. `body` is {target, values}, and what the preview has shown
 * of the target goes with it: it is performed only while that holds. onDone(result) is called after
 * it, and after its undo. Resolves with the result, or with null where it was not performed.
 */
export function confirmAction(name, body, { onDone } = {}) {
  return new Promise((resolve) => {
    let result = null;
    const problem = h("p", { class: "problem", role: "alert" });
    const content = h("div", null, h("p", { class: "muted" }, "Asking what it would touch …"));
    const back = button("Back", () => dialog.close());
    const confirm = button("…", null, { tone: "primary", disabled: true });
    const dialog = openDialog("One moment", h("div", { class: "stack" }, content, problem), [back, confirm], { onClose: () => resolve(result) });
    const fail = (error) => {
      replace(problem, error.message);
      if (!(error instanceof ApiError)) reportError(error);
    };

    function ask(shown) {
      if (!dialog.element.open) return;
      const form = formOf(shown, body);
      replace(dialog.heading, shown.title);
      replace(content, form.element);
      replace(confirm, shown.confirm ?? "Confirm");
      if (shown.grave) confirm.className = "danger";
      confirm.disabled = false;
      (form.first ?? confirm).focus();
      confirm.addEventListener("click", () => perform(form));
      // Enter confirms what is not grave: a form without a button of its own does not submit.
      form.element.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || event.target.tagName !== "INPUT" || event.isComposing) return;
        event.preventDefault();
        if (shown.grave) confirm.focus();
        else confirm.click();
      });
    }

    async function perform(form) {
      const sentence = form.problem();
      replace(problem, sentence);
      if (sentence) return;
      confirm.disabled = true;
      try {
        result = await act(name, form.body());
      } catch (error) {
        fail(error);
        confirm.disabled = false;
        return;
      }
      dialog.close();
      tell(result, onDone);
    }

    preview(name, body).then(ask).catch((error) => {
      replace(dialog.heading, "Not possible");
      replace(content);
      confirm.hidden = true;
      replace(back, "Close");
      fail(error);
    });
  });
}

/** What a preview says, with its fields: {element, first: to be filled in, problem(), body()}. */
function formOf(shown, body) {
  const fields = (shown.fields ?? []).map((field, index) => ({ field, input: inputOf(field, `field-${index}`) }));
  const reason = h("input", { id: "reason", type: "text", autocomplete: "off", maxLength: 1000, value: body.reason ?? "" });
  const operator = signedIn() ? null : operatorField();
  const element = h("form", { novalidate: true, on: { submit: (event) => event.preventDefault() } },
    [shown.touches ?? []].flat().map((sentence) => h("p", null, localTimes(sentence))),
    shown.undo ? h("p", { class: "muted" }, localTimes(shown.undo)) : h("p", { class: "note" }, "This cannot be undone."),
    fields.map(({ field, input }) => labelled(field.label, input, field.help)),
    labelled("Reason", reason, "Kept in the audit trail."),
    operator ? labelled("Your name", operator, "Kept in the audit trail and in this browser.") : h("p", { class: "muted" }, `The audit trail will name ${signedIn()}.`));
  return {
    element,
    first: fields[0]?.input ?? (operator?.value === "" ? operator : shown.grave ? reason : null),
    problem: () => fields.map(({ field, input }) => wrong(field, input)).find(Boolean) ?? (operator && !operator.value.trim() ? "Your name is needed for the audit trail." : null),
    body() {
      if (operator) keepOperator(operator.value.trim());
      const values = Object.fromEntries(fields.map(({ field, input }) => [field.name, valueOf(field, input)]));
      return { ...body, values: { ...body.values, ...values }, ...(shown.state && { state: shown.state }), reason: reason.value.trim(), operator: operatorName() };
    },
  };
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
