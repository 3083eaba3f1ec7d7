// One process: its steps as a track with their compensations, its state, and what happened to it.

import { timeline } from "../core/charts.js";
import { h, replace, s } from "../core/dom.js";
import { duration, short, timeElement } from "../core/format.js";
import { acting, col, live, payloadPanel, trail, when } from "../core/view.js";
import { commandLink, domainLink, facts, name, panel, statusTag, tag } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";
import { table } from "../core/table.js";

const TONES = { SUCCESS: "good", FAILED: "bad", CANCELED: "muted" };
const UNDONE = { SENT: "is being undone", SUCCESS: "undone", FAILED: "could not be undone", CANCELED: "undoing was canceled", SKIPPED: "needs no undoing" };

export const title = ({ parts }) => `Process ${short(parts[0])}`;

const isBack = (step) => step.undoes !== null;
const titled = (step) => (isBack(step) ? `undo ${step.step}` : step.step);
const toneOf = (step) => (step.outcome ? TONES[step.outcome] : step.command_status === "IN_TROUBLESHOOTING_QUEUE" ? "bad" : "run");
const took = (step) => duration(((step.received_at ? Date.parse(step.received_at) : Date.now()) - Date.parse(step.sent_at)) / 1000);
const linkOf = (step) => link(step.is_batch ? ["batch", step.command_id] : ["command", step.domain, step.command_id]);

/** A row of the track: steps go down on the left, and compensations on the right. */
const drawn = (step) => {
  const x = isBack(step) ? 30 : 10;
  return s("svg", { class: "spark", width: 40, height: 22, viewBox: "0 0 40 22", role: "img", "aria-label": isBack(step) ? "compensation" : "step" },
    s("path", { class: `line tone-${isBack(step) ? "warn" : "muted"}`, d: `M${x},0V22${step.undone === "SUCCESS" ? "M16,11H34" : ""}` }),
    s("circle", { class: `dot tone-${toneOf(step)}`, cx: x, cy: 11, r: 6 }));
};

const COLUMNS = [
  col("track", "Track", drawn, { narrow: "hide", width: "60px" }),
  col("step", "Step", (step) => name(titled(step)), { narrow: "title", width: "140px" }),
  col("outcome", "Outcome", (step) => [statusTag(step.outcome ?? step.command_status ?? "WAITING"), " ", step.undone && tag(UNDONE[step.undone], step.undone === "FAILED" ? "bad" : "warn")]),
  col("command_id", "Command", (step) => (step.is_batch ? h("a", { href: linkOf(step) }, "a batch") : [commandLink(step.domain, step.command_id), " ", name(`${step.domain}/${step.type}`)])),
  when("sent_at", "Sent"),
  col("took", "Took", (step) => step.received_at && took(step), { align: "right", width: "90px" }),
  col("error", "Error", (step) => [step.error, !step.outcome && step.deadline_at && [" deadline ", timeElement(step.deadline_at)]]),
];

export async function show(root, { parts: [id], session, signal, tools, rename, keys }) {
  const about = h("div");
  const steps = table({ label: "Steps", keyOf: (step) => step.number, link: linkOf, columns: COLUMNS, empty: "It has sent nothing yet." });
  const strip = timeline([], { label: "Steps over time" });
  const note = h("p", { class: "muted" }, "Earlier steps are not shown.");
  const track = panel("Steps", strip, steps.element, note);
  const state = payloadPanel("State", "state.json");
  const audit = trail(root);
  root.append(panel(null, about), track, state);
  keys([{ key: "r", label: "Retry the process", run: () => tools.querySelector("button.primary")?.click() }]);
  return live(root, apiPath(["process", id]), signal, (process) => {
    const { status, finished_at: over, batch_id: batch } = process;
    rename(`${process.type} ${short(id)}`);
    replace(about, facts([
      ["Status", statusTag(status)], ["Step", process.step], ["Domain", domainLink(process.domain)],
      ["Id", h("span", { class: "mono" }, id)], ["Error", process.error],
      ["Started", timeElement(process.created_at, "both")], ["Changed", timeElement(process.updated_at, "both")],
      ["Over", over && timeElement(over, "both")],
      ["Batch", batch && h("a", { href: link(["batch", batch]), class: "mono" }, batch)],
      ["Commands", h("a", { href: link("commands", { correlation: id }) }, "all of its correlation id")],
    ]));
    const act = (label, action, tone) => acting(session, label, `${action}_process`, { process_id: id }, { tone });
    replace(tools,
      ["WAITING_FOR_TSQ", "FAILED"].includes(status) && act("Retry", "retry", "primary"),
      !over && act("Signal", "signal"),
      !over && status !== "COMPENSATING" && act("Cancel", "cancel", "danger"));
    const sent = process.steps ?? [];
    track.hidden = !process.steps;
    strip.hidden = !sent.length;
    note.hidden = !process.more_steps;
    steps.update(sent);
    strip.update(sent.map((step) => ({ label: step.step, from: step.sent_at, to: step.received_at, tone: isBack(step) ? "warn" : toneOf(step), title: `${titled(step)}: ${took(step)}` })));
    state.update(process.state);
    audit(process.audit, process.more_events);
  });
}
