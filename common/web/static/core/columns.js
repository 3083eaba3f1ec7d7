// How wide the columns of a table are. Rows are grids of the same columns, so that rows out of
// sight are not laid out: what a browser measures for a table is estimated here from the texts.

// Pixels: of the narrowest table that is not cards, of a character, of a cell's padding, around a
// label, of a drawing, of a long text, of the narrowest column.
const [NARROW, CHARACTER, PADDING, AROUND, DRAWN, LONG, LEAST] = [680, 7.8, 22, 14, 142, 340, 56];
// Characters of times, by their form: a time gets longer as it ticks.
const TIMES = { ago: 11, both: 20 };

/** A column is as wide as its longest text has been: it never gets narrower under the reader's eyes. */
export function columnWidths(columns) {
  const widths = columns.map((column) => Math.max(column.label.length * CHARACTER + PADDING, LEAST));

  return {
    measure(index, cell) {
      const text = cell.textContent;
      const capitals = text.replace(/[^A-Z_]/g, "").length;
      const length = Math.max(text.length + capitals / 4, TIMES[cell.querySelector("time")?.dataset.form] ?? 0);
      const width = cell.querySelector("svg") ? DRAWN : length * CHARACTER + cell.childElementCount * AROUND;
      widths[index] = Math.max(widths[index], Math.min(width + PADDING, LONG));
    },

    /** The tracks of the grid: the column with the longest texts takes the room that is left. */
    tracks() {
      const longest = Math.max(...widths);
      const share = Math.round(NARROW / columns.length);
      return columns.map(({ width }, index) => {
        const wanted = Math.round(widths[index]);
        if (width) return width;
        return wanted < longest ? `minmax(${Math.min(wanted, share)}px, ${wanted}px)` : `minmax(${wanted < LONG ? "120px" : "24%"}, 1fr)`;
      });
    },
  };
}
