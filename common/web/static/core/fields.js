// Fields of forms, as the previews of actions describe them.

import { h } from "./dom.js";
import { fieldTime } from "./format.js";

/** The input of a field {name, label, kind, required, value, choices, help}, as previews of actions have them. */
export function inputOf(field, id) {
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
export function valueOf(field, input) {
  if (field.kind === "boolean") return input.checked;
  const text = field.kind === "json" ? input.value : input.value.trim();
  if (text === "") return null;
  if (field.kind === "number") return Number(text);
  if (field.kind === "time") return new Date(text).toISOString();
  return text;
}

/** The reason why a field's value cannot be sent, or null. */
export function wrong(field, input) {
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

/** An input with its label, and a sentence that helps. */
export const labelled = (label, input, help) =>
  h("div", { class: input.type === "checkbox" ? "field check" : "field" }, h("label", { for: input.id }, label), input, help && h("p", { class: "muted", id: input.id + "-help" }, help));
