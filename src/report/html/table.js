"use strict";
(() => {
  const STEP = 100;
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const names = heads.map((head) => head.textContent.trim());
  const isNumber = heads.map((head) => head.classList.contains("number"));
  const filter = document.getElementById("filter");
  const choices = [...document.querySelectorAll("select[data-column]")];
  const shown = document.getElementById("shown");
  const more = document.getElementById("more");

  const sortsAs = (cell) => cell.dataset.v ?? cell.textContent;
  const rows = [...body.rows].map((row) => {
    const cells = [...row.cells];
    return {
      row,
      text: cells.map((cell) => cell.textContent.toLowerCase()),
      value: cells.map((cell, place) => (isNumber[place] ? Number.parseFloat(sortsAs(cell)) : sortsAs(cell))),
    };
  });
  let order = rows;
  let most = STEP;

  // Units of the numbers behind the cells: seconds and bytes.
  const UNITS = { "µs": 1e-6, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, b: 1, kib: 1024, mib: 1024 ** 2, gib: 1024 ** 3, tib: 1024 ** 4 };
  const amount = (text) => {
    const parts = /^([-+]?[\d.]+(?:e[-+]?\d+)?)\s*([a-zµ]*)%?$/.exec(text);
    return parts && (parts[2] === "" || parts[2] in UNITS) ? Number.parseFloat(parts[1]) * (UNITS[parts[2]] ?? 1) : Number.NaN;
  };

  // `samples/s>100` asks one column; anything else is a word that the row must have.
  const demand = (word, unknown) => {
    const parts = /^(.+?)(<=|>=|=|<|>)(.*)$/.exec(word);
    const place = parts ? names.findIndex((name) => name.toLowerCase().replaceAll(" ", "_") === parts[1]) : -1;
    if (parts && place < 0) unknown.push(parts[1]);
    if (place < 0) return (row) => row.text.some((cell) => cell.includes(word));
    const [, , sign, wanted] = parts;
    const limit = amount(wanted);
    if (sign === "=") return (row) => row.text[place] === wanted || (isNumber[place] && row.value[place] === limit);
    const holds = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b }[sign];
    return (row) => holds(Number.parseFloat(row.value[place]), limit);
  };

  const show = () => {
    const unknown = [];
    const demands = filter.value.toLowerCase().split(/\s+/).filter(Boolean).map((word) => demand(word, unknown));
    for (const choice of choices) {
      if (choice.value !== "") demands.push((row) => row.text[choice.dataset.column] === choice.value.toLowerCase());
    }
    const found = order.filter((row) => demands.every((holds) => holds(row)));
    body.replaceChildren(...found.slice(0, most).map(({ row }) => row));
    const visible = Math.min(found.length, most);
    shown.textContent = `${visible} of ${rows.length} points` + (found.length > visible ? `, ${found.length} fit the filter` : "") +
      (unknown.length > 0 ? `; no column ${unknown.join(", ")}` : "");
    more.parentElement.hidden = found.length <= most;
    more.textContent = `Show all ${found.length}`;
  };

  // Cells without a value come last in both directions.
  const compare = (place, sign) => (one, other) => {
    const [a, b] = [one.value[place], other.value[place]];
    const [isNone, otherIsNone] = [a, b].map((value) => value === "" || Number.isNaN(value));
    if (isNone || otherIsNone) return isNone - otherIsNone;
    const [x, y] = [Number(a), Number(b)];
    // Numbers among words stand before them.
    const [isWord, otherIsWord] = [Number.isNaN(x), Number.isNaN(y)];
    if (!isWord && !otherIsWord) return sign * (x - y);
    if (isWord !== otherIsWord) return sign * (isWord - otherIsWord);
    return sign * a.localeCompare(b, "en", { numeric: true });
  };

  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const isUp = head.getAttribute("aria-sort") === "ascending";
      const isFirst = head.getAttribute("aria-sort") === "none";
      // Most numbers are sorted largest first.
      const isDown = isFirst ? isNumber[place] : isUp;
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      order = [...rows].sort(compare(place, isDown ? -1 : 1));
      show();
    });
  });
  filter.addEventListener("input", () => { most = STEP; show(); });
  for (const choice of choices) choice.addEventListener("change", () => { most = STEP; show(); });
  document.getElementById("clear").addEventListener("click", () => {
    filter.value = "";
    for (const choice of choices) choice.value = "";
    most = STEP;
    show();
    filter.focus();
  });
  more.addEventListener("click", () => { most = Infinity; show(); });
  for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;
  show();
})();
