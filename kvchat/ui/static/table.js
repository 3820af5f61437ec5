// The cache tab: each turn as a row, with what it holds in memory and what it took. Readable where the
// bar is not. Above the table the chart (chart.js), below it what the device can do (speed.js) and
// what its memory did (timeline.js).
(() => {
  const K = window.kvchat;
  const MOST_TURNS = 150;
  const PAUSE_MS = 180;
  const COLUMNS = ["turn", "tokens", "bytes", "format", "reused", "reading", "rate"];
  let figures = new Map(); // turn -> what the server knows of it, also of those not drawn
  let parts = null;

  // What the cache tab is drawn from: spans of the frame, and figures by turn.
  K.cacheRows = () => {
    const spans = K.frame?.spans ?? [];
    const shown = K.turnsOf(K.frame).filter((span) => span.shown !== false);
    const held = new Map(shown.map((span) => [span.turn, span]));
    const before = spans.filter((span) => span.kind !== "turn").map((span) => ({ span, name: K.spanName(span), figures: null }));
    const numbers = new Set([...held.keys(), ...figures.keys()]);
    const turns = [...numbers].sort((a, b) => a - b).map((turn) => ({ turn, span: held.get(turn) ?? null, name: String(turn), ...figures.get(turn) }));
    return [...before, ...turns];
  };
  K.spanName = (span) =>
    span.kind === "turn" ? K.say("ui.bar.turn", { turn: span.turn }) : span.kind === "document" ? K.name(span.document) : K.say(`ui.bar.${span.kind}`);

  K.panel.tab("turns", 20, (body) => {
    const rows = K.el("tbody");
    const table = K.el("table", { class: "kv-table kv-turns" },
      K.el("caption", { class: "kv-unseen-text", text: K.say("ui.turns.caption") }),
      K.el("thead", {}, K.el("tr", {}, ...COLUMNS.map((name) => K.el("th", { scope: "col", text: K.say(`ui.column.${name}`), title: K.say(`ui.column.${name}.help`) })))),
      rows);
    parts = { rows, table, empty: K.el("p", { class: "kv-hint", text: K.say("ui.turns.none") }), more: K.el("p", { class: "kv-hint", hidden: true }) };
    body.append(parts.empty, K.chart(), K.el("div", { class: "kv-table-wrap", tabindex: "0", role: "region", "aria-label": K.say("ui.turns.caption") }, table), parts.more, K.speed(), K.timeline());
    for (const name of ["frame", "notes"]) K.on(name, draw);
    K.panel.onShow("turns", ask);
  });
  // Not with every frame: a long chat has many rows.
  let later = 0;
  const draw = () => {
    if (!parts || later || !K.panel.isOpen("turns")) return;
    later = setTimeout(() => {
      later = 0;
    }, PAUSE_MS);
    drawNow();
  };
  const drawNow = () => {
    const all = K.cacheRows();
    const turns = all.filter((one) => one.turn).slice(-MOST_TURNS);
    const wanted = [...all.filter((one) => !one.turn), ...turns];
    K.put(parts.more, K.say("ui.turns.newest", { turns: MOST_TURNS }));
    K.show(parts.more, all.length > wanted.length);
    K.show(parts.empty, wanted.length === 0);
    K.show(parts.table, wanted.length > 0);
    while (parts.rows.children.length > wanted.length) parts.rows.lastChild.remove();
    while (parts.rows.children.length < wanted.length) parts.rows.append(newRow());
    wanted.forEach((one, at) => fillRow(parts.rows.children[at], one));
    K.emit("cache", wanted);
  };
  const newRow = () =>
    K.el("tr", {}, K.el("th", { scope: "row" }, K.el("span"), K.el("span", { class: "kv-row-pin" })), ...COLUMNS.slice(1).map(() => K.el("td", {}, K.el("span"), K.el("small"))));
  const fillRow = (row, one) => {
    const [first, ...cells] = row.children;
    K.put(first.firstChild, one.name);
    first.title = one.turn ? K.say("ui.bar.turn", { turn: one.turn }) : one.name;
    drawPin(first.lastChild, one);
    cellsOf(one).forEach(([text, small], n) => {
      K.put(cells[n].firstChild, text);
      K.put(cells[n].lastChild, small ?? "");
    });
    row.classList.toggle("kv-gone", !one.span?.bytes && !one.span?.host_bytes);
    row.style.setProperty("--kv-tone", one.span ? K.fill(one.span.formats) : "transparent");
  };
  const dash = "–";
  const cellsOf = ({ turn, span, figures: made, left_out }) => {
    const nowhere = K.say(left_out ? "ui.tier.left_out" : "ui.tier.none");
    const formats = Object.entries(span?.formats ?? {}).filter(([, bytes]) => bytes > 0).map(([name]) => K.format(name));
    const tier = span?.tier ? K.say(`ui.tier.short.${span.tier}`) : nowhere;
    const bytes = (span?.bytes ?? 0) + (span?.host_bytes ?? 0);
    const read = made ? made.prompt_tokens - made.reused_tokens : 0;
    return [
      [span ? K.number(span.tokens ?? 0) : dash],
      [bytes ? K.size(bytes) : dash],
      [formats.join("\n") || dash, tier],
      [made ? K.number(made.reused_tokens) : dash, made ? K.say("ui.column.of", { of: made.prompt_tokens }) : ""],
      [rate(perSecond(made)), read > 0 ? K.say("ui.column.read", { tokens: read }) : ""],
      [rate(made?.decode_tokens_per_s), made?.decode_bytes_per_s ? K.perSecond(made.decode_bytes_per_s) : turn && K.isLive(turn) ? K.say("ui.column.live") : ""],
    ];
  };
  const perSecond = (made) => made?.prefill_tokens_per_s ?? (made?.prefill_s > 0 ? (made.prompt_tokens - made.reused_tokens) / made.prefill_s : 0);
  const rate = (found) => (found > 0 ? K.number(found, found < 100 ? 1 : 0) : dash);

  // Pins, as under the questions: of turns by their names, of documents as a whole.
  const drawPin = (place, one) => {
    const about = one.turn && one.name ? pinOfTurn(one) : one.span?.kind === "document" ? pinOfDocument(one.span) : null;
    const key = about ? `${about.key}/${about.pinned}` : "";
    if (place.kvKey === key) return;
    place.kvKey = key;
    if (!about) return place.replaceChildren();
    const press = async (event) => {
      const found = await K.call("pin", { chat: K.chat, ...about.sent, pinned: !about.pinned });
      if (found.error) return K.emit("problem", found.error);
      event.target.closest("button")?.blur();
      K.act("open");
      ask();
    };
    const code = about.kind === "turn" ? (about.pinned ? "ui.unpin" : "ui.pin") : about.pinned ? "ui.document.unpin" : "ui.document.pin";
    place.replaceChildren(K.button(code, about.pinned ? "pinned" : "pin", press, { class: "kv-tool", "aria-pressed": String(about.pinned) }));
  };
  const pinOfTurn = (one) => {
    const known = figures.get(one.turn);
    if (!known) return null;
    return { kind: "turn", key: known.hash, pinned: Boolean(one.span?.pinned ?? known.pinned), sent: { turn: one.turn, name: known.hash } };
  };
  const pinOfDocument = (span) => ({ kind: "document", key: span.document, pinned: Boolean(K.frame?.documents?.find((row) => row.document === span.document)?.pinned), sent: { document: span.document } });

  // Figures do not move with the frames: they are asked for when the tab is opened, and when a turn ends.
  let asking = 0;
  const ask = async () => {
    if (parts && K.panel.isOpen("turns")) drawNow();
    if (!K.chat || !K.panel.isOpen("turns")) return;
    const mine = ++asking;
    const chat = K.chat;
    const found = await K.call("turn_figures", { chat });
    if (mine !== asking || chat !== K.chat || !found.turns) return;
    figures = new Map(found.turns.map(({ name: hash, ...rest }) => [rest.turn, { ...rest, hash }]));
    K.emit("figures", figures);
    drawNow();
  };
  K.turnFigures = () => figures;
  K.on("chat", () => {
    figures = new Map();
    ask();
  });
  let wasLive = false;
  K.on("notes", (notes) => {
    const live = Boolean(notes.live);
    if ((wasLive && !live) || notes.turns.length + notes.earlier !== figures.size) ask();
    wasLive = live;
  });
})();
