// One command: what it is, why it does not run, how it spent its time, and all that happened to it.

import { get } from "../core/api.js";
import { timeline } from "../core/charts.js";
import { confirmAction } from "../core/confirm.js";
import { diffBlock } from "../core/diff.js";
import { h, keyed, onChange, replace } from "../core/dom.js";
import { editData } from "../core/editor.js";
import { count, duration, localTimes, now, short, timeElement } from "../core/format.js";
import { live } from "../core/view.js";
import { button, codeBlock, copyButton, domainLink, empty, facts, name, panel, payloadBlock, statusTag, tag, words } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";
import { treeOf } from "../core/tree.js";

const IN_TROUBLE = "IN_TROUBLESHOOTING_QUEUE";
const PARTS = {
  waited: ["waited", "info"], ran: ["ran", "run"], retried: ["between attempts", "warn"],
  later: ["kept until due", "muted"], trouble: ["in trouble", "bad"],
};
const OUTCOMES = {
  RUNNING: ["running", "run"], COMPLETED: ["completed", "good"], FAILED: ["failed, retried", "warn"], LOST: ["lost", "warn"],
  BUSINESS_RULE_FAILED: ["refused by a rule", "warn"], CANCELED: ["canceled", "muted"], MOVED_TO_TROUBLESHOOTING_QUEUE: ["failed for good", "bad"],
};

export const title = ({ parts }) => `Command ${short(parts[1])}`;

export async function show(root, { parts, params, session, navigate, tools, signal, rename, keys }) {
  const [domain, id] = parts;
  if (!domain || !id) {
    root.append(empty("No command is named", "A command is found by its domain and its id."));
    return { close() {} };
  }
  const head = h("div", { class: "stack" });
  const lines = section("Time");
  const sections = ["data", "result", "checkpoint"].map((what) => [what, section(what[0].toUpperCase() + what.slice(1))]);
  const attempts = h("div", { class: "stack" });
  const attemptsCard = panel("Attempts", attempts);
  const audit = h("ul", { class: "events" });
  const auditCard = panel("Audit trail", audit);
  const related = section("Related");
  let value = null;

  const body = () => ({ target: { commands: [[domain, id]] } });
  const run = (action, more) => confirmAction(action, { ...body(), ...more });
  const inTrouble = () => session.acts && value?.status === IN_TROUBLE;
  const retry = () => (inTrouble() ? void run("retry") : false);
  const edit = () => (inTrouble() ? void editData({ domain, id, onText: (data) => run("retry", { values: { data } }) }) : false);
  keys([
    { key: "r", label: "Retry", run: retry },
    { key: "e", label: "Edit the data and retry", run: edit },
  ]);

  const drawHead = onChange((v) => replace(head, headOf(v)));
  const drawState = onChange(() => {
    replace(tools, session.acts ? buttonsOf(value.status, value.restricted, { run, retry, edit }) : []);
    loadTree();
  });

  const drawTime = onChange((parts) => replace(lines.body, timeOf(parts)));

  const payloads = sections.map(([what, { card, body }]) => [what, onChange((payload) => {
    card.hidden = payload === null;
    const whole = async () => (await get(apiPath(["payload", domain, id, what]))).text;
    replace(body, payload && payloadBlock(payload, `${what}-${id}.json`, whole));
  })]);

  function drawAttempts(runs) {
    attemptsCard.hidden = !runs.length;
    keyed(attempts, runs.toReversed(), (one) => `${one.from ?? one.at} ${one.worker}`, buildAttempt);
  }

  function drawAudit(v) {
    const older = v.audit_left_out ? [{ number: -1, all: v.audit.length + v.audit_left_out }] : [];
    keyed(audit, [...(v.audit ?? []).toReversed(), ...older], (one) => one.number, (one) => (one.number < 0 ? more(one) : eventRow(one)));
  }

  const more = ({ all }) => h("li", null, button(`Show all ${count(all)} events`, () => navigate({ events: 10000 }), { small: true }));

  async function loadTree() {
    try {
      const found = await get(apiPath(["related", domain, id]), {}, { signal });
      replace(related.body, relatedOf(found, id), h("div", null, button("Look again", loadTree, { small: true })));
    } catch (error) {
      if (error.name !== "AbortError") replace(related.body, h("p", { class: "muted" }, error.message));
    }
  }

  function update(next) {
    value = next;
    rename(`${value.domain}/${value.type} ${short(value.command_id)}`);
    drawHead({ ...value, data: null, result: null, checkpoint: null, audit: null, executions: null, timeline: null });
    lines.card.hidden = !value.timeline?.length;
    drawTime(value.timeline ?? []);
    for (const [what, draw] of payloads) draw(value[what] ?? null);
    drawAttempts(value.executions ?? []);
    auditCard.hidden = !value.audit?.length;
    drawAudit(value);
    drawState(`${value.status} ${value.audit?.length}`);
  }

  root.append(head, lines.card, attemptsCard, h("div", { class: "split" }, sections.map(([, one]) => one.card)), auditCard, related.card);
  return live(root, apiPath(["command", domain, id], { events: params.events }), signal, update);
}

function section(heading) {
  const body = h("div", { class: "stack" });
  return { body, card: panel(heading, body) };
}

function buttonsOf(status, restricted, { run, retry, edit }) {
  if (status === IN_TROUBLE) {
    return [
      button("Retry", retry, { tone: "primary", title: "r" }),
      !restricted && button("Edit data and retry", edit, { title: "e" }),
      button("Complete", () => run("complete")),
      button("Cancel", () => run("cancel_trouble"), { tone: "danger" }),
    ];
  }
  if (status === "PENDING") return [button("Run now or later", () => run("reschedule")), button("Cancel", () => run("cancel"), { tone: "danger" })];
  return [];
}

