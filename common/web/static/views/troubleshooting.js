// Commands that failed for good: grouped by error and type, and decided about one by one, by
// selection, or as a group.

import { get } from "../core/api.js";
import { confirmAction } from "../core/confirm.js";
import { h, replace, setText } from "../core/dom.js";
import { count, plural, timeElement } from "../core/format.js";
import { live, pages } from "../core/view.js";
import { button, commandHref, commandKey, commandLink, commandsTarget, empty, name, panel, searchField, tag } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";
import { table } from "../core/table.js";

const ACTIONS = [["retry", "Retry", "primary"], ["complete", "Complete"], ["cancel_trouble", "Cancel", "danger"]];

export const title = () => "Troubleshooting";

const linkOf = (row) => link("troubleshooting", { domain: row.domain, type: row.type, error_code: row.error_code });

export async function show(root, { params, session, signal, keys, navigate }) {
  const chosen = { domain: params.domain, type: params.type, error_code: params.error_code };
  const isChosen = Boolean(chosen.domain || chosen.type || chosen.error_code);
  const isGroup = Boolean(chosen.domain && chosen.type && chosen.error_code);
  const path = apiPath("troubleshooting", { ...chosen });
  const total = h("p", { class: "muted", role: "status" });
  const none = h("div");
  const groups = table({
    label: "Errors",
    keyOf: (row) => `${row.domain} ${row.type} ${row.error_code}`,
    link: linkOf,
    rowClass: (row) => isGroup && row.domain === chosen.domain && row.type === chosen.type && row.error_code === chosen.error_code && "selected",
    columns: [
      { key: "error_code", label: "Error", narrow: "title", render: (row) => tag(row.error_code ?? "no code", "bad") },
      { key: "type", label: "Type", render: (row) => h("a", { href: linkOf(row) }, name(`${row.domain}/${row.type}`)) },
      { key: "count", label: "Count", align: "right", render: (row) => count(row.count) },
      { key: "newest", label: "Latest", align: "right", render: (row) => timeElement(row.newest) },
      { key: "oldest", label: "Oldest", align: "right", narrow: "hide", render: (row) => timeElement(row.oldest) },
      { key: "message", label: "Latest message", render: (row) => row.message ?? "" },
    ],
    empty: none,
  });
  const commands = table({
    label: "Commands",
    keyOf: commandKey,
    selectable: session.acts,
    primary: isChosen,
    onSelect: drawSelected,
    link: commandHref,
    columns: [
      { key: "command_id", label: "Command", narrow: "title", render: (row) => commandLink(row.domain, row.command_id) },
      { key: "type", label: "Type", render: (row) => name(`${row.domain}/${row.type}`) },
      { key: "error_code", label: "Error", render: (row) => tag(row.error_code ?? "no code", "bad") },
      { key: "error_message", label: "Message", render: (row) => row.error_message ?? "" },
      { key: "attempts", label: "Attempts", align: "right", render: (row) => count(row.attempts) },
      { key: "failed_at", label: "Came here", align: "right", render: (row) => timeElement(row.failed_at) },
      { key: "key", label: "Key", narrow: "hide", render: (row) => row.key ?? "" },
    ],
    empty: h("p", { class: "empty" }, "None of these waits any longer. ", isChosen && h("a", { href: "#/troubleshooting" }, "All errors")),
  });
  const selected = h("div", { class: "toolbar" });
  const filter = searchField("q", params.q, "Filter the errors", (q) => navigate({ q }, { replace: true }));
  const list = pages({
    keyOf: commandKey,
    at: "failed_at",
    async read(after) {
      const page = await get(apiPath("troubleshooting", { ...chosen, after }), {}, { signal });
      return [page.commands, page.next];
    },
    show: commands.update,
  }, "Older ones");
  const heading = isChosen ? `Commands with ${chosen.error_code ?? "any error"} of ${[chosen.domain, chosen.type].filter(Boolean).join("/") || "all domains"}` : "All commands, the latest first";
  const card = panel(heading,
    isChosen && h("div", { class: "toolbar" }, h("a", { href: "#/troubleshooting" }, "All errors"), session.acts && ACTIONS.map(([action, label, tone]) => button(`${label} all of these`, () => confirmAction(action, { target: isGroup ? { group: chosen } : { match: chosen } }, { onDone: () => forget() }), { tone: tone === "danger" ? tone : null }))),
    selected, commands.element, h("div", { class: "toolbar" }, list.more));
  let all = [];

  function drawSelected(rows) {
    if (!session.acts) return;
    replace(selected, h("span", { class: "muted" }, rows.length ? `${plural(rows.length, "command")} selected` : "Select commands to decide about them."),
      ACTIONS.map(([action, label, tone]) => button(label, () => decide(action, rows), { tone, disabled: !rows.length, small: true })));
  }

  const decide = (action, rows) => confirmAction(action, commandsTarget(rows), { onDone: () => forget(new Set(rows.map(commandKey))) });

  /** What was decided about is gone from the pages that are not live. */
  function forget(keys) {
    list.forget(keys);
    commands.clear();
  }

  function retry() {
    const rows = commands.selected();
    const focused = commands.focused();
    if (!session.acts || (!rows.length && !focused)) return false;
    decide("retry", rows.length ? rows : [focused]);
    return true;
  }

  function drawGroups() {
    const wanted = filter.value.trim().toLowerCase();
    replace(none, all.length ? empty("No error matches the filter") : empty("Nothing waits for an operator", "Commands come here when they have failed for good: their attempts are used up, or the error says that another one is useless. Each has an operator's decision in its audit trail."));
    groups.update(wanted ? all.filter((row) => `${row.error_code} ${row.domain}/${row.type} ${row.message}`.toLowerCase().includes(wanted)) : all);
  }

  function update(value) {
    setText(total, `${value.complete ? "" : "More than "}${plural(value.total, "command")} ${value.total === 1 ? "waits" : "wait"} for an operator.`);
    card.hidden = value.restricted || value.total === 0;
    all = value.groups;
    drawGroups();
    list.update(value.commands, value.next);
  }

  keys([{ key: "r", label: "Retry the selected commands, or this one", run: retry }]);
  drawSelected([]);
  root.append(total, panel("Errors", h("div", { class: "filters" }, filter), groups.element), card);
  const { close } = await live(root, path, signal, update);
  return {
    close,
    /** Another filter needs no other values. */
    update: (next) => {
      if (next.domain !== chosen.domain || next.type !== chosen.type || next.error_code !== chosen.error_code) return false;
      filter.value = next.q ?? "";
      drawGroups();
      return true;
    },
  };
}
