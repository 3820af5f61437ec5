// Memory of the device over the last minutes, as the program kept it, with marks where something was
// done to the chat. A reload has it too; while a page is open its frames carry it on.
(() => {
  const K = window.kvchat;
  const WIDTH = 400;
  const HEIGHT = 132;
  const FOOT = 16;
  const TOP = 26; // above it a line of text, and below that the marks
  const SHOWN_S = 1800;
  const BINS = 200;
  const SLOT_S = 2;
  const CLOCK_SET_S = 60;
  const STACK = ["other", "weights", "runtime", "activations", "kv"];
  let points = []; // {at_s, other, weights, runtime, activations, kv, free}
  let entries = [];
  let asked = false;

  const pointOf = (frame) => ({
    at_s: frame.at_s,
    other: frame.device?.other_processes ?? 0,
    weights: frame.weights_bytes ?? 0,
    runtime: frame.runtime_bytes ?? 0,
    activations: frame.activations_bytes ?? 0,
    kv: (frame.kv?.device_bytes ?? 0) + (frame.library_bytes ?? 0),
    free: frame.device?.free ?? 0,
  });
  const add = (frame) => {
    if (!(frame.at_s > 0)) return;
    const point = pointOf(frame);
    const last = points.at(-1);
    if (last && Math.floor(last.at_s / SLOT_S) === Math.floor(point.at_s / SLOT_S)) {
      if (point.free < last.free) points[points.length - 1] = point;
      return;
    }
    if (last && point.at_s < last.at_s - CLOCK_SET_S) points = []; // the clock was set back
    else if (last && point.at_s < last.at_s) return;
    points.push(point);
    while (points.length && points[0].at_s < point.at_s - SHOWN_S) points.shift();
    draw();
  };
  const ask = async () => {
    if (asked) return draw();
    asked = true;
    const found = await K.call("timeline");
    if (!found.points) {
      asked = false;
      return;
    }
    const kept = found.points.map((row) => Object.fromEntries(found.columns.map((name, n) => [name, row[n]])));
    const newest = kept.at(-1)?.at_s ?? 0;
    points = [...kept, ...points.filter((one) => one.at_s > newest)];
    draw();
  };

  let parts = null;
  K.timeline = () => {
    const areas = Object.fromEntries(STACK.map((name) => [name, K.svg("path", { class: `kv-area kv-area-${name}` })]));
    const line = K.svg("line", { x1: 0, x2: WIDTH, class: "kv-limit" });
    const marks = K.svg("g");
    const top = K.svg("text", { x: 0, y: 10, class: "kv-axis" });
    const first = K.svg("text", { x: 0, y: HEIGHT - 3, class: "kv-axis" });
    const last = K.svg("text", { x: WIDTH, y: HEIGHT - 3, class: "kv-axis", "text-anchor": "end", text: "" });
    const picture = K.svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "kv-chart kv-timeline", role: "img" }, ...Object.values(areas), line, marks, top, first, last);
    const legend = K.el("ul", { class: "kv-legend" }, ...STACK.map((name) => K.el("li", {}, K.el("i", { class: `kv-mark kv-area-${name}` }), K.el("span", { text: K.say(name === "kv" ? "ui.timeline.kv" : `ui.bar.${name}`) }))), K.el("li", {}, K.el("i", { class: "kv-mark kv-mark-done" }), K.el("span", { text: K.say("ui.timeline.marks") })));
    const box = K.el("figure", { class: "kv-figure", hidden: true }, K.el("figcaption", {}, K.el("strong", { text: K.say("ui.timeline") })), picture, legend);
    parts = { box, areas, line, marks, top, first, last, picture, legend };
    K.panel.onShow("turns", ask);
    return box;
  };
  const draw = () => {
    if (!parts || !K.panel.isOpen("turns")) return;
    const device = K.frame?.device ?? {};
    const total = device.total ?? 0; // until a frame came, nothing is known of the device
    K.show(parts.box, points.length > 1 && total > 0);
    if (points.length < 2 || !total) return;
    const small = device.budget && device.budget < 0.6 * total;
    const stack = small ? ["weights", "activations", "kv"] : STACK;
    const of = small ? device.budget : total;
    const stop = points.at(-1).at_s;
    const start = Math.max(points[0].at_s, stop - SHOWN_S);
    const x = (at_s) => ((at_s - start) / Math.max(1, stop - start)) * WIDTH;
    const y = (bytes) => HEIGHT - FOOT - Math.min(1, bytes / of) * (HEIGHT - FOOT - TOP);
    const seen = thinned(points.filter((one) => one.at_s >= start), x);
    let below = seen.map(() => 0);
    for (const name of STACK) {
      const shown = stack.includes(name);
      const above = shown ? seen.map((one, n) => below[n] + one[name]) : below;
      const up = seen.map((one, n) => `${x(one.at_s).toFixed(1)},${y(above[n]).toFixed(1)}`);
      const down = seen.map((one, n) => `${x(one.at_s).toFixed(1)},${y(below[n]).toFixed(1)}`).reverse();
      K.set(parts.areas[name], "d", shown ? `M${[...up, ...down].join("L")}Z` : "");
      K.show(parts.legend.children[STACK.indexOf(name)], shown);
      below = above;
    }
    const limit = small ? of : of - (device.headroom ?? 0);
    K.set(parts.line, "y1", y(limit).toFixed(1));
    K.set(parts.line, "y2", y(limit).toFixed(1));
    drawMarks(start, stop, x);
    K.put(parts.top, K.say(small ? "ui.timeline.budget" : "ui.timeline.device", { size: K.size(of) }));
    K.put(parts.first, K.say("ui.timeline.ago", { s: ago(stop - start) }));
    K.put(parts.last, K.say("ui.timeline.now"));
    const used = stack.reduce((sum, name) => sum + points.at(-1)[name], 0);
    const peak = Math.max(...points.map((one) => stack.reduce((sum, name) => sum + one[name], 0)));
    K.set(parts.picture, "aria-label", K.say("ui.timeline.label", { used: K.size(used), of: K.size(of), peak: K.size(peak), marks: parts.marks.children.length }));
  };
  const ago = (s) => (s < 90 ? K.seconds(s) : K.say("ui.minutes", { minutes: Math.round(s / 60) }));
  // No more points than can be seen; of those that fall together the one with the least free.
  const thinned = (list, x) => {
    const found = [];
    let bin = -1;
    for (const one of list) {
      const here = Math.floor((x(one.at_s) / WIDTH) * BINS);
      if (here !== bin) found.push(one);
      else if (one.free < found.at(-1).free) found[found.length - 1] = one;
      bin = here;
    }
    return found;
  };
  const drawMarks = (start, stop, x) => {
    const seen = entries.filter((one) => one.at_s >= start && one.at_s <= stop + 1).slice(-80);
    while (parts.marks.children.length > seen.length) parts.marks.lastChild.remove();
    while (parts.marks.children.length < seen.length) parts.marks.append(K.svg("g", { class: "kv-done-mark" }, K.svg("title"), K.svg("line", { y1: TOP, y2: HEIGHT - FOOT }), K.svg("path", { d: "M-4 17h8l-4 7z" })));
    seen.forEach((entry, at) => {
      const mark = parts.marks.children[at];
      K.set(mark, "transform", `translate(${x(Math.min(stop, entry.at_s)).toFixed(1)} 0)`);
      K.put(mark.firstChild, `${K.entryWhen(entry)} ${K.entryWhat(entry)}`);
      mark.classList.toggle("kv-lossy", Boolean(entry.lost_tokens));
    });
  };
  K.on("frame", add);
  K.on("entries", (list) => {
    entries = list;
    draw();
  });
})();
