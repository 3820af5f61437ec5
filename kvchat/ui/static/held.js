// What the bar says in numbers: over a segment, at the keyboard, and as a table of all that is held,
// with the other programs on the device.
(() => {
  const K = window.kvchat;

  // One line a fact, for one segment.
  const linesOf = (part, drawn) => {
    const share = K.number((part.bytes / drawn.of) * 100, 1);
    const lines = [`${part.label} · ${K.size(part.bytes)} · ${share} %${K.tagOf(part)}`];
    const { span } = part;
    if (span) {
      const formats = Object.entries(span.formats ?? {}).map(([name, bytes]) => `${K.format(name)} ${K.size(bytes)}`);
      lines.push(K.say("ui.tip.tokens", { tokens: span.tokens ?? 0 }) + (formats.length ? ` · ${formats.join(", ")}` : ""));
      if (span.tier && span.tier !== "device") lines.push(K.say(`ui.tier.${span.tier}`));
      if (span.reused_tokens) lines.push(K.say("ui.tip.reused", { tokens: span.reused_tokens }));
      if (span.evicted_tokens) lines.push(K.say("ui.tip.evicted", { tokens: span.evicted_tokens }));
      if (span.shared) lines.push(K.say("ui.tip.shared"));
      if (span.pinned) lines.push(K.say("ui.tip.pinned"));
    }
    if (part.key === "other") lines.push(...programsOf(K.frame).slice(0, 4).map((one) => `${one.name} · ${one.size}`));
    return lines;
  };
  const programsOf = (frame) =>
    (frame?.device?.programs ?? []).map((one) => ({
      pid: one.pid,
      name: one.name || K.say("ui.held.program", { pid: String(one.pid) }),
      size: one.bytes_used === null || one.bytes_used === undefined ? K.say("ui.held.unknown") : K.size(one.bytes_used),
    }));

  // The tip of a track: under the pointer, or where the arrow keys are. Returns what draws it anew.
  K.tip = (wrap, track) => {
    const box = K.el("div", { class: "kv-tip", role: "status", hidden: true });
    wrap.append(box);
    let over = null; // the segment under the pointer
    let at = null; // the key of the segment at the keyboard
    const segments = () => [...track.children];
    const chosen = () => (at === null ? over : (segments().find((one) => one.kvPart?.key === at) ?? null));
    const draw = () => {
      const one = chosen();
      for (const segment of segments()) segment.classList.toggle("kv-at", at !== null && segment === one);
      K.show(box, Boolean(one?.isConnected));
      if (!one?.isConnected) return;
      K.put(box, linesOf(one.kvPart, K.parts(K.frame)).join("\n"));
      const middle = one.offsetLeft + one.offsetWidth / 2;
      const half = box.offsetWidth / 2;
      box.style.left = `${Math.max(half, Math.min(middle, track.offsetWidth - half))}px`;
    };
    track.addEventListener("pointermove", (event) => {
      over = event.target.closest(".kv-seg");
      draw();
    });
    track.addEventListener("pointerleave", () => {
      over = null;
      draw();
    });
    track.addEventListener("keydown", (event) => {
      const list = segments();
      const here = list.findIndex((one) => one.kvPart?.key === at);
      const to = { ArrowRight: here + 1, ArrowLeft: here < 0 ? list.length - 1 : here - 1, Home: 0, End: list.length - 1 }[event.key];
      if (event.key === "Enter" || event.key === " ") K.held.toggle();
      else if (to === undefined) return;
      else at = list[Math.max(0, Math.min(list.length - 1, to))]?.kvPart?.key ?? null;
      event.preventDefault();
      draw();
    });
    track.addEventListener("focus", () => {
      if (!track.matches(":focus-visible")) return;
      at = segments()[0]?.kvPart?.key ?? null;
      draw();
    });
    track.addEventListener("blur", () => {
      at = null;
      draw();
    });
    track.addEventListener("click", () => K.held.toggle());
    return draw;
  };

  // The table. It stands over what is below the bar, and is closed by Esc, or by a click beside it.
  const parts = {};
  const isOpen = () => Boolean(parts.box && !parts.box.hidden);
  K.held = {
    open: () => set(true),
    close: () => set(false),
    toggle: () => set(!isOpen()),
    isOpen,
    stand: (wrap, button) => {
      parts.button = button;
      parts.rows = K.el("tbody");
      parts.foot = K.el("tfoot");
      parts.programs = K.el("tbody");
      parts.note = K.el("p", { class: "kv-hint" });
      const table = K.el("table", { class: "kv-table" }, K.el("thead", {}, head("ui.held.item", "ui.held.bytes", "ui.held.share", "ui.held.how")), parts.rows, parts.foot);
      parts.list = K.el("table", { class: "kv-table" }, K.el("thead", {}, head("ui.held.programs", "ui.held.bytes")), parts.programs);
      parts.box = K.el("div", { class: "kv-held", role: "dialog", "aria-label": K.say("ui.held"), tabindex: "-1", hidden: true },
        K.el("div", { class: "kv-held-head" }, K.el("strong", { text: K.say("ui.held") }), K.button("ui.close", "close", () => set(false), { class: "kv-tool" })),
        table, parts.list, parts.note);
      wrap.append(parts.box);
    },
  };
  const head = (...codes) => K.el("tr", {}, ...codes.map((code) => K.el("th", { scope: "col", text: K.say(code) })));
  const set = (open) => {
    if (!parts.box || open === isOpen()) return;
    K.show(parts.box, open);
    parts.button.setAttribute("aria-expanded", String(open));
    if (open) {
      draw(K.frame);
      parts.box.focus();
    } else if (parts.box.contains(document.activeElement)) parts.button.focus();
  };
  const draw = (frame) => {
    if (!isOpen() || !frame) return;
    const drawn = K.parts(frame);
    const rows = joined(drawn.parts).filter((part) => part.bytes > 0).map((part) => [
      part.label,
      K.size(part.bytes),
      `${K.number((part.bytes / drawn.of) * 100, 1)} %`,
      K.say(part.estimated ? "ui.held.estimated" : "ui.held.measured"),
    ]);
    K.fillRows(parts.rows, rows);
    const whole = drawn.small ? (drawn.over ? "ui.held.used" : "ui.held.budget") : "ui.held.device";
    K.fillRows(parts.foot, [[K.say(whole, { budget: K.size(drawn.limit) }), K.size(drawn.of), "100 %", ""]]);
    const programs = programsOf(frame);
    K.fillRows(parts.programs, programs.map((one) => [one.name, one.size]));
    K.show(parts.list, programs.length > 0);
    const age = frame.device?.age_s ?? 0;
    const notes = [programs.length ? "" : K.say("ui.held.no_programs"), age >= 1 ? K.say("ui.held.age", { s: K.seconds(age) }) : ""];
    K.put(parts.note, notes.filter(Boolean).join(" "));
    K.show(parts.note, Boolean(parts.note.textContent));
  };
  // Turns are one row here: each of them is in the cache tab.
  const joined = (all) => {
    const turns = all.filter((part) => part.span?.kind === "turn");
    const first = all.indexOf(turns[0]);
    const sum = { label: K.say("ui.held.turns", { turns: turns.length }), bytes: turns.reduce((bytes, part) => bytes + part.bytes, 0) };
    return turns.length ? [...all.slice(0, first), sum, ...all.slice(first).filter((part) => !turns.includes(part))] : all;
  };
  K.on("frame", draw);
  document.addEventListener("pointerdown", (event) => {
    if (isOpen() && !event.target.closest?.(".kv-track-wrap, .kv-held-button, .kv-card")) set(false);
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isOpen() || event.isComposing) return;
    event.stopImmediatePropagation(); // it closes this, and stops no answer
    set(false);
  }, true);

  // Rows of texts in a table's body, patched in place: what did not change is not touched.
  K.fillRows = (body, rows) => {
    while (body.children.length > rows.length) body.lastChild.remove();
    rows.forEach((cells, at) => {
      const row = body.children[at] ?? body.appendChild(K.el("tr"));
      while (row.children.length > cells.length) row.lastChild.remove();
      while (row.children.length < cells.length) row.append(row.children.length ? K.el("td") : K.el("th", { scope: "row" }));
      cells.forEach((text, n) => K.put(row.children[n], text));
    });
  };
})();
