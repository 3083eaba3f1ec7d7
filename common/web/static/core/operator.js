// The operator's name, which every action carries into the audit trail.

import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { labelled } from "./fields.js";
import { keep, kept } from "./kept.js";
import { button } from "./parts.js";

const KEPT = "cmdbus.operator";
let session = { user: null, operator: null };

/** The session decides whether the operator's name is asked for. */
export function useSession(value) {
  session = value;
}

/** The user who is signed in, if the server knows one. */
export const signedIn = () => session.user;

/** The signed-in user's name, else the one that was given before. */
export const operatorName = () => session.user ?? kept(KEPT) ?? session.operator ?? "";

export function keepOperator(text) {
  keep(KEPT, text);
  document.dispatchEvent(new CustomEvent("operator", { detail: text }));
}

export const operatorField = () => h("input", { id: "operator", type: "text", autocomplete: "name", required: true, value: operatorName() });

/** Asks for the name alone. */
export function askOperator() {
  const input = operatorField();
  const done = (event) => {
    event.preventDefault();
    keepOperator(input.value.trim());
    dialog.close();
  };
  const form = h("form", { novalidate: true, on: { submit: done } }, labelled("Your name", input, "The audit trail of every action names it. This browser keeps it."));
  const dialog = openDialog("Operator", form, [button("Back", () => dialog.close()), button("Keep", done, { tone: "primary" })]);
  input.focus();
}
