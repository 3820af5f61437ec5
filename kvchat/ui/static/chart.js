// The chart of the cache tab: a column a turn, in tokens or in bytes, stacked by how it is held (colour:
// format, hatch: in the computer's memory). Drawn here: no library of plots, nothing fetched.
(() => {
  const K = window.kvchat;
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 400;
  const HEIGHT = 132;
  const FOOT = 16;
  const MOST = 60; // columns; of a longer chat the newest
  let unit = "bytes";

  K.svg = (tag, about = {}, ...children) => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(about)) element.setAttribute(name, String(value));
    element.append(...children);
    return element;
  };
  // Writes an attribute only where it changed.
  K.set = (element, name, value) => {
    const text = String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  };
  // A rate is no exact size: three digits of it.
  K.perSecond = (bytes) => {
    const unit = bytes >= 2 ** 30 ? [2 ** 30, "GiB"] : [2 ** 20, "MiB"];
    const count = bytes / unit[0];
    return K.say("ui.per_second", { size: `${K.number(count, count < 10 ? 2 : count < 100 ? 1 : 0)}\u00a0${unit[1]}` });
  };
  K.hatch = (id) =>
    K.svg("defs", {}, K.svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, K.svg("rect", { width: 2.4, height: 6, class: "kv-hatch" })));

  // A turn's pieces, from the bottom up: {format, tier, tokens, bytes}. A turn that is held in several
  // ways has its tokens shared out by bytes.
  const piecesOf = (span) => {
    const found = Object.entries(span?.formats ?? {}).filter(([, bytes]) => bytes > 0).map(([format, bytes]) => ({ format, tier: "device", bytes }));
    if (span?.host_bytes) found.push({ format: "host", tier: "host", bytes: span.host_bytes });
    const all = found.reduce((sum, one) => sum + one.bytes, 0);
    return found.map((one) => ({ ...one, tokens: all ? ((span.tokens ?? 0) * one.bytes) / all : 0 }));
  };
  const colourOf = (piece) => (piece.tier === "host" ? "var(--kv-b-idle)" : `var(--${K.tint(piece.format)})`);

  K.chart = () => {
    const columns = K.svg("g");
    const top = K.svg("text", { x: 0, y: 11, class: "kv-axis" });
    const names = K.svg("g");
    const line = K.svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT - FOOT, y2: HEIGHT - FOOT, class: "kv-axis-line" });
    const picture = K.svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "kv-chart", role: "img" }, K.hatch("kv-hatch-chart"), columns, line, top, names);
    const choice = K.el("div", { class: "kv-segments kv-small", role: "radiogroup", "aria-label": K.say("ui.chart.unit") });
    const choose = (name) => {
      unit = name;
      for (const button of choice.children) {
        button.setAttribute("aria-checked", String(button.dataset.unit === unit));
        button.setAttribute("tabindex", button.dataset.unit === unit ? "0" : "-1");
      }
      draw(K.cacheRows());
    };
    for (const name of ["bytes", "tokens"])
      choice.append(K.el("button", { type: "button", role: "radio", "data-unit": name, "aria-checked": String(name === unit), tabindex: name === unit ? "0" : "-1", text: K.say(`ui.column.${name}`), on: { click: () => choose(name) } }));
    choice.addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) return;
      event.preventDefault();
      choose(unit === "bytes" ? "tokens" : "bytes");
      choice.querySelector('[aria-checked="true"]').focus();
    });
    const legend = K.el("ul", { class: "kv-legend" });
    const box = K.el("figure", { class: "kv-figure", hidden: true }, K.el("figcaption", {}, K.el("strong", { text: K.say("ui.chart") }), K.el("span", { class: "kv-space" }), choice), picture, legend);

    const draw = (all) => {
      const rows = all.filter((one) => one.span && (one.span.bytes || one.span.host_bytes)).slice(-MOST);
      K.show(box, rows.length > 0);
      if (!rows.length) return;
      const stacks = rows.map((one) => piecesOf(one.span));
      const sizes = stacks.map((pieces) => pieces.reduce((sum, piece) => sum + piece[unit], 0));
      const most = Math.max(1, ...sizes);
      const step = WIDTH / Math.max(8, rows.length);
      const wide = Math.max(1, step - Math.min(4, step * 0.25));
      let used = 0;
      stacks.forEach((pieces, at) => {
        let y = HEIGHT - FOOT;
        for (const piece of pieces) {
          const tall = (piece[unit] / most) * (HEIGHT - FOOT - 16);
          y -= tall;
          for (const fill of piece.tier === "host" ? [colourOf(piece), "url(#kv-hatch-chart)"] : [colourOf(piece)]) {
            const bar = columns.children[used] ?? columns.appendChild(K.svg("rect"));
            used += 1;
            K.set(bar, "x", (at * step).toFixed(2));
            K.set(bar, "width", wide.toFixed(2));
            K.set(bar, "y", y.toFixed(2));
            K.set(bar, "height", Math.max(0.5, tall).toFixed(2));
            if (bar.style.fill !== fill) bar.style.fill = fill;
          }
        }
      });
      while (columns.children.length > used) columns.lastChild.remove();
      const said = (count) => (unit === "bytes" ? K.size(count) : K.say("ui.figures.tokens", { tokens: Math.round(count) }));
      K.put(top, said(most));
      drawNames(names, rows, step, wide);
      K.set(picture, "aria-label", `${K.say("ui.chart")}: ${rows.map((one, at) => `${one.name} ${said(sizes[at])}`).join(", ")}`);
      const kinds = new Map();
      for (const piece of stacks.flat()) kinds.set(piece.format, { tone: colourOf(piece), tier: piece.tier, sum: (kinds.get(piece.format)?.sum ?? 0) + piece[unit] });
      drawKinds(legend, kinds, said);
    };
    K.on("cache", draw);
    return box;
  };
  // Numbers of turns under their columns, as many as there is room for.
  const drawNames = (names, rows, step, wide) => {
    const every = Math.max(1, Math.ceil(22 / step));
    const shown = rows.map((one, at) => ({ at, turn: one.turn })).filter((one) => one.turn && (one.turn === 1 || one.turn % every === 0));
    while (names.children.length > shown.length) names.lastChild.remove();
    while (names.children.length < shown.length) names.append(K.svg("text", { y: HEIGHT - 3, class: "kv-axis", "text-anchor": "middle" }));
    shown.forEach((one, n) => {
      K.set(names.children[n], "x", (one.at * step + wide / 2).toFixed(1));
      K.put(names.children[n], String(one.turn));
    });
  };
  const drawKinds = (legend, kinds, said) => {
    while (legend.children.length > kinds.size) legend.lastChild.remove();
    while (legend.children.length < kinds.size) legend.append(K.el("li", {}, K.el("i", { class: "kv-mark" }), K.el("span")));
    [...kinds].forEach(([format, kind], at) => {
      const [mark, text] = legend.children[at].children;
      mark.classList.toggle("kv-tier", kind.tier === "host");
      if (mark.style.backgroundColor !== kind.tone) mark.style.backgroundColor = kind.tone;
      K.put(text, `${kind.tier === "host" ? K.say("ui.bar.host") : K.format(format)} ${said(kind.sum)}`);
    });
  };
})();
