// Values of a picture under the pointer and by the arrow keys, an enlarged picture, smoothed curves.
(() => {
  const announced = document.getElementById("announced");
  const large = document.getElementById("large");

  // The list below a picture: for each series a name, and a line `x: y` and a place for each value.
  const valuesOf = (figure) => {
    const [x, y] = [".x", ".y"].map((part) => figure.querySelector(`.values ${part}`).textContent);
    const lists = [...figure.querySelectorAll(".values dd")].filter((list) => list.dataset.at !== "");
    const series = lists.map((list) => {
      const texts = list.textContent.split("\n");
      const marks = list.dataset.at.split(" ").map((at, place) => {
        const [left, top] = at.split(",").map(Number);
        const colon = texts[place].lastIndexOf(": ");
        return { left, top, x: texts[place].slice(0, colon), y: texts[place].slice(colon + 2) };
      });
      return { name: list.previousElementSibling.textContent, marks };
    });
    return { x, y, series };
  };

  // The place of the least cost.
  const least = (items, cost) => items.reduce((best, item, place) => (cost(item) < cost(items[best]) ? place : best), 0);

  // The smoothed value of the curve with a mark at this place, if it is drawn smoothed. A smoothed line holds the places of its raw one
  // and the means of its values.
  const smoothedAt = (svg, left, top) => {
    for (const mean of svg.querySelectorAll(".smoothed polyline")) {
      const { raw, values, weight } = mean.dataset;
      const place = raw.split(" ").indexOf(`${left},${top}`);
      if (place >= 0) return { value: values.split(" ")[place], weight };
    }
    return null;
  };

  // Lets a picture show its values; `enlarge` is called for the enter key.
  const showValues = (plot, values, enlarge) => {
    const svg = plot.querySelector("svg");
    const { width, height } = svg.viewBox.baseVal;
    const ring = document.createElementNS(svg.namespaceURI, "circle");
    ring.setAttribute("class", "ring");
    ring.setAttribute("r", "13");
    const box = document.createElement("div");
    box.className = "value";
    plot.append(box);
    let [line, place] = [0, 0];

    const hide = () => { box.hidden = true; ring.remove(); };
    // Shows the value at `line` and `place`, and returns it in words.
    const show = () => {
      const { name, marks } = values.series[line];
      const { left, top, x, y } = marks[place];
      ring.setAttribute("cx", left);
      ring.setAttribute("cy", top);
      svg.append(ring);
      const smoothed = smoothedAt(svg, left, top);
      const words = [name, values.x === "" ? x : `${values.x}: ${x}`, smoothed && `smoothed (${smoothed.weight}): ${smoothed.value}`,
        `${values.y}: ${y}`].filter(Boolean);
      box.replaceChildren(...words.map((text) => {
        const row = document.createElement("span");
        row.textContent = text;
        return row;
      }));
      box.style.left = `${(left / width) * 100}%`;
      box.style.top = `${(top / height) * 100}%`;
      // On the side with more room.
      box.style.maxWidth = `min(22rem, calc(${(Math.max(left, width - left) / width) * 100}% - 1.6rem))`;
      box.classList.toggle("leftward", left > width / 2);
      box.classList.toggle("upward", top > height / 2);
      box.hidden = false;
      return words.join(", ");
    };
    const point = (event) => {
      const area = svg.getBoundingClientRect();
      const left = (event.clientX - area.left) * width / area.width;
      const top = (event.clientY - area.top) * height / area.height;
      // A reader looks for a place on the horizontal axis first.
      const cost = (mark) => (3 * (mark.left - left)) ** 2 + (mark.top - top) ** 2;
      const nearest = values.series.map(({ marks }) => least(marks, cost));
      line = least(values.series, (series) => cost(series.marks[nearest[values.series.indexOf(series)]]));
      place = nearest[line];
      show();
    };
    const go = (key) => {
      const { series } = values;
      const { marks } = series[line];
      const isAlong = key === "ArrowLeft" || key === "ArrowRight" || series.length === 1;
      const step = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
      if (key === "Home") place = 0;
      else if (key === "End") place = marks.length - 1;
      else if (isAlong) place = Math.min(Math.max(place + step, 0), marks.length - 1);
      else {
        const { left } = marks[place];
        line = Math.min(Math.max(line + step, 0), series.length - 1);
        place = least(series[line].marks, (mark) => Math.abs(mark.left - left));
      }
      announced.textContent = show();
    };

    plot.tabIndex = 0;
    plot.setAttribute("role", "application");
    plot.setAttribute("aria-label", `${svg.querySelector("title").textContent}. Arrow keys read the values${enlarge ? ", Enter enlarges" : ""}.`);
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    // A finger that is lifted leaves too; its value stays until something else is touched.
    plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch" && !plot.matches(":focus-visible")) hide(); });
    plot.addEventListener("focus", () => { if (plot.matches(":focus-visible")) announced.textContent = show(); });
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(event.key)) go(event.key);
      else if (event.key === "Enter" && enlarge) enlarge();
      else if (event.key === "Escape" && !box.hidden && enlarge) hide();
      else return;
      event.preventDefault();
    });
    hide();
  };

  const enlarge = (figure, values, opener) => {
    const plot = document.createElement("div");
    plot.className = "plot";
    const svg = figure.querySelector("svg").cloneNode(true);
    svg.querySelector(".ring")?.remove();
    plot.append(svg);
    // As large as fits on the screen.
    const { width, height } = svg.viewBox.baseVal;
    plot.style.maxWidth = `calc(78vh * ${width / height})`;
    showValues(plot, values);
    large.querySelector(".frame").replaceChildren(plot);
    large.querySelector("#large-title").textContent = svg.querySelector("title").textContent;
    large.querySelector(".note").textContent = figure.querySelector("figcaption").textContent;
    large.addEventListener("close", () => { plot.remove(); opener.focus(); }, { once: true });
    large.showModal();
  };
  document.getElementById("large-close").addEventListener("click", () => large.close());
  large.addEventListener("click", (event) => { if (event.target === large) large.close(); });

  for (const figure of document.querySelectorAll("figure")) {
    const plot = figure.querySelector(".plot");
    const values = valuesOf(figure);
    const button = document.createElement("button");
    button.type = "button";
    button.className = "enlarge";
    button.textContent = "Enlarge";
    button.setAttribute("aria-label", `Enlarge: ${figure.querySelector("svg title").textContent}`);
    button.addEventListener("click", () => enlarge(figure, values, button));
    figure.querySelector(".values").before(button);
    if (values.series.length > 0) showValues(plot, values, () => enlarge(figure, values, plot));
  }

  // A training loss is the only line of this width among the curves. The mean is corrected for its
  // start, so the first point is the curve's own.
  const smooth = (figure, weight) => {
    const svg = figure.querySelector("svg");
    svg.querySelector(".smoothed")?.remove();
    svg.classList.toggle("is-smoothed", weight > 0);
    if (weight === 0) return;
    const group = document.createElementNS(svg.namespaceURI, "g");
    group.setAttribute("class", "smoothed");
    const { series } = valuesOf(figure);
    for (const curve of svg.querySelectorAll('polyline[fill="none"][stroke-width="3"]')) {
      const averaged = (numbers) => {
        let [sum, share] = [0, 0];
        return numbers.map((number) => {
          sum = weight * sum + (1 - weight) * number;
          share = weight * share + (1 - weight);
          return sum / share;
        });
      };
      const mean = curve.cloneNode();
      const heights = averaged([...curve.points].map(({ y }) => y));
      mean.setAttribute("points", [...curve.points].map(({ x }, place) => `${x},${heights[place].toFixed(1)}`).join(" "));
      // The list below the picture has the values of the curve whose marks are its points.
      const places = [...curve.points].map(({ x, y }) => `${x},${y}`).join(" ");
      const own = series.find(({ marks }) => marks.map(({ left, top }) => `${left},${top}`).join(" ") === places);
      const losses = own ? own.marks.map(({ y }) => Number(y.replaceAll(/[^0-9.eE+-]/g, ""))) : [];
      if (own && losses.every(Number.isFinite)) {
        Object.assign(mean.dataset, { raw: places, values: averaged(losses).map((loss) => loss.toFixed(4)).join(" "), weight });
      }
      group.append(mean);
    }
    svg.append(group);
  };
  const smoothing = document.getElementById("smoothing");
  const setSmoothing = () => {
    const weight = Number(smoothing.value);
    document.querySelector('output[for="smoothing"]').textContent = weight;
    for (const figure of document.querySelectorAll(".switch figure")) smooth(figure, weight);
  };
  smoothing?.addEventListener("input", setSmoothing);
  // A reloaded page may keep the slider where it was.
  if (smoothing) setSmoothing();
})();
