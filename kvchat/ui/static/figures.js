// The figures under a reply: what the cache holds of the turn now, and what the answer took.
(() => {
  const K = window.kvchat;
  const DOT = "\u00a0· "; // it belongs to what stands before it: no line begins with it
  K.figuresLine = (turn) => K.el("div", { class: "kv-figures", id: `kv-figures-${turn}` }, K.el("span", { class: "kv-chip" }), K.el("span", { class: "kv-speed" }));
  K.drawFigures = () => {
    const standing = K.frame ? K.standing(K.frame) : null;
    const notes = new Map(K.notes.turns.map((note) => [note.turn, note]));
    for (const line of document.querySelectorAll(".kv-figures")) {
      const note = notes.get(Number(line.id.split("-").at(-1)));
      if (!note) continue;
      const span = K.spanOf(K.frame, note.turn, note.name);
      const place = span ? "" : placeOf(note, standing);
      const live = K.isLive(note.turn);
      const key = live ? null : [span?.tokens, span?.bytes, span?.host_bytes, span?.tier, Object.keys(span?.formats ?? {}), place, note.figures?.reply_tokens].join();
      if (!live && line.kvKey === key) continue; // most turns are as they were
      line.kvKey = key;
      const [chip, speed] = line.children;
      chip.style.setProperty("--kv-tone", K.fill(span?.formats ?? note.figures?.formats));
      K.put(chip, chipOf(note, span, place));
      K.put(speed, live ? progressOf() : tookOf(note.figures));
      const help = live || !note.figures ? "" : K.say("ui.figures.help");
      if (speed.title !== help) speed.title = help;
      K.show(chip, Boolean(chip.textContent));
    }
  };
  const placeOf = (note, standing) => {
    if (!note.left_out && standing?.where === "kept") return K.say("ui.figures.kept", { bytes: K.size(standing.bytes) });
    if (!note.left_out && standing?.where === "disk") return K.say("ui.tier.disk");
    const other = K.turnsOf(K.frame).some((one) => one.turn === note.turn);
    return K.say(other ? "ui.figures.other_version" : "ui.figures.not_held");
  };
  const chipOf = (note, span, place) => {
    if (!span && !note.figures) return "";
    const name = K.say("ui.bar.turn", { turn: note.turn });
    if (!span) return `${name} · ${place}`;
    const formats = Object.entries(span.formats ?? {}).filter(([, bytes]) => bytes > 0);
    const parts = [name, K.say("ui.figures.tokens", { tokens: span.tokens ?? 0 }), K.size((span.bytes ?? 0) + (span.host_bytes ?? 0)), formats.map(([format]) => K.format(format)).join(" + ")];
    if (span.tier) parts.push(K.say(`ui.tier.short.${span.tier}`));
    return parts.filter(Boolean).join(DOT);
  };
  const progressOf = () => {
    if (!K.online) return "";
    const { status, done_tokens: done, tokens } = K.notes.live;
    if (status === "summing") return K.summingProgress(K.notes.live);
    if (status === "prefill" && tokens) return K.say("ui.live.prefill.tokens", { done, of: tokens });
    const rate = status === "decode" && pace.rate ? K.say("ui.figures.rate", { rate: K.number(pace.rate, 1) }) : "";
    return [K.say(`ui.live.${status}`), rate].filter(Boolean).join(DOT);
  };
  // What the answer took, in the order in which it happened: read, first token, written.
  const tookOf = (made) => {
    if (!made) return "";
    const read = made.prompt_tokens - made.reused_tokens;
    const parts = [K.say("ui.figures.reused", { tokens: made.reused_tokens, of: made.prompt_tokens })];
    if (read > 0 && made.prefill_tokens_per_s) parts.push(K.say("ui.figures.reading", { rate: rounded(made.prefill_tokens_per_s) }));
    if (made.reply_tokens) parts.push(K.say("ui.figures.first", { s: made.time_to_first_token_s.toFixed(2) }));
    parts.push(K.say("ui.figures.reply", { tokens: made.reply_tokens }));
    if (made.decode_tokens_per_s) parts.push(K.say("ui.figures.rate", { rate: rounded(made.decode_tokens_per_s) }));
    if (made.decode_bytes_per_s) parts.push(K.perSecond(made.decode_bytes_per_s));
    return parts.join(DOT);
  };
  const rounded = (rate) => K.number(rate, rate < 100 ? 1 : 0);

  // How fast the answer grows, from what the cache gained in the last seconds.
  const pace = { turn: 0, points: [], rate: 0 };
  const measure = (frame) => {
    const turn = K.notes.live?.status === "decode" ? K.notes.live.turn : 0;
    const tokens = K.turnsOf(frame).find((span) => span.turn === turn)?.tokens;
    if (turn !== pace.turn) Object.assign(pace, { turn, points: [], rate: 0 });
    if (!turn || tokens === undefined) return;
    const now = performance.now();
    pace.points = [...pace.points, { at: now, tokens }].filter((one) => one.at > now - 3000);
    const first = pace.points[0];
    if (now - first.at > 500) pace.rate = (tokens - first.tokens) / ((now - first.at) / 1000);
  };
  K.on("online", () => K.drawFigures());
  K.on("frame", (frame) => {
    measure(frame);
    K.drawFigures();
  });
})();
