// What an edit of JSON has changed, line by line.

import { h } from "./dom.js";
import { indented, preformatted } from "./parts.js";

// Lines of both sides that are compared with each other; longer changes are shown as a whole.
const COMPARED = 400;
// Lines around a change that are shown.
const AROUND = 3;

/** [mark, line] pairs; mark is " ", "-" or "+". */
export function diffLines(before, after) {
  let begin = 0;
  while (begin < before.length && begin < after.length && before[begin] === after[begin]) begin += 1;
  let end = 0;
  const most = Math.min(before.length, after.length) - begin;
  while (end < most && before.at(-1 - end) === after.at(-1 - end)) end += 1;
  const same = (line) => [" ", line];
  return [
    ...before.slice(0, begin).map(same),
    ...middle(before.slice(begin, before.length - end), after.slice(begin, after.length - end)),
    ...before.slice(before.length - end).map(same),
  ];
}

function middle(before, after) {
  const all = () => [...before.map((line) => ["-", line]), ...after.map((line) => ["+", line])];
  if (!before.length || !after.length || before.length > COMPARED || after.length > COMPARED) return all();
  // Lengths of the longest common subsequences of what follows two lines.
  const lengths = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i -= 1) {
    for (let j = after.length - 1; j >= 0; j -= 1) {
      lengths[i][j] = before[i] === after[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const found = [];
  let i = 0;
  let j = 0;
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && before[i] === after[j]) {
      found.push([" ", before[i]]);
      i += 1;
      j += 1;
    } else if (j >= after.length || (i < before.length && lengths[i + 1][j] >= lengths[i][j + 1])) {
      found.push(["-", before[i]]);
      i += 1;
    } else {
      found.push(["+", after[j]]);
      j += 1;
    }
  }
  return found;
}

const CLASSES = { "-": "removed", "+": "added" };
const LABELS = { "-": "removed: ", "+": "added: " };

/** The lines of two JSON texts that differ, with some around them. */
export function diffBlock(before, after) {
  const lines = diffLines(indented(before).split("\n"), indented(after).split("\n"));
  const near = lines.map((_, index) => lines.slice(Math.max(0, index - AROUND), index + AROUND + 1).some(([mark]) => mark !== " "));
  if (!near.includes(true)) return h("p", { class: "muted" }, "The data is the same.");
  const shown = [];
  lines.forEach(([mark, line], index) => {
    if (near[index]) shown.push(h("span", { class: ["line-of", CLASSES[mark]] }, LABELS[mark] && h("span", { class: "unseen" }, LABELS[mark]), `${mark} ${line}`));
    else if (near[index - 1]) shown.push(h("span", { class: "line-of muted" }, "…"));
  });
  return preformatted("What has changed", shown);
}
