// The memory bar: every byte of the device in one line, that adds up to the driver's number.
(() => {
  const K = window.kvchat;
  const KNOWN = ["fp", "fp8", "int8", "int6", "int5", "int4", "int2"];
  // A format's colour is that of its keys: K is what a low format costs most on.
  K.tint = (name) => {
    const key = name.split("/")[0].replace("quanto", "int");
    return `kv-f-${KNOWN.includes(key) ? key : "fp"}`;
  };

  // What is in the bar, from left to right: {key, bytes, kind, label, facts}
  const kvParts = (frame) => {
    const parts = [];
    for (const span of frame.spans ?? []) {
      if (span.kind === "turn" || !span.bytes) continue;
      const label = span.kind === "document" ? K.name(span.document) : K.say(`ui.bar.${span.kind}`);
      parts.push({ key: `${span.kind}-${span.document ?? ""}`, bytes: span.bytes, label, span });
    }
    const kv = frame.kv ?? {};
    for (const span of K.turnsOf(frame)) {
      if (!span.bytes || span.shown === false) continue;
      parts.push({ key: `t${span.turn}`, bytes: span.bytes, label: K.say("ui.bar.turn", { turn: span.turn }), short: `${span.turn}`, span });
    }
    const idle = kv.idle_bytes ?? 0;
    const chats = kv.other_chats_bytes ?? 0;
    const rest = [
      ["library", frame.library_bytes ?? 0],
      ["hot", kv.hot_window_bytes ?? 0],
      ["versions", kv.other_versions_bytes ?? 0],
      ["idle", idle],
      ["chats", chats],
      ["slack", (kv.slack_bytes ?? 0) - idle - chats],
    ];
    for (const [key, bytes] of rest) parts.push({ key, bytes, label: K.say(`ui.bar.${key}`) });
    return parts;
  };
  K.turnsOf = (frame) => frame?.turns ?? (frame?.spans ?? []).filter((span) => span.kind === "turn");
  // What the next question goes on from: nothing of another version of a turn, nor of one that was deleted.
  K.shownSpans = (frame) => (frame?.spans ?? []).filter((span) => span.shown !== false);
  // What is held of a turn as it is shown: none of another version of it.
  K.spanOf = (frame, turn, name) => K.turnsOf(frame).find((span) => span.turn === turn && span.shown !== false && (!name || !span.name || span.name === name)) ?? null;
  // Where the chat is while its text is not open: kept for reuse, on disk, or nowhere; null where it is.
  let rows = [];
  K.on("chats", (found) => (rows = found));
  K.standing = (frame) => {
    if (frame.spans?.length || !K.chat || !K.notes.turns.length) return null;
    if (frame.kv?.chat_bytes) return { where: "kept", bytes: frame.kv.chat_bytes };
    const bytes = rows.find((row) => row.id === K.chat)?.disk_bytes;
    if (bytes) return { where: "disk", bytes };
    const isNews = K.notes.live || !K.notes.turns.some((note) => note.answered); // it is being read, or never was
    return isNews ? null : { where: "gone", bytes: 0 };
  };
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
    // A budget that was lowered binds from the next step on: until then more may be held than it allows.
    const held = sum(own) + sum(kv);
    const over = device.budget ? Math.max(0, held - device.budget) : 0;
    // A budget far below the device's size: the bar is the budget, or nothing of it would be seen.
    const small = device.budget && device.budget < 0.6 * (device.total ?? 0);
    if (small) {
      const left = Math.max(0, device.budget - held);
      const free = Math.min(left, device.free ?? left);
      const parts = [...own, ...kv, { key: "free", bytes: free }, { key: "taken", bytes: left - free }];
      return { parts: labelled(parts, frame), of: device.budget + over, limit: device.budget, over, small, headroom: 0, free };
    }
    const runtime = { key: "runtime", bytes: frame.runtime_bytes ?? 0, field: "runtime_bytes" };
    const others = { key: "other", bytes: device.other_processes ?? 0, field: "other_processes" };
    const free = { key: "free", bytes: device.free ?? 0 };
    const found = [others, own[0], runtime, own[1], ...kv];
    const residue = { key: "residue", bytes: (device.total ?? 0) - sum(found) - free.bytes };
    found.push(residue.bytes > 0 ? residue : { key: "residue", bytes: 0 }, free);
    const of = device.total || sum(found) || 1;
    return { parts: labelled(found, frame), of, limit: of, over, small, headroom: device.headroom ?? 0, free: free.bytes };
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
    const standing = K.standing(frame);
    if (standing) return { standing, used: 0, most };
    // What was let go of is not seen any more, and takes no room. What fits is an estimate: more may be there.
    const all = (name) => K.shownSpans(frame).reduce((total, span) => total + (span[name] ?? 0), 0);
    const evicted = all("evicted_tokens");
    const used = all("tokens") - evicted;
    return { used, most, evicted, versions: frame.kv.other_versions_bytes ?? 0, left: Math.max(0, most - used) };
  };

  // How much more text fits, in words; the second figure is of this model's own tokenizer.
  K.roomSaid = (frame) => roomParts(frame).filter(Boolean).join(" ");
  const roomParts = (frame) => {
    const room = K.capacity(frame);
    const left = room?.left;
    if (left === undefined) return ["", ""];
    if (left <= 0) return [K.say(room.used > room.most ? "ui.bar.room.over" : "ui.bar.room.none"), ""];
    const said = K.say("ui.bar.room", { tokens: left });
    const hangul = K.lang === "ko" && frame.hangul_per_token ? K.roughly(left * frame.hangul_per_token) : 0;
    return [said, hangul ? K.say("ui.bar.hangul", { chars: hangul }) : ""];
  };
  // Two digits are as exact as a sample makes it.
  K.roughly = (count) => {
    const step = 10 ** Math.max(0, Math.floor(Math.log10(Math.max(1, count))) - 1);
    return Math.round(count / step) * step;
  };

  K.draw.bar = (box) => {
    const total = K.el("span", { class: "kv-bar-total" });
    const free = K.el("span", { class: "kv-muted" });
    const kv = K.el("span", { class: "kv-bar-kv" });
    const tokens = K.el("span");
    const letters = K.el("span", { class: "kv-bar-letters" });
    const room = K.el("strong", { class: "kv-bar-room" }, tokens, " ", letters);
    const track = K.el("div", { class: "kv-track", role: "img", tabindex: "0" });
    const lane = K.el("div", { class: "kv-lane", "aria-hidden": "true" });
    const line = K.el("div", { class: "kv-headroom" });
    const legend = K.el("ul", { class: "kv-legend" });
    const wrap = K.el("div", { class: "kv-track-wrap" }, track, line, lane);
    const what = K.button("ui.held", "list", () => K.held.toggle(), { class: "kv-tool kv-held-button", "aria-expanded": "false" });
    box.append(
      K.el("section", { class: "kv-bar", "aria-label": K.say("ui.bar.title") },
        K.el("div", { class: "kv-bar-line" }, total, free, K.el("span", { class: "kv-space" }), kv, room, what),
        wrap,
        legend,
        K.lastAction()
      )
    );
    const segments = new Map();
    const onHost = new Map();
    const tip = K.tip(wrap, track);
    K.held.stand(wrap, what);
    K.on("frame", (frame) => {
      const drawn = K.parts(frame);
      drawSegments(track, segments, drawn.parts, drawn.of);
      drawSegments(lane, onHost, hostParts(frame), drawn.of);
      drawLine(line, drawn);
      drawLegend(legend, drawn, frame, (part) => segments.get(part.key)?.kvIsSaid);
      settle(legend);
      const used = drawn.of - drawn.free;
      const device = frame.kv?.device_bytes ?? 0;
      K.put(total, K.say(drawn.small ? "ui.bar.of_budget" : "ui.bar.of_device", { used: K.size(used), of: K.size(drawn.limit) }));
      K.put(free, drawn.over ? K.say(K.notes.live ? "ui.bar.over.step" : "ui.bar.over.question", { over: K.size(drawn.over) }) : K.say("ui.bar.left", { free: K.size(drawn.free) }));
      K.put(kv, K.say("ui.bar.kv.share", { bytes: K.size(device), percent: K.number((device / drawn.of) * 100, device < 0.1 * drawn.of ? 1 : 0) }));
      roomParts(frame).forEach((text, at) => K.put([tokens, letters][at], text));
      room.title = frame.fits ? K.fitsSaid(frame.fits) : "";
      const label = [total, free, kv, room].map((one) => one.textContent.trim()).join(", ");
      if (track.getAttribute("aria-label") !== label) track.setAttribute("aria-label", label);
      tip();
    });
  };
  // What of the turns lies in the computer's memory: under the bar, hatched, in the bar's own scale.
  const hostParts = (frame) =>
    (frame.spans ?? [])
      .filter((span) => span.host_bytes > 0)
      .map((span) => ({ key: `h${span.kind}${span.turn ?? span.document ?? ""}`, bytes: span.host_bytes, label: "", span: { ...span, tier: "host" } }));

  const drawSegments = (track, segments, parts, of) => {
    const seen = new Set();
    const width = track.clientWidth;
    let place = 0;
    for (const part of parts) {
      if (part.bytes <= 0) continue;
      seen.add(part.key);
      let segment = segments.get(part.key);
      if (!segment) {
        segment = K.el("div", { class: "kv-seg" }, K.el("span"));
        segments.set(part.key, segment);
      }
      if (track.children[place] !== segment) track.insertBefore(segment, track.children[place] ?? null);
      place += 1;
      paint(segment, part, (part.bytes / of) * 100, width);
    }
    for (const [key, segment] of segments) {
      if (seen.has(key)) continue;
      segment.remove();
      segments.delete(key);
    }
  };
  const onHost = (span) => span?.tier === "host" || span?.tier === "mixed";
  const paint = (segment, part, percent, room) => {
    const width = `${percent.toFixed(3)}%`;
    if (segment.style.width !== width) segment.style.width = width;
    const isTurn = part.span?.kind === "turn" || part.key.startsWith("t") && part.span;
    const name = `kv-seg kv-s-${part.span ? (isTurn ? "turn" : part.span.kind) : part.key}${part.estimated ? " kv-estimated" : ""}${onHost(part.span) ? " kv-tier" : ""}`;
    if (segment.className !== name) segment.className = name;
    const fill = part.span ? K.fill(part.span.formats) : "";
    if (segment.dataset.fill !== fill) {
      segment.dataset.fill = fill;
      segment.style.background = fill;
    }
    segment.kvPart = part;
    const shown = percent > 9 && !part.span ? `${part.label} ${K.size(part.bytes)}` : percent > 2 ? (part.short ?? "") : "";
    K.put(segment.firstChild, percent > 4 && part.span && part.key[0] !== "t" ? part.label : shown);
    fit(segment, part, [segment.textContent, width, room].join());
  };
  // A figure that would be cut is left to the legend; of a document's name the beginning is enough.
  const fit = (segment, part, key) => {
    if (segment.kvFit === key) return;
    segment.kvFit = key;
    const words = segment.firstChild;
    words.hidden = false;
    words.hidden = !part.span && words.scrollWidth > words.clientWidth;
    segment.kvIsSaid = Boolean(words.textContent) && !words.hidden;
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
  const drawLegend = (legend, drawn, frame, isShown) => {
    const rows = new Map();
    for (const part of drawn.parts) {
      if (part.bytes <= 0 || part.key === "free") continue;
      const isSaid = isShown(part) && !["versions", "idle", "chats", "hot", "slack"].includes(part.key);
      if (isSaid && !part.span && !part.field) continue; // by the bar
      const key = ["hot", "slack", "library"].includes(part.key) ? "slack" : part.key; // one kind of room
      const known = rows.get(key)?.bytes ?? 0;
      if (!part.span) rows.set(key, { tone: `kv-s-${key}`, label: K.say(`ui.bar.${key}`), bytes: known + part.bytes, estimated: part.estimated, tag: tagOf(part) });
      for (const [name, bytes] of part.span ? Object.entries(part.span.formats ?? {}) : []) {
        const row = rows.get(name) ?? { tone: K.tint(name), label: `KV ${K.format(name)}`, bytes: 0 };
        row.bytes += bytes;
        rows.set(name, row);
      }
    }
    if (frame.kv?.host_bytes) rows.set("host", { tone: "kv-s-host", label: K.say("ui.bar.host"), bytes: frame.kv.host_bytes });
    if (drawn.small) rows.set("other", { tone: "kv-s-other", label: K.say("ui.bar.outside"), bytes: (frame.device.total ?? 0) - (frame.device.free ?? 0), outside: true });
    if (drawn.headroom) rows.set("headroom", { tone: "kv-s-headroom", label: K.say("ui.bar.headroom"), bytes: drawn.headroom });
    const wanted = [...rows.values()];
    while (legend.children.length > wanted.length) legend.lastChild.remove();
    while (legend.children.length < wanted.length) legend.append(K.el("li", {}, K.el("i"), K.el("span")));
    wanted.forEach((row, at) => {
      const [mark, text] = legend.children[at].children;
      const name = row.tone.startsWith("kv-s-") ? `kv-mark ${row.tone}${row.estimated ? " kv-estimated" : ""}` : `kv-mark ${row.tone}`;
      if (mark.className !== name) mark.className = name;
      K.put(text, `${row.label} ${K.size(row.bytes)}${row.tag ?? ""}`);
    });
  };
  // The legend has one line, or two where one is not enough: never more, and while an answer is being
  // made, and until another chat or width is seen, never fewer, so that nothing below it moves.
  let settled = {};
  const settle = (legend) => {
    const at = `${K.chat} ${legend.clientWidth}`;
    const wanted = `${at} ${legend.textContent}`;
    if (K.notes.live || wanted === settled.wanted) return;
    const isAnother = at !== settled.at;
    settled = { at, wanted };
    const first = Math.min(...[...legend.children].map((one) => one.offsetTop));
    const wraps = [...legend.children].some((one) => one.offsetTop > first);
    if (wraps || isAnother) legend.classList.toggle("kv-two-lines", wraps);
  };
  // Each figure that could be either says which it is.
  const tagOf = (part) => (part.field ? K.say(part.estimated ? "ui.bar.estimated" : "ui.bar.measured") : "");
  K.tagOf = tagOf;
})();
