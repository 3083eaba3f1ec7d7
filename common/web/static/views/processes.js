// Processes, the latest started first.

import { h } from "../core/dom.js";
import { short } from "../core/format.js";
import { col, filters, paged, when } from "../core/view.js";
import { domainLink, empty, name, statusTag } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";

const STATUSES = ["PENDING", "WAITING_FOR_REPLY", "WAITING_FOR_TSQ", "COMPENSATING", "COMPLETED", "COMPENSATED", "FAILED", "CANCELED"];

export const title = () => "Processes";

export async function show(root, context) {
  const { params, navigate } = context;
  root.append(filters([["status", "Status", STATUSES], ["domain", "Domain"], ["type", "Type"], params.batch && ["batch", "Batch"]], params, navigate));
  return paged(root, context, {
    path: (given) => apiPath("processes", given),
    rows: (value) => value.processes,
    keyOf: (process) => process.process_id,
    link: (process) => link(["process", process.process_id]),
    label: "Processes",
    columns: [
      col("type", "Process", (process) => h("a", { href: link(["process", process.process_id]), title: process.process_id }, name(process.type), " ", h("span", { class: "mono" }, short(process.process_id))), { narrow: "title" }),
      col("domain", "Domain", (process) => domainLink(process.domain)),
      col("status", "Status", (process) => statusTag(process.status)),
      col("step", "Step", null, { width: "130px" }),
      col("error", "Error"),
      when("created_at", "Started"),
      when("updated_at", "Changed", { narrow: "hide" }),
    ],
    empty: Object.keys(params).length
      ? empty("No process is like this", "Change or empty the filters.")
      : empty("No processes yet", "A process sends one command after the other, and undoes them where one fails:", 'bus.start_process("trips", "Booking", {"city": "Oslo"})'),
  });
}