function headOf(v) {
  return [
    h("div", { class: "toolbar" }, statusTag(v.status), name(`${v.domain}/${v.type}`), h("code", null, v.command_id), copyButton(v.command_id)),
    v.why && h("p", null, localTimes(v.why)),
    v.error_code && h("div", { class: "toolbar" }, tag(v.error_code, v.status === IN_TROUBLE ? "bad" : "warn"), h("span", null, v.error_message ?? "")),
    panel(null, facts(factsOf(v))),
    v.headers && Object.keys(v.headers).length > 0 && panel("Headers", facts(Object.entries(v.headers).map(([header, text]) => [header, name(text)]))),
  ];
}

function factsOf(v) {
  const { batch, process } = v.links ?? {};
  return [
    ["Domain", domainLink(v.domain)], ["Type", h("a", { href: link("commands", { domain: v.domain, type: v.type }) }, v.type)],
    ["Sent", timeElement(v.created_at, "both")], ["Due", v.due_at !== v.created_at ? timeElement(v.due_at, "both") : null],
    ["Started", v.started_at && timeElement(v.started_at, "both")], ["Finished", v.finished_at && timeElement(v.finished_at, "both")],
    ["Expires", v.expires_at && timeElement(v.expires_at, "both")],
    ["Attempts", v.max_attempts ? `${count(v.attempts)} of ${count(v.max_attempts)}` : count(v.attempts)], ["Priority", v.priority], ["Worker", v.worker && name(v.worker)],
    ["Key", v.key && h("a", { href: link("commands", { domain: v.domain, key: v.key }) }, v.key)], ["Unique key", v.unique_key && name(v.unique_key)],
    ["Correlation", h("a", { class: "mono", title: v.correlation_id, href: link("commands", { correlation: v.correlation_id }) }, short(v.correlation_id))],
    ["Reply to", v.reply_to && domainLink(v.reply_to)],
    ["Batch", v.batch_id && h("span", null, h("a", { href: link(["batch", v.batch_id]) }, batch?.name ?? short(v.batch_id)), " ", batch && statusTag(batch.status))],
    ["Process", process && h("span", null, h("a", { href: link(["process", process.process_id]) }, process.type), " ", statusTag(process.status), process.step && ` ${process.step}`)],
  ];
}

/** The line of its time, and the sums of its parts by their kind. */
function timeOf(parts) {
  const shown = parts.map((part) => {
    const [label, tone] = PARTS[part.kind] ?? [part.kind, "a"];
    const seconds = ((part.to ? Date.parse(part.to) : now()) - Date.parse(part.from)) / 1000;
    const what = part.attempt ? `attempt ${part.attempt} ${label}` : label;
    return { label, tone, from: part.from, to: part.to, title: `${what} ${part.to ? duration(seconds) : "since " + duration(seconds)}`, seconds };
  });
  const sums = new Map();
  for (const { label, tone, seconds } of shown) sums.set(label, [tone, (sums.get(label)?.[1] ?? 0) + seconds]);
  return [
    timeline(shown, { label: "Time of the command" }),
    h("div", { class: "toolbar" }, [...sums].map(([label, [tone, seconds]]) => tag(`${label} ${duration(seconds)}`, tone))),
  ];
}

function relatedOf(found, id) {
  const hasOthers = found.count > 1 || found.tree.some((node) => node.kind !== "command");
  return [
    hasOthers ? treeOf(found.tree, id) : h("p", { class: "muted" }, "No other command has its correlation id."),
    found.cut && h("p", { class: "note note-info" }, "There may be more: the search was ended. ", h("a", { href: link("commands", { correlation: found.correlation_id }) }, "Search on"), "."),
  ];
}

function buildAttempt(one, before) {
  const [label, tone] = OUTCOMES[one.outcome] ?? ["given back", "muted"];
  const seconds = one.from && one.to ? (Date.parse(one.to) - Date.parse(one.from)) / 1000 : null;
  const texts = [["Traceback", one.traceback], ["Stack", one.stack], ["Statement", one.sql], ["Blocked by", one.blocked_by?.join("\n")]].filter(([, text]) => text);
  const summary = h("summary", null, `Attempt ${one.attempt ?? "–"} `, tag(label, tone), " ", one.code && h("strong", null, one.code), " ", one.message ?? "");
  return h("details", { open: before?.open ?? (one.outcome === "MOVED_TO_TROUBLESHOOTING_QUEUE") }, summary,
    facts([["Began", one.from && timeElement(one.from, "both")], ["Took", seconds === null ? null : duration(seconds)], ["Worker", one.worker && name(one.worker)], ["Error", one.exception && name(one.exception)], ["Reason", one.reason && words(one.reason)]]),
    texts.map(([heading, text]) => h("div", null, h("h3", null, heading), codeBlock(text, heading))),
    one.details && h("div", null, h("h3", null, "Details"), payloadBlock(one.details, "details.json")));
}

function eventRow(event) {
  const cut = event.change && (event.change.before.cut || event.change.after.cut);
  return h("li", null,
    h("div", { class: "toolbar" }, timeElement(event.at, "clock"), tag(words(event.kind)), event.attempt !== null && h("span", { class: "muted" }, `attempt ${event.attempt}`),
      event.operator && h("strong", null, event.operator), event.worker && name(event.worker), event.code && h("code", null, event.code), event.message && h("span", null, event.message)),
    event.change && h("details", null, h("summary", null, "Data before and after"), cut && h("p", { class: "muted" }, "Only the beginnings are compared."), diffBlock(event.change.before.text, event.change.after.text)),
    event.details && h("details", null, h("summary", null, "Details"), payloadBlock(event.details, `event-${event.number}.json`)));
}
