// The memory bar: every byte of the device in one line, that adds up to the driver's number.
(() => {
  const K = window.kvchat;
  const KNOWN = ["fp", "fp8", "int8", "int6", "int5", "int4", "int2"];
  // A format's colour is that of its keys: K is what a low format costs most on.
  K.tint = (name) => {
    const key = name.split("/")[0].replace("quanto", "int");
    return `kv-f-${KNOWN.includes(key) ? key : "fp"}`;
  };
  const onDevice = (span) => !span.tier || span.tier === "device";

  // What is in the bar, from left to right: {key, bytes, kind, label, facts}
  const kvParts = (frame) => {
    const parts = [];
    for (const span of frame.spans ?? []) {
      if (span.kind === "turn" || !onDevice(span) || !span.bytes) continue;
      const label = span.kind === "document" ? K.name(span.document) : K.say(`ui.bar.${span.kind}`);
      parts.push({ key: `${span.kind}-${span.document ?? ""}`, bytes: span.bytes, label, span });
    }
    for (const span of K.turnsOf(frame)) {
      if (!onDevice(span) || !span.bytes) continue;
      parts.push({ key: `t${span.turn}`, bytes: span.bytes, label: K.say("ui.bar.turn", { turn: span.turn }), short: `${span.turn}`, span });
    }
    const kv = frame.kv ?? {};
    const idle = kv.idle_bytes ?? 0;
    const rest = [
      ["library", frame.library_bytes ?? 0],
      ["hot", kv.hot_window_bytes ?? 0],
      ["idle", idle],
      ["slack", (kv.slack_bytes ?? 0) - idle],
    ];
    for (const [key, bytes] of rest) parts.push({ key, bytes, label: K.say(`ui.bar.${key}`) });
    return parts;
  };
  K.turnsOf = (frame) => frame?.turns ?? (frame?.spans ?? []).filter((span) => span.kind === "turn");
  // A span names a document by its hash; people know it by its file name.
  K.name = (document) => K.documentNames?.[document] ?? K.say("ui.bar.document");

  K.parts = (frame) => {
    const device = frame.device ?? {};
    const kv = kvParts(frame);
    const own = [
      { key: "weights", bytes: frame.weights_bytes ?? 0 },
      { key: "activations", bytes: frame.activations_bytes ?? 0, field: "activations_bytes" },
    ];
    const sum = (list) => list.reduce((total, part) => total + part.bytes, 0);
    // A budget far below the device's size: the bar is the budget, or nothing of it would be seen.
    const small = device.budget && device.budget < 0.6 * (device.total ?? 0);
    if (small) {
      const left = Math.max(0, device.budget - sum(own) - sum(kv));
      const free = Math.min(left, device.free ?? left);
      const parts = [...own, ...kv, { key: "free", bytes: free }, { key: "taken", bytes: left - free }];
      return { parts: labelled(parts, frame), of: device.budget, small, headroom: 0, free };
    }
    const runtime = { key: "runtime", bytes: frame.runtime_bytes ?? 0, field: "runtime_bytes" };
    const others = { key: "other", bytes: device.other_processes ?? 0, field: "other_processes" };
    const free = { key: "free", bytes: device.free ?? 0 };
    const found = [others, own[0], runtime, own[1], ...kv];
    const residue = { key: "residue", bytes: (device.total ?? 0) - sum(found) - free.bytes };
    found.push(residue.bytes > 0 ? residue : { key: "residue", bytes: 0 }, free);
    return { parts: labelled(found, frame), of: device.total || sum(found) || 1, small, headroom: device.headroom ?? 0, free: free.bytes };
  };
  const labelled = (parts, frame) =>
    parts.map((part) => ({
      ...part,
      label: part.label ?? K.say(`ui.bar.${part.key}`),
      estimated: (frame.estimated ?? []).includes(part.field),
    }));

  K.capacity = (frame) => {
    const most = frame.kv?.capacity_tokens;
    if (!most) return null; // nothing is known before the model is there
    const used = (frame.spans ?? []).reduce((total, span) => total + (span.tokens ?? 0), 0);
    return { used, most, left: Math.max(0, most - used) };
  };

  K.draw.bar = (box) => {
    const total = K.el("span", { class: "kv-bar-total" });
    const free = K.el("span", { class: "kv-muted" });
    const kv = K.el("span", { class: "kv-bar-kv" });
    const room = K.el("strong", { class: "kv-bar-room" });
    const track = K.el("div", { class: "kv-track", role: "img" });
    const line = K.el("div", { class: "kv-headroom" });
    const legend = K.el("ul", { class: "kv-legend" });
    const tip = K.el("div", { class: "kv-tip", role: "tooltip", hidden: true });
    box.append(
      K.el("section", { class: "kv-bar", "aria-label": K.say("ui.bar.title") },
        K.el("div", { class: "kv-bar-line" }, total, free, K.el("span", { class: "kv-space" }), kv, room),
        K.el("div", { class: "kv-track-wrap" }, track, line, tip),
        legend,
        K.lastAction()
      )
    );
    const segments = new Map();
    K.on("frame", (frame) => {
      const drawn = K.parts(frame);
      drawSegments(track, segments, drawn);
      drawLine(line, drawn);
      drawLegend(legend, drawn, frame);
      const used = drawn.of - drawn.free;
      K.put(total, K.say(drawn.small ? "ui.bar.of_budget" : "ui.bar.of_device", { used: K.size(used), of: K.size(drawn.of) }));
      K.put(free, K.say("ui.bar.left", { free: K.size(drawn.free) }));
      K.put(kv, K.say("ui.bar.kv", { bytes: K.size(frame.kv?.device_bytes ?? 0) }));
      const left = K.capacity(frame);
      K.put(room, left ? K.say("ui.bar.room", { tokens: left.left }) : "");
      track.setAttribute("aria-label", [total, free, kv, room].map((one) => one.textContent).join(", "));
      tipFor(tip, segments);
    });
    hover(track, tip, segments);
  };

  const drawSegments = (track, segments, drawn) => {
    const seen = new Set();
    let place = 0;
    for (const part of drawn.parts) {
      if (part.bytes <= 0) continue;
      seen.add(part.key);
      let segment = segments.get(part.key);
      if (!segment) {
        segment = K.el("div", { class: "kv-seg" }, K.el("span"));
        segments.set(part.key, segment);
      }
      if (track.children[place] !== segment) track.insertBefore(segment, track.children[place] ?? null);
      place += 1;
      paint(segment, part, (part.bytes / drawn.of) * 100);
    }
    for (const [key, segment] of segments) {
      if (seen.has(key)) continue;
      segment.remove();
      segments.delete(key);
    }
  };
  const paint = (segment, part, percent) => {
    const width = `${percent.toFixed(3)}%`;
    if (segment.style.width !== width) segment.style.width = width;
    const isTurn = part.span?.kind === "turn" || part.key.startsWith("t") && part.span;
    const name = `kv-seg kv-s-${part.span ? (isTurn ? "turn" : part.span.kind) : part.key}${part.estimated ? " kv-estimated" : ""}`;
    if (segment.className !== name) segment.className = name;
    const fill = part.span ? K.fill(part.span.formats) : "";
    if (segment.dataset.fill !== fill) {
      segment.dataset.fill = fill;
      segment.style.background = fill;
    }
    segment.kvPart = part;
    const shown = percent > 9 && !part.span ? `${part.label} ${K.size(part.bytes)}` : percent > 2 ? (part.short ?? "") : "";
    K.put(segment.firstChild, percent > 4 && part.span && part.key[0] !== "t" ? part.label : shown);
  };
  // One colour, or bands in proportion where a turn is held in several formats.
  K.fill = (formats) => {
    const found = Object.entries(formats ?? {}).filter(([, bytes]) => bytes > 0);
    const all = found.reduce((total, [, bytes]) => total + bytes, 0);
    if (found.length === 0) return "var(--kv-f-fp)";
    const colour = (name) => `var(--${K.tint(name)})`;
    if (found.length === 1) return colour(found[0][0]);
    let at = 0;
    const bands = found.map(([name, bytes]) => {
      const from = at;
      at += (bytes / all) * 100;
      return `${colour(name)} ${from.toFixed(1)}% ${at.toFixed(1)}%`;
    });
    return `linear-gradient(90deg, ${bands.join(", ")})`;
  };
  const drawLine = (line, drawn) => {
    const share = drawn.headroom / drawn.of;
    K.show(line, share > 0);
    if (share <= 0) return;
    line.style.width = `${(share * 100).toFixed(3)}%`;
  };
  const drawLegend = (legend, drawn, frame) => {
    const rows = new Map();
    for (const part of drawn.parts) {
      if (part.bytes <= 0 || part.key === "free") continue;
      if (part.bytes / drawn.of > 0.09 && !part.span && !part.estimated) continue; // the bar says it
      const key = ["hot", "slack", "library"].includes(part.key) ? "slack" : part.key; // one kind of room
      const known = rows.get(key)?.bytes ?? 0;
      if (!part.span) rows.set(key, { tone: `kv-s-${key}`, label: K.say(`ui.bar.${key}`), bytes: known + part.bytes, estimated: part.estimated });
      for (const [name, bytes] of part.span ? Object.entries(part.span.formats ?? {}) : []) {
        const row = rows.get(name) ?? { tone: K.tint(name), label: `KV ${K.format(name)}`, bytes: 0 };
        row.bytes += bytes;
        rows.set(name, row);
      }
    }
    if (drawn.small) rows.set("other", { tone: "kv-s-other", label: K.say("ui.bar.outside"), bytes: (frame.device.total ?? 0) - (frame.device.free ?? 0), outside: true });
    if (drawn.headroom) rows.set("headroom", { tone: "kv-s-headroom", label: K.say("ui.bar.headroom"), bytes: drawn.headroom });
    const wanted = [...rows.values()];
    while (legend.children.length > wanted.length) legend.lastChild.remove();
    while (legend.children.length < wanted.length) legend.append(K.el("li", {}, K.el("i"), K.el("span")));
    wanted.forEach((row, at) => {
      const [mark, text] = legend.children[at].children;
      const name = row.tone.startsWith("kv-s-") ? `kv-mark ${row.tone}${row.estimated ? " kv-estimated" : ""}` : `kv-mark ${row.tone}`;
      if (mark.className !== name) mark.className = name;
      K.put(text, `${row.label} ${K.size(row.bytes)}${row.estimated ? K.say("ui.bar.estimated") : ""}`);
    });
  };

  let over = null;
  const hover = (track, tip, segments) => {
    track.addEventListener("pointermove", (event) => {
      over = event.target.closest(".kv-seg");
      tipFor(tip, segments);
    });
    track.addEventListener("pointerleave", () => {
      over = null;
      tipFor(tip, segments);
    });
  };
  const tipFor = (tip) => {
    K.show(tip, Boolean(over?.isConnected));
    if (!over?.isConnected) return;
    const { label, bytes, span, estimated } = over.kvPart;
    const lines = [`${label} · ${K.size(bytes)}${estimated ? K.say("ui.bar.estimated") : ""}`];
    if (span) {
      lines.push(K.say("ui.tip.tokens", { tokens: span.tokens ?? 0 }) + ` · ${Object.keys(span.formats ?? {}).map(K.format).join(", ")}`);
      if (span.reused_tokens) lines.push(K.say("ui.tip.reused", { tokens: span.reused_tokens }));
    }
    K.put(tip, lines.join("\n"));
    const middle = over.offsetLeft + over.offsetWidth / 2;
    const half = tip.offsetWidth / 2;
    tip.style.left = `${Math.max(half, Math.min(middle, over.parentElement.offsetWidth - half))}px`;
  };
})();
