// Each turn as a row: what it holds in memory and what it took. Readable where the bar is not.
(() => {
  const K = window.kvchat;
  const COLUMNS = ["turn", "tokens", "bytes", "format", "reused", "rate"];
  K.panel.tab("turns", 20, (body) => {
    const rows = K.el("tbody");
    const table = K.el("table", { class: "kv-table" },
      K.el("thead", {}, K.el("tr", {}, ...COLUMNS.map((name) => K.el("th", { scope: "col", text: K.say(`ui.column.${name}`) })))), rows);
    const empty = K.el("p", { class: "kv-hint", text: K.say("ui.turns.none") });
    body.append(empty, K.el("div", { class: "kv-table-wrap" }, table));
    const draw = () => {
      if (!K.panel.isOpen("turns")) return;
      const notes = new Map(K.notes.turns.map((note) => [note.turn, note]));
      const held = [...(K.frame?.spans ?? []).filter((span) => span.kind !== "turn"), ...K.turnsOf(K.frame)];
      const spans = new Map(K.turnsOf(K.frame).map((span) => [span.turn, span]));
      const gone = K.notes.turns.filter((note) => !spans.has(note.turn)).map((note) => ({ turn: note.turn, kind: "turn", gone: true }));
      const wanted = [...held, ...gone].sort((a, b) => (a.turn ?? 0) - (b.turn ?? 0));
      K.show(empty, wanted.length === 0);
      K.show(table, wanted.length > 0);
      while (rows.children.length > wanted.length) rows.lastChild.remove();
      while (rows.children.length < wanted.length) rows.append(K.el("tr", {}, ...COLUMNS.map(() => K.el("td"))));
      wanted.forEach((span, at) => cells(span, notes.get(span.turn)).forEach((text, n) => K.put(rows.children[at].children[n], text)));
    };
    const cells = (span, note) => {
      const made = note?.figures;
      const isTurn = span.turn !== undefined && span.turn !== null;
      const name = isTurn ? String(span.turn) : span.kind === "document" ? K.name(span.document) : K.say(`ui.bar.${span.kind}`);
      return [
        name,
        span.gone ? "–" : K.number(span.tokens ?? 0),
        span.gone ? K.say("ui.figures.not_held") : K.size(span.bytes ?? 0),
        Object.keys(span.formats ?? {}).map(K.format).join(" + ") || "–",
        made ? K.number(made.reused_tokens) : span.reused_tokens ? K.number(span.reused_tokens) : "–",
        made?.decode_tokens_per_s ? K.number(made.decode_tokens_per_s, 1) : "–",
      ];
    };
    for (const name of ["frame", "notes", "panel"]) K.on(name, draw);
  });
})();
