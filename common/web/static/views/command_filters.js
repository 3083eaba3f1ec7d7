// The filters of the view of commands. What they are is in the address alone.

import { get } from "../core/api.js";
import { h, replace } from "../core/dom.js";
import { fieldTime } from "../core/format.js";
import { link } from "../core/router.js";

const UUID = /^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$/i;
const STATUSES = [
  ["", "All"], ["PENDING", "Pending"], ["IN_PROGRESS", "In progress"], ["COMPLETED", "Completed"],
  ["FAILED", "Failed"], ["CANCELED", "Canceled"], ["IN_TROUBLESHOOTING_QUEUE", "In trouble"],
];
const AGES = { "15m": 900, "1h": 3600, "24h": 86400, "7d": 604800 };
const AGE_LABELS = [["", "Any time"], ["15m", "Last 15 minutes"], ["1h", "Last hour"], ["24h", "Last 24 hours"], ["7d", "Last 7 days"], ["between", "Between …"]];
const MORE = [["error_code", "Error code"], ["key", "Key"], ["batch", "Batch id"], ["correlation", "Correlation id"]];
const NAMES = ["domain", "type", "status", "text", "id", "age", "since", "until", ...MORE.map(([name]) => name)];

/** The filters that an address has set, by their names. */
export const filtersOf = (params) => Object.fromEntries(NAMES.filter((name) => params[name]).map((name) => [name, params[name]]));

/** What the server is asked: an age becomes a time. */
export function queryOf(params) {
  const { age, since, ...query } = filtersOf(params);
  const seconds = AGES[age];
  const from = seconds ? new Date(Date.now() - 1000 * seconds).toISOString() : since;
  return { ...query, since: from, after: params.after, limit: params.rows };
}

/** {element, fill(params)}; a change goes to the address by `navigate`. */
export function filterBar({ navigate, restricted }) {
  const fields = {};
  const change = (values) => navigate({ id: null, after: null, ...values });
  const field = (name, label, attrs = {}) => {
    fields[name] = h("input", { name, type: "text", autocomplete: "off", spellcheck: "false", ...attrs, on: { change: () => change({ [name]: fields[name].value.trim() || null }) } });
    return h("label", null, label, fields[name]);
  };
  const text = h("input", {
    name: "text", type: "search", autocomplete: "off", spellcheck: "false", data: { filter: "" }, size: 34,
    placeholder: restricted ? "Id of a command" : "Text in data or error, or an id",
    on: { change: find, search: find },
  });
  function find() {
    const value = text.value.trim();
    const refused = restricted && value && !UUID.test(value);
    text.setCustomValidity(refused ? "The database role of this page finds commands by their whole id alone." : "");
    if (refused) {
      text.reportValidity();
      return;
    }
    if (UUID.test(value)) navigate(link(["commands"], { id: value.toLowerCase() }));
    else change({ text: value || null });
  }
  const statuses = STATUSES.map(([value, label]) => h("button", { type: "button", data: { value }, on: { click: () => change({ status: value || null }) } }, label));
  const age = h("select", { name: "age", on: { change: () => change({ age: age.value || null, since: null, until: null }) } }, AGE_LABELS.map(([value, label]) => h("option", { value }, label)));
  const times = ["since", "until"].map((name) => {
    fields[name] = h("input", { name, type: "datetime-local", step: 1, on: { change: () => {
      const at = new Date(fields[name].value);
      change({ age: null, [name]: Number.isNaN(at.getTime()) ? null : at.toISOString() });
    } } });
    return h("label", { hidden: true }, name === "since" ? "Sent since" : "Sent before", fields[name]);
  });
  const lists = { domain: h("datalist", { id: "known-domains" }), type: h("datalist", { id: "known-types" }) };
  const more = h("details", null, h("summary", null, "More filters"),
    h("div", { class: "filters" }, MORE.filter(([name]) => !(restricted && name === "key")).map(([name, label]) => field(name, label, { size: name.length > 6 ? 36 : 20 }))));
  const clear = h("a", { href: "#/commands", hidden: true }, "Clear filters");
  const form = h("form", { class: "stack", role: "search", "aria-label": "Commands", on: { submit: (event) => {
    event.preventDefault();
    if (document.activeElement === text) find();
  } } },
    h("div", { class: "filters" },
      h("label", null, "Search", text),
      field("domain", "Domain", { list: "known-domains", size: 16 }),
      field("type", "Type", { list: "known-types", size: 20 }),
      h("label", null, "Sent", age), times, clear, Object.values(lists)),
    h("div", null, h("div", { class: "choice", role: "group", "aria-label": "Status" }, statuses)),
    more);
  let known = null;

  // Once, when they may be needed: most addresses come with their filters.
  async function learn() {
    if (known) return;
    known = {};
    try {
      ({ domains: known } = await get("commands/names"));
    } catch {
      known = null;
      return;
    }
    offer();
  }

  function offer() {
    if (!known) return;
    const domain = fields.domain.value.trim();
    const types = known[domain] ?? [...new Set(Object.values(known).flat())].sort();
    replace(lists.domain, Object.keys(known).map((value) => h("option", { value })));
    replace(lists.type, types.map((value) => h("option", { value })));
  }
  form.addEventListener("focusin", learn);

  function fill(params) {
    const between = params.since || params.until ? "between" : "";
    put(text, params.id ?? params.text);
    for (const name of ["domain", "type", ...MORE.map(([each]) => each)]) if (fields[name]) put(fields[name], params[name]);
    put(age, params.age ?? between);
    for (const name of ["since", "until"]) put(fields[name], fieldTime(params[name]));
    for (const label of times) label.hidden = age.value !== "between";
    for (const button of statuses) button.setAttribute("aria-pressed", String(button.dataset.value === (params.status ?? "")));
    if (MORE.some(([name]) => params[name])) more.open = true;
    clear.hidden = Object.keys(filtersOf(params)).length === 0;
    offer();
  }

  return { element: form, fill };
}

function put(input, value) {
  if (input.value !== (value ?? "")) input.value = value ?? "";
}
