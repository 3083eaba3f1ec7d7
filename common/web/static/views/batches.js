// Batches, the newest first, each with its progress.

import { bar } from "../core/charts.js";
import { h } from "../core/dom.js";
import { count, percent, short } from "../core/format.js";
import { col, filters, paged, when } from "../core/view.js";
import { domainLink, empty, name, statusTag } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";

const STATUSES = ["PENDING", "IN_PROGRESS", "COMPLETED", "COMPLETED_WITH_FAILURES", "CANCELED"];
const EXAMPLE = `bus.create_batch("payments", [
    SendRequest("payments", "Charge", {"order": n}) for n in range(100)
], name="march")`;

export const title = () => "Batches";

/** What has become of the commands of a batch. */
export const progress = (batch) => [
  { label: "completed", value: batch.completed, tone: "good" },
  { label: "failed", value: batch.failed, tone: "warn" },
  { label: "canceled", value: batch.canceled, tone: "muted" },
  { label: "in trouble", value: batch.in_troubleshooting, tone: "bad" },
];

const ended = ({ total, remaining }) => `${count(total - remaining)} of ${count(total)} (${percent(total - remaining, total)})`;

export async function show(root, context) {
  const { params, session, navigate } = context;
  root.append(filters([["status", "Status", STATUSES], ["domain", "Domain"], session.reads_data && ["name", "Name"]], params, navigate));
  return paged(root, context, {
    path: (given) => apiPath("batches", given),
    rows: (value) => value.batches,
    keyOf: (batch) => batch.batch_id,
    link: (batch) => link(["batch", batch.batch_id]),
    label: "Batches",
    columns: [
      col("name", "Batch", (batch) => h("a", { href: link(["batch", batch.batch_id]), title: batch.batch_id }, batch.name ? name(batch.name) : short(batch.batch_id)), { narrow: "title" }),
      col("domain", "Domain", (batch) => domainLink(batch.domain)),
      col("status", "Status", (batch) => statusTag(batch.status)),
      col("progress", "Progress", (batch) => bar(progress(batch), { label: "Progress", total: batch.total })),
      col("ended", "Ended", ended, { align: "right" }),
      when("created_at", "Created"),
      when("completed_at", "Over", { narrow: "hide" }),
    ],
    empty: Object.keys(params).length
      ? empty("No batch is like this", "Change or empty the filters.")
      : empty("No batches yet", "A batch is commands that are sent together and whose end is one event:", EXAMPLE),
  });
}
