// One batch: its progress, its commands and processes, what it sends at its end, what happened.

import { bar } from "../core/charts.js";
import { h, replace } from "../core/dom.js";
import { count, duration, short, timeElement } from "../core/format.js";
import { acting, col, live, payloadPanel, problemNote, trail, when } from "../core/view.js";
import { breakable, commandHref, commandKey, commandLink, domainLink, empty, facts, figure, name, panel, statusTag, tag } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";
import { table } from "../core/table.js";
import { progress } from "./batches.js";

const BAD = ["failed", "in_troubleshooting"];

export const title = ({ parts }) => `Batch ${short(parts[0])}`;

export async function show(root, { parts: [id], session, signal, tools, rename }) {
  const of = (status) => ({ href: link("commands", { batch: id, status }) });
  const figures = {
    total: figure("commands", "", of()), completed: figure("completed", "", of("COMPLETED")), failed: figure("failed", "", of("FAILED")),
    canceled: figure("canceled", "", of("CANCELED")), in_troubleshooting: figure("in trouble", "", of("IN_TROUBLESHOOTING_QUEUE")), remaining: figure("not over", ""),
  };
  const drawn = bar([], { label: "Progress", legend: true });
  const about = h("div");
  const commands = table({
    label: "Commands",
    keyOf: commandKey,
    link: commandHref,
    columns: [
      col("command_id", "Command", (command) => [commandLink(command.domain, command.command_id), " ", name(`${command.domain}/${command.type}`)], { narrow: "title" }),
      col("status", "Status", (command) => statusTag(command.status)),
      col("error_code", "Error", (row) => breakable(row.error_code)),
      when("created_at", "Sent"),
    ],
    empty: empty("None is kept", "Its commands are removed with the history of their domains."),
  });
  const problem = problemNote();
  const others = h("div", { class: "stack" });
  const data = payloadPanel("Data", "batch.json");
  const audit = trail(root);
  root.append(
    panel("Progress", h("div", { class: "numbers" }, Object.values(figures)), drawn, about),
    panel("Commands", problem, commands.element, h("a", of(), "All of its commands")), others, data);
  const shown = await live(root, apiPath(["batch", id]), signal, (batch) => {
    rename(`Batch ${batch.name ?? short(id)}`);
    for (const [key, element] of Object.entries(figures)) element.set(count(batch[key]), BAD.includes(key) && batch[key] ? "bad" : undefined);
    drawn.update(progress(batch), { total: batch.total });
    const { started_at: started, completed_at: over } = batch;
    replace(about, facts([
      ["Status", statusTag(batch.status)], ["Domain", domainLink(batch.domain)], ["Id", h("span", { class: "mono" }, id)],
      ["Created", timeElement(batch.created_at, "both")],
      ["Over", over && timeElement(over, "both")],
      ["Took", over && started && duration((Date.parse(over) - Date.parse(started)) / 1000)],
    ]));
    const canceling = !over && batch.audit?.some((event) => event.kind === "BATCH_CANCEL_REQUESTED");
    replace(tools, canceling ? tag("is being canceled", "warn") : !over && acting(session, "Cancel the batch", "cancel_batch", { batch_id: id }, { tone: "danger" }));
    replace(others, atEnd(batch), ofProcesses(batch));
    data.update(batch.data);
    audit(batch.audit);
  });
  const stop = problem.watch(apiPath("commands", { batch: id, limit: 10 }), (value) => commands.update(value.commands));
  return { close: () => [shown.close, stop].forEach((end) => end()) };
}

const atEnd = ({ follow_ups: sends }) => sends?.length > 0 && panel("Sends at its end", sends.map((sent) => h("p", null,
  name(`${sent.domain}/${sent.type}`), ` when it is ${sent.after === "CANCELED" ? "canceled" : "complete"} `,
  sent.status ? [commandLink(sent.domain, sent.command_id), " ", statusTag(sent.status)] : h("span", { class: "muted" }, "(not sent)"))));

const ofProcesses = ({ processes, more_processes: more, batch_id: batch }) => processes.length > 0 && panel("Processes",
  processes.map((one) => h("p", null, h("a", { href: link(["process", one.process_id]) }, name(one.type)), " ", statusTag(one.status), " ", one.step)),
  more && h("a", { href: link("processes", { batch }) }, "All of its processes"));
